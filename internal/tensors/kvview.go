package tensors

import (
	"vkattn/internal/problem"
	"vkattn/internal/quant"
)

// KVView reads rows of K or V in host memory, of any storage type.
type KVView struct {
	Rows     HostRows // where rows begin, and their elements if they are not quantized
	kv       problem.KVType
	block    []byte // bytes from Offset 0 on
	PerBlock int64  // bytes of 32 elements
	scales   problem.Vector
	steps    ScaleSteps
}

func ViewKV(t problem.Tensor, kv problem.KVType, scales problem.Vector, cfg *problem.Config, heads, keys, dim int) (KVView, error) {
	rows, err := ViewRows(t, cfg.DType, heads, keys, dim)
	return KVView{
		Rows: rows, kv: kv, block: t.Host, PerBlock: int64(kv.RowBytes(cfg.DType, quant.BlockElements)),
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
func (v *KVView) ByteOf(batch, head, row int) int64 {
	return v.Rows.Element(batch, head, row) * v.PerBlock / quant.BlockElements
}

// Scale returns the scale of a row of a Scaled type.
func (v *KVView) Scale(batch, head, row int) float32 {
	return FloatAt(&v.scales, batch*v.steps.Batch+head*v.steps.Head+row/v.steps.Keys)
}
