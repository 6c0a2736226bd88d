// Package operands lists the tensors and vectors of a call's arguments, so that code that
// places them in memory does not have to name each of them.
package operands

import (
	"reflect"
	"slices"
	"unsafe"

	"vkattn/internal/problem"
	"vkattn/vk"
)

// Operand refers to one tensor or vector in the arguments of a call.
type Operand struct {
	Name     string // of the field
	Output   bool   // O, LSE or a gradient
	Streamed bool   // tensors and scales: their size grows with the problem, unlike tables and lists
	Of       int    // index of the operand in whose memory it lies: its own, unless V lies within K

	buffer **vk.Buffer
	memory **problem.Memory
	host   *[]byte
	offset *int64

	unitBytes, unitElements int64 // offsets are multiples of this
}

// List returns the operands that are given, in the order of the fields. They refer to fields of a
// and of the structs it points to: see [Clone].
func List(cfg problem.Config, a *problem.Args) []Operand { return list(cfg, reflect.ValueOf(a)) }

// ListBackward is List of the arguments of a backward call: the arguments of the forward
// call, then the gradients.
func ListBackward(cfg problem.Config, a *problem.BackwardArgs) []Operand {
	return list(cfg, reflect.ValueOf(a))
}

func list(cfg problem.Config, args reflect.Value) []Operand {
	f := finder{cfg: cfg}
	f.find("", args.Elem())
	for i := range f.list {
		o := &f.list[i]
		o.Of = i
		if o.Name == "V" && o.sameMemory(f.list[i-1]) {
			o.Of = i - 1
		}
	}
	return f.list
}

// finder finds the operands in arguments by the types of their fields.
type finder struct {
	cfg  problem.Config
	bias problem.DType
	list []Operand
}

// find adds the operands in a field with a name, or in the structs it holds or points to.
func (f *finder) find(name string, field reflect.Value) {
	switch x := field.Addr().Interface().(type) {
	case *problem.Tensor:
		f.add(name, true, &x.Buffer, &x.Memory, &x.Host, &x.Offset)
	case *problem.Vector:
		f.add(name, false, &x.Buffer, &x.Memory, &x.Host, &x.Offset)
	case *[]problem.Table:
		for i := range *x {
			f.find(name+"["+(*x)[i].Name+"]", reflect.ValueOf(&(*x)[i].Vector).Elem())
		}
	case **problem.BlockMap: // of the library's own making
	default:
		if field.Kind() == reflect.Pointer && !field.IsNil() {
			field = field.Elem()
		}
		if bias, ok := field.Interface().(problem.Bias); ok {
			f.bias = bias.DType
		}
		for i := 0; field.Kind() == reflect.Struct && i < field.NumField(); i++ {
			inner := name // of what is embedded
			if t := field.Type().Field(i); !t.Anonymous {
				inner = t.Name
			}
			f.find(inner, field.Field(i))
		}
	}
}

func (f *finder) add(name string, tensor bool, buffer **vk.Buffer, memory **problem.Memory, host *[]byte, offset *int64) {
	o := Operand{Name: name, buffer: buffer, memory: memory, host: host, offset: offset}
	if *buffer == nil && *memory == nil && *host == nil {
		return
	}
	ofBackward := name[0] == 'D' && name != "DropoutState"
	o.Streamed = tensor || ofBackward || name == "KScale" || name == "VScale"
	o.Output = name == "O" || name == "LSE" || name == "MaxLogits" || ofBackward && name != "DO" && name != "DLSE"
	o.unitBytes, o.unitElements = f.unit(name)
	f.list = append(f.list, o)
}

// unit is the unit of offsets: an element, or a block of K or V.
func (f *finder) unit(name string) (bytes, elements int64) {
	switch name {
	case "Q", "O", "DO":
		return int64(f.cfg.DType.Size()), 1
	case "DQ", "DK", "DV":
		return int64(f.cfg.GradientType().Size()), 1
	case "K":
		return kvUnit(f.cfg.KeyType, f.cfg.DType)
	case "V":
		return kvUnit(f.cfg.ValueType, f.cfg.DType)
	case "Bias":
		return int64(f.bias.Size()), 1
	case "Mask":
		return 1, 1
	}
	return 4, 1 // LSE, numbers of vectors, and sums in float32
}

// sameMemory reports whether two operands are in the same buffer, or are host slices with
// the same first byte.
func (o Operand) sameMemory(other Operand) bool {
	if o.Buffer() != nil || other.Buffer() != nil {
		return o.Buffer() == other.Buffer()
	}
	return unsafe.SliceData(o.Host()) == unsafe.SliceData(other.Host())
}

// kvUnit is the unit of offsets of K and V: an element, or a block.
func kvUnit(kv problem.KVType, dtype problem.DType) (bytes, elements int64) {
	return int64(kv.RowBytes(dtype, kv.Unit())), int64(kv.Unit())
}

// Clone copies the arguments and the structs they point to, but not the memory of
// tensors and vectors.
func Clone(a problem.Args) problem.Args {
	a.Varlen, a.Pages, a.SparseTokens = copied(a.Varlen), copied(a.Pages), copied(a.SparseTokens)
	a.Tables = slices.Clone(a.Tables)
	a.Blocks, a.Bias, a.Mask = copied(a.Blocks), copied(a.Bias), copied(a.Mask)
	return a
}

// CloneBackward is Clone of the arguments of a backward call.
func CloneBackward(a problem.BackwardArgs) problem.BackwardArgs {
	a.Args = Clone(a.Args)
	a.DTables = slices.Clone(a.DTables)
	return a
}

func copied[T any](p *T) *T {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

// Host is the operand's host memory, nil if it is on a device.
func (o Operand) Host() []byte { return *o.host }

// Buffer is the operand's buffer, nil if it is on the host.
func (o Operand) Buffer() *vk.Buffer { return *o.buffer }

// OnHost places the operand in host memory.
func (o Operand) OnHost(memory []byte) { *o.host, *o.buffer, *o.memory = memory, nil, nil }

// OnDevice places the operand in a buffer.
func (o Operand) OnDevice(b *vk.Buffer) { *o.host, *o.buffer, *o.memory = nil, b, nil }

// OnMemory places the operand in memory of a device that is not Vulkan's.
func (o Operand) OnMemory(m *problem.Memory) { *o.host, *o.buffer, *o.memory = nil, nil, m }

// UnitBytes is the unit of Skip.
func (o Operand) UnitBytes() int64 { return o.unitBytes }

// Skip adds bytes, a multiple of UnitBytes, to the operand's offset.
func (o Operand) Skip(bytes int64) { *o.offset += bytes / o.unitBytes * o.unitElements }
