package tensors

import (
	"vkattn/internal/problem"
)

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
