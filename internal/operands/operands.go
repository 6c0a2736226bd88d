// Package operands lists the tensors and vectors of a call's arguments, so that code that
// places them in memory does not have to name each of them.
package operands

import (
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

// List returns the operands that are given, in a fixed order. They refer to fields of a
// and of the structs it points to: see [Clone].
func List(cfg problem.Config, a *problem.Args) (list []Operand) {
	size := int64(cfg.DType.Size())
	tensor := func(name string, t *problem.Tensor, bytes, elements int64) {
		if t.Given() {
			list = append(list, Operand{Name: name, Streamed: true, buffer: &t.Buffer, memory: &t.Memory, host: &t.Host, offset: &t.Offset,
				unitBytes: bytes, unitElements: elements})
		}
	}
	vector := func(name string, v *problem.Vector) {
		if v.Given() {
			list = append(list, Operand{Name: name, buffer: &v.Buffer, memory: &v.Memory, host: &v.Host, offset: &v.Offset,
				unitBytes: 4, unitElements: 1})
		}
	}
	tensor("Q", &a.Q, size, 1)
	bytes, elements := kvUnit(cfg.KeyType, cfg.DType)
	tensor("K", &a.K, bytes, elements)
	bytes, elements = kvUnit(cfg.ValueType, cfg.DType)
	tensor("V", &a.V, bytes, elements)
	for _, out := range []struct {
		name string
		t    *problem.Tensor
		size int64
	}{{"O", &a.O, size}, {"LSE", &a.LSE, 4}} {
		if n := len(list); out.t.Given() {
			tensor(out.name, out.t, out.size, 1)
			list[n].Output = true
		}
	}
	if v := a.Varlen; v != nil {
		vector("CuQ", &v.CuQ)
		vector("CuK", &v.CuK)
		vector("UsedQ", &v.UsedQ)
		vector("UsedK", &v.UsedK)
	}
	if a.Pages != nil {
		vector("Table", &a.Pages.Table)
	}
	if a.SparseTokens != nil {
		vector("Offsets", &a.SparseTokens.Offsets)
		vector("Tokens", &a.SparseTokens.Tokens)
	}
	if a.Blocks != nil {
		vector("Map", &a.Blocks.Map)
	}
	if a.Bias != nil {
		tensor("Bias", &a.Bias.Tensor, int64(a.Bias.DType.Size()), 1)
	}
	if a.Mask != nil {
		tensor("Mask", &a.Mask.Tensor, 1, 1)
	}
	vector("ALiBi", &a.ALiBi)
	vector("Sinks", &a.Sinks)
	for i := range a.Tables {
		vector("Tables["+a.Tables[i].Name+"]", &a.Tables[i].Vector)
	}
	for _, s := range []struct {
		name string
		v    *problem.Vector
	}{{"KScale", &a.KScale}, {"VScale", &a.VScale}} {
		if n := len(list); s.v.Given() {
			vector(s.name, s.v)
			list[n].Streamed = true
		}
	}
	for i := range list {
		list[i].Of = i
		if list[i].Name == "V" && list[i].sameMemory(list[i-1]) {
			list[i].Of = i - 1
		}
	}
	return list
}

// ListBackward is List of the arguments of a backward call: the arguments of the forward
// call, then the gradients.
func ListBackward(cfg problem.Config, a *problem.BackwardArgs) []Operand {
	list := List(cfg, &a.Args)
	size, gradient := int64(cfg.DType.Size()), int64(cfg.GradientType().Size())
	for _, x := range []struct {
		name   string
		t      *problem.Tensor
		size   int64
		output bool
	}{{"DO", &a.DO, size, false}, {"DLSE", &a.DLSE, 4, false}, {"DQ", &a.DQ, gradient, true},
		{"DK", &a.DK, gradient, true}, {"DV", &a.DV, gradient, true},
		{"DBias", &a.DBias, 4, true}} {
		if x.t.Given() {
			list = append(list, Operand{Name: x.name, Streamed: true, Output: x.output, Of: len(list),
				buffer: &x.t.Buffer, memory: &x.t.Memory, host: &x.t.Host, offset: &x.t.Offset, unitBytes: x.size, unitElements: 1})
		}
	}
	output := func(name string, v *problem.Vector) {
		if v.Given() {
			list = append(list, Operand{Name: name, Streamed: true, Output: true, Of: len(list),
				buffer: &v.Buffer, memory: &v.Memory, host: &v.Host, offset: &v.Offset, unitBytes: 4, unitElements: 1})
		}
	}
	output("DSinks", &a.DSinks)
	for i := range a.DTables {
		output("DTables["+a.DTables[i].Name+"]", &a.DTables[i].Vector)
	}
	return list
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
	if kv.Blocked() {
		const block = 32
		return int64(kv.RowBytes(dtype, block)), block
	}
	return int64(kv.RowBytes(dtype, 1)), 1
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
