package tensors

import (
	"fmt"

	"vkattn/internal/arith"
	"vkattn/internal/half"
	"vkattn/internal/par"
	"vkattn/internal/problem"
	"vkattn/internal/quant"
)

// EncodeKV is attention.EncodeKV, which documents it.
func EncodeKV(t problem.KVType, block, batches, heads, keys, dim int, x []float32) (data, scales []byte, err error) {
	k, err := newKVPacked(t, block, batches, heads, keys, dim)
	if err == nil && int64(len(x)) != k.rows*int64(keys)*int64(dim) {
		err = &problem.ShapeError{Field: "elements", Got: len(x), Want: fmt.Sprintf("%d*%d*%d*%d", batches, heads, keys, dim)}
	}
	if err != nil {
		return nil, nil, err
	}
	data = make([]byte, k.rows*k.bytes)
	if t.Scaled() {
		scales = make([]byte, 4*k.scales())
	}
	f := problem.FormatOf(t)
	if k.shared {
		half.EncodeF32(scales, k.sharedScales(f, x))
	}
	k.each(func(data []byte, x []float32, scale []byte) {
		switch {
		case k.shared:
			f.EncodeWith(data, x, decodeScale(scale))
		case f.Scaled():
			half.EncodeF32(scale, []float32{f.Encode(data, x)})
		default:
			f.Encode(data, x)
		}
	}, data, x, scales)
	return data, scales, nil
}

// DecodeKV is attention.DecodeKV, which documents it.
func DecodeKV(t problem.KVType, block, batches, heads, keys, dim int, data, scales []byte) ([]float32, error) {
	k, err := newKVPacked(t, block, batches, heads, keys, dim)
	if err != nil {
		return nil, err
	}
	if int64(len(data)) != k.rows*k.bytes {
		return nil, &problem.ShapeError{Field: "data", Got: fmt.Sprintf("%d bytes", len(data)), Want: fmt.Sprintf("%d", k.rows*k.bytes)}
	}
	if want := 4 * k.scales(); t.Scaled() && int64(len(scales)) != want {
		return nil, &problem.ShapeError{Field: "scales", Got: fmt.Sprintf("%d bytes", len(scales)), Want: fmt.Sprintf("%d", want)}
	}
	x, f := make([]float32, k.rows*int64(keys)*int64(dim)), problem.FormatOf(t)
	k.each(func(data []byte, x []float32, scale []byte) {
		f.Decode(x, data)
		if t.Scaled() {
			s := decodeScale(scale)
			for i := range x {
				x[i] *= s
			}
		}
	}, data, x, scales)
	return x, nil
}

// kvPacked is a packed quantized tensor.
type kvPacked struct {
	t           problem.KVType
	rows        int64 // heads of all batches
	bytes       int64 // of a head
	block, keys int
	groups, dim int // scales of a head, elements of a key
	heads       int
	steps       ScaleSteps
	shared      bool // batches share scales
}

// scales is the number of scales.
func (k *kvPacked) scales() int64 { return k.steps.Entries(int(k.rows)/k.heads, k.heads) }

// scaleAt is the entry of a block of a head, counted over all batches.
func (k *kvPacked) scaleAt(row int64, block int) int64 {
	return row/int64(k.heads)*int64(k.steps.Batch) + row%int64(k.heads)*int64(k.steps.Head) + int64(block)
}

// sharedScales are the scales of heads, or of the tensor, from all of its keys.
func (k *kvPacked) sharedScales(f *quant.Format, x []float32) []float32 {
	scales, each := make([]float32, k.scales()), int64(k.keys)*int64(k.dim)
	for row := range k.rows {
		at := k.scaleAt(row, 0)
		scales[at] = max(scales[at], f.ScaleOf(x[row*each:][:each]))
	}
	return scales
}

func decodeScale(b []byte) float32 {
	var s [1]float32
	half.DecodeF32(s[:], b)
	return s[0]
}

func newKVPacked(t problem.KVType, block, batches, heads, keys, dim int) (*kvPacked, error) {
	for _, f := range []struct {
		name string
		n    int
	}{{"batches", batches}, {"heads", heads}, {"keys", keys}, {"dim", dim}} {
		if f.n < 1 || f.n > problem.MaxLength {
			return nil, &problem.ShapeError{Field: f.name, Got: f.n, Want: fmt.Sprintf("1 to %d", problem.MaxLength)}
		}
	}
	switch _, ok := arith.Product(batches, heads, keys, dim, 4); {
	case !t.Valid() || t == problem.KVSame:
		return nil, &problem.ShapeError{Field: "KV", Got: t, Want: problem.ListKVTypes(func(t problem.KVType) bool { return t != problem.KVSame })}
	case dim%t.Unit() != 0:
		return nil, &problem.ShapeError{Field: "dim", Got: dim, Want: fmt.Sprintf("a multiple of %d for %v", t.Unit(), t)}
	case block < problem.KVBlockTensor || block > problem.MaxLength:
		return nil, &problem.ShapeError{Field: "block", Got: block, Want: "a number of keys, 0 for 1, -1 for the keys of a head, or -2 for all"}
	case !ok:
		return nil, &problem.ShapeError{Field: "elements", Got: fmt.Sprintf("%d*%d*%d*%d", batches, heads, keys, dim), Want: "an extent below 2^63 bytes"}
	}
	steps := ScaleStepsOf(block, heads, keys)
	return &kvPacked{
		t: t, rows: int64(batches) * int64(heads), bytes: int64(t.RowBytes(problem.F32, dim)) * int64(keys),
		block: steps.Keys, keys: keys, groups: arith.CeilDiv(keys, steps.Keys), dim: dim, heads: heads, steps: steps, shared: block < 0 && t.Scaled(),
	}, nil
}

// each visits the keys of every block of every head, from many goroutines.
func (k *kvPacked) each(visit func(data []byte, x []float32, scale []byte), data []byte, x []float32, scales []byte) {
	key := int64(k.t.RowBytes(problem.F32, k.dim))
	par.Each(k.rows, func() func(int64) {
		return func(row int64) {
			data, x := data[row*k.bytes:], x[row*int64(k.keys)*int64(k.dim):]
			for g := range k.groups {
				n := min(k.block, k.keys-g*k.block)
				var scale []byte
				if k.t.Scaled() {
					scale = scales[4*k.scaleAt(row, g):][:4]
				}
				visit(data[:int64(n)*key], x[:n*k.dim], scale)
				data, x = data[int64(n)*key:], x[n*k.dim:]
			}
		}
	})
}

// KVView reads rows of K or V in host memory, of any storage type.
type KVView struct {
	Rows    HostRows // where rows begin, and their elements if they are not quantized
	kv      problem.KVType
	block   []byte // bytes from Offset 0 on
	PerUnit int64  // bytes of a unit of the type
	unit    int64  // elements of a unit
	scales  problem.Vector
	steps   ScaleSteps
}

func ViewKV(t problem.Tensor, kv problem.KVType, scales problem.Vector, cfg *problem.Config, heads, keys, dim int) (KVView, error) {
	t.Strides = KVStrides(t.Strides, kv, heads, keys, dim)
	rows, err := ViewRows(t, cfg.DType, heads, keys, dim)
	return KVView{
		Rows: rows, kv: kv, block: t.Host, PerUnit: int64(kv.RowBytes(cfg.DType, kv.Unit())), unit: int64(kv.Unit()),
		scales: scales, steps: ScaleStepsOf(cfg.KVBlock, heads, keys),
	}, err
}

// Scaled reports whether rows have scales.
func (v *KVView) Scaled() bool { return v.kv.Scaled() }

// Read reads the numbers of a row into dst and returns their scale: element = scale *
// number. The scale is 1 for types that are not Scaled.
func (v *KVView) Read(dst []float32, batch, head, row int) (scale float32) {
	dst = dst[:v.Rows.Dim()]
	if v.kv == problem.KVSame {
		v.Rows.ReadRow(dst, batch, head, row)
		return 1
	}
	problem.FormatOf(v.kv).Decode(dst, v.block[v.ByteOf(batch, head, row):])
	if !v.kv.Scaled() {
		return 1
	}
	return v.Scale(batch, head, row)
}

// ByteOf returns the byte offset of a row.
func (v *KVView) ByteOf(batch, head, row int) int64 { return v.Byte(v.Rows.Element(batch, head, row)) }

// Byte returns the byte offset of an element that begins a unit.
func (v *KVView) Byte(element int64) int64 { return element * v.PerUnit / v.unit }

// KVStrides are the strides of K or V. V of a Latent type is in rows of K, so packed strides count whole units.
func KVStrides(s problem.Strides, kv problem.KVType, heads, keys, dim int) problem.Strides {
	return s.Resolve(heads, keys, (dim+kv.Unit()-1)/kv.Unit()*kv.Unit())
}

// Scale returns the scale of a row of a Scaled type.
func (v *KVView) Scale(batch, head, row int) float32 {
	return FloatAt(&v.scales, batch*v.steps.Batch+head*v.steps.Head+row/v.steps.Keys)
}
