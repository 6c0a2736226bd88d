package attention

import "vkattn/attention/quant"

// kvView reads rows of K or V in host memory, of any storage type.
type kvView struct {
	rows      hostRows // where rows begin; what they are, where they are not quantised
	kv        KVType
	block     []byte // bytes from Offset 0 on
	perBlock  int64  // bytes of 32 elements
	scales    Vector
	heads     int
	scaleKeys int // keys that share a scale
	scaleRow  int // scales of a head
}

func viewKV(t Tensor, scales Vector, cfg *Config, heads, keys, dim int) (kvView, error) {
	rows, err := viewRows(t, cfg.DType, heads, keys, dim)
	return kvView{
		rows: rows, kv: cfg.KV, block: t.Host, perBlock: int64(cfg.KV.RowBytes(cfg.DType, quant.BlockElements)),
		scales: scales, heads: heads, scaleKeys: max(1, cfg.KVBlock), scaleRow: scaleGroups(cfg, keys),
	}, err
}

// read reads the numbers of a row into dst and returns their scale: element = scale *
// number. The scale is 1 for types that are not Scaled.
func (v *kvView) read(dst []float32, batch, head, row int) (scale float32) {
	dst = dst[:v.rows.Dim()]
	if v.kv == KVSame {
		v.rows.ReadRow(dst, batch, head, row)
		return 1
	}
	decodeKVRow(v.kv, dst, v.block[v.byteOf(batch, head, row):])
	if !v.kv.Scaled() {
		return 1
	}
	return v.scale(batch, head, row)
}

// byteOf returns the byte offset of a row.
func (v *kvView) byteOf(batch, head, row int) int64 {
	return v.rows.element(batch, head, row) * v.perBlock / quant.BlockElements
}

// scale returns the scale of a row of a Scaled type.
func (v *kvView) scale(batch, head, row int) float32 {
	return floatAt(&v.scales, (batch*v.heads+head)*v.scaleRow+row/v.scaleKeys)
}
