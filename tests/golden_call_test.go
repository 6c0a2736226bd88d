package tests

import (
	"context"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/oracle"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// goldenCall describes a call whose gradients or outputs are in golden files. Its arrays are its tensors and
// their gradients: q, k, v, do, dlse, dq, dk and dv, and of the options alibi, sinks, bias, mask, blocks, dbias
// and dsinks. attended_q, attended_k and attended_bias have 0 where a gradient is exactly 0.
// Tensors of packed sequences have one batch.
type goldenCall struct {
	Name      string           `json:"name"`
	DType     attention.DType  `json:"dtype"`
	HeadDim   int              `json:"head_dim"`
	HeadDimV  int              `json:"head_dim_v"`
	Causal    attention.Causal `json:"causal"`
	Align     attention.Causal `json:"align"`
	Window    []int            `json:"window"` // left, right; null: none
	Softcap   float32          `json:"softcap"`
	Scale     *float32         `json:"scale"` // null: 1/sqrt(head_dim)
	B         int              `json:"b"`
	Hq        int              `json:"hq"`
	Hkv       int              `json:"hkv"`
	Sq        int              `json:"sq"`
	Sk        int              `json:"sk"`
	CuQ       []int32          `json:"cu_q"` // null: not packed
	CuK       []int32          `json:"cu_k"`
	UsedQ     []int32          `json:"used_q"` // null: all
	UsedK     []int32          `json:"used_k"`
	BlockQ    int              `json:"block_q"`
	BlockK    int              `json:"block_k"`
	BiasDType string           `json:"bias_dtype"`

	Dropout       float32          `json:"dropout"`
	DropoutSeed   uint64           `json:"dropout_seed"`
	DropoutOffset uint32           `json:"dropout_offset"`
	KV            attention.KVType `json:"kv"`
	KVBlock       int              `json:"kv_block"`
	PageSize      int              `json:"page_size"` // 0: not paged
	PageCount     int              `json:"page_count"`
	Table         [][]int32        `json:"table"`
	Tokens        [][]int32        `json:"tokens"` // of each sequence and key head, or with TopK of each row and key head; null: all
	TopK          int              `json:"top_k"`

	arrays map[string]npyArray
	raw    map[string][]byte // of k, v, kscale and vscale, where K and V are quantized
}

func (g *goldenCall) config() attention.Config {
	cfg := attention.Config{DType: g.DType, HeadDim: g.HeadDim, HeadDimV: g.HeadDimV, Causal: g.Causal, Align: g.Align, Softcap: g.Softcap,
		Dropout: g.Dropout, KeyType: g.KV, ValueType: g.KV, KVBlock: g.KVBlock}
	if g.Scale != nil {
		cfg.Scale = attention.ScaleOf(*g.Scale)
	}
	if len(g.Window) == 2 {
		cfg.Window = attention.WindowOf(g.Window[0], g.Window[1])
	}
	return cfg
}

// memory makes the memory of a tensor, a buffer or a slice, that holds some bytes.
type memory func(bytes []byte) (*vk.Buffer, []byte)

func hostOnly(bytes []byte) (*vk.Buffer, []byte) { return nil, bytes }

// args returns the call with all outputs.
func (g *goldenCall) args(t *testing.T, of memory) attention.BackwardArgs {
	t.Helper()
	encode := func(dtype attention.DType, data []float64) []byte {
		narrow, b := make([]float32, len(data)), make([]byte, len(data)*dtype.Size())
		for i, x := range data {
			narrow[i] = float32(x)
		}
		dtype.Encode(b, narrow)
		return b
	}
	tensor := func(name string, dtype attention.DType) (x attention.Tensor) {
		bytes := g.raw[name]
		if bytes == nil {
			bytes = encode(dtype, g.arrays[name].data)
		}
		x.Buffer, x.Host = of(bytes)
		return x
	}
	output := func(like string, dtype attention.DType) (x attention.Tensor) {
		x.Buffer, x.Host = of(slices.Repeat([]byte{0xff}, len(g.arrays[like].data)*dtype.Size())) // NaN
		return x
	}
	vector := func(x attention.Tensor) attention.Vector { return attention.Vector{Buffer: x.Buffer, Host: x.Host} }
	integers := func(list []int32) (v attention.Vector) {
		if list != nil {
			var b []byte
			for _, x := range list {
				b = binary.LittleEndian.AppendUint32(b, uint32(x))
			}
			v.Buffer, v.Host = of(b)
		}
		return v
	}

	var a attention.BackwardArgs
	a.Shape = attention.Shape{B: g.B, Hq: g.Hq, Hkv: g.Hkv, Sq: g.Sq, Sk: g.Sk}
	a.Q, a.K, a.V = tensor("q", g.DType), tensor("k", g.DType), tensor("v", g.DType)
	if g.has("do") {
		a.DO = tensor("do", g.DType)
		a.O, a.DQ, a.DK, a.DV = output("do", g.DType), output("q", g.DType), output("k", g.DType), output("v", g.DType)
	} else {
		a.O = output("o", g.DType)
	}
	a.LSE.Buffer, a.LSE.Host = of(make([]byte, 4*len(g.arrays["q"].data)/g.HeadDim))
	if g.has("dlse") {
		a.DLSE = tensor("dlse", attention.F32)
	}
	if g.CuQ != nil || g.CuK != nil || g.UsedQ != nil || g.UsedK != nil {
		a.Varlen = &attention.Varlen{CuQ: integers(g.CuQ), CuK: integers(g.CuK), UsedQ: integers(g.UsedQ), UsedK: integers(g.UsedK)}
		if g.CuQ != nil {
			a.Varlen.TotalQ = int(g.CuQ[g.B])
		}
		if g.CuK != nil {
			a.Varlen.TotalK = int(g.CuK[g.B])
		}
	}
	if g.has("alibi") {
		a.ALiBi = vector(tensor("alibi", attention.F32))
	}
	if g.has("sinks") {
		a.Sinks, a.DSinks = vector(tensor("sinks", attention.F32)), vector(output("sinks", attention.F32))
	}
	if g.has("bias") {
		dtype, err := attention.ParseDType(g.BiasDType)
		require.NoError(t, err)
		n := g.arrays["bias"].shape
		a.Bias = &attention.Bias{Tensor: tensor("bias", dtype), DType: dtype, Batches: n[0], Heads: n[1], Rows: n[2]}
		a.DBias = output("bias", attention.F32)
	}
	if g.has("mask") {
		m := g.arrays["mask"]
		bytes := make([]byte, len(m.data))
		for i, x := range m.data {
			bytes[i] = byte(x)
		}
		a.Mask = &attention.Mask{Batches: m.shape[0], Heads: m.shape[1], Rows: m.shape[2]}
		a.Mask.Buffer, a.Mask.Host = of(bytes)
	}
	if g.has("blocks") {
		a.Blocks = &attention.Blocks{Map: integers(g.bitmap()), BlockQ: g.BlockQ, BlockK: g.BlockK,
			Batches: g.arrays["blocks"].shape[0], Heads: g.arrays["blocks"].shape[1]}
	}
	a.DropoutSeed, a.DropoutOffset = g.DropoutSeed, g.DropoutOffset
	if g.raw["kscale"] != nil {
		a.KScale, a.VScale = vector(tensor("kscale", attention.F32)), vector(tensor("vscale", attention.F32))
	}
	if g.PageSize > 0 {
		a.Pages = &attention.Pages{Table: integers(slices.Concat(g.Table...)), Stride: len(g.Table[0]), PageSize: g.PageSize, Count: g.PageCount}
	}
	if g.Tokens != nil {
		tokens := slices.Concat(g.Tokens...)
		a.SparseTokens = &attention.SparseTokens{Tokens: integers(tokens), TopK: g.TopK, PerRow: g.TopK > 0}
		if g.TopK == 0 {
			offsets := []int32{0}
			for _, list := range g.Tokens {
				offsets = append(offsets, offsets[len(offsets)-1]+int32(len(list)))
			}
			a.SparseTokens.Offsets, a.SparseTokens.Total = integers(offsets), len(tokens)
		}
	}
	return a
}

func (g *goldenCall) has(name string) bool { return g.arrays[name].data != nil }

// bitmap packs a row of blocks into words.
func (g *goldenCall) bitmap() (words []int32) {
	m := g.arrays["blocks"]
	for row := range slices.Chunk(m.data, m.shape[3]) {
		for bits := range slices.Chunk(row, 32) {
			var word uint32
			for i, bit := range bits {
				word |= uint32(bit) << i
			}
			words = append(words, int32(word))
		}
	}
	return words
}

// padded lays data of an array out as the reference does: [B, heads, Sq or Sk, dim] with 0
// past the end of a sequence. Gradients of options are as they are.
func (g *goldenCall) padded(t *testing.T, name string, data []float64) []float64 {
	t.Helper()
	cu, length, like := g.CuQ, g.Sq, "q"
	switch name {
	case "dbias", "dsinks", "attended_bias":
		return data
	case "dk", "dv", "attended_k":
		cu, length, like = g.CuK, g.Sk, "k"
	}
	if cu == nil {
		return data
	}
	shape := g.arrays[like].shape
	heads, total, dim := shape[1], shape[2], len(data)/(shape[1]*shape[2])
	out := make([]float64, g.B*heads*length*dim)
	for b := range g.B {
		first, n := int(cu[b]), int(cu[b+1]-cu[b])
		for h := range heads {
			copy(out[(b*heads+h)*length*dim:][:n*dim], data[(h*total+first)*dim:])
		}
	}
	return out
}

// judge compares one gradient of a tier with the gradient in the files.
func (g *goldenCall) judge(t *testing.T, name string, got, want []float64, all map[string]oracle.Gradient) {
	t.Helper()
	limits, expected := accuracy.Gradient(g.DType), map[string]struct {
		name   string
		width  int
		stored attention.DType
	}{
		"dq": {"dQ", g.HeadDim, g.DType}, "dk": {"dK", g.HeadDim, g.DType}, "dv": {"dV", g.HeadDimV, g.DType},
		"dbias": {"dBias", g.Sk, attention.F32}, "dsinks": {"dSinks", 1, attention.F32},
	}[name]
	low := all[expected.name]
	limits.Noise, limits.Stored = low.Noise, expected.stored
	x := make([]float32, len(got))
	for i, v := range got {
		x[i] = float32(v)
	}
	report := accuracy.Judge(limits, expected.width, x, want, low.Low)
	require.True(t, report.Pass(), "%s: %v", name, report.Reasons())
}

// golden computes a call, and its gradients if backward. It returns what golden files may have, by name.
func (e *engine) golden(t *testing.T, g *goldenCall, cfg attention.Config, backward bool) map[string][]float64 {
	t.Helper()
	op, err := e.op(cfg)
	require.NoError(t, err)
	var stream *vk.Stream
	of := memory(hostOnly)
	if e.dev != nil {
		stream = testdevice.Stream(t, e.dev, "golden gradients")
		of = func(bytes []byte) (*vk.Buffer, []byte) {
			b := testdevice.Buffer(t, e.dev, uint64(len(bytes)))
			require.NoError(t, stream.Upload(b, 0, bytes))
			return b, nil
		}
	}
	a := g.args(t, of)
	barrier := func() {
		if stream != nil {
			require.NoError(t, stream.Barrier())
		}
	}
	barrier()
	require.NoError(t, op.Forward(attention.OnStream(stream), a.Args))
	barrier()
	if backward {
		require.NoError(t, op.Backward(attention.OnStream(stream), a))
		barrier()
	}

	all := map[string][]float64{}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	rows := len(g.arrays["q"].data) / g.HeadDim
	for _, out := range []struct {
		name   string
		buffer *vk.Buffer
		host   []byte
		dtype  attention.DType
		n      int
	}{
		{"o", a.O.Buffer, a.O.Host, g.DType, rows * g.HeadDimV},
		{"lse", a.LSE.Buffer, a.LSE.Host, attention.F32, rows},
		{"dq", a.DQ.Buffer, a.DQ.Host, g.DType, len(g.arrays["q"].data)},
		{"dk", a.DK.Buffer, a.DK.Host, g.DType, len(g.arrays["k"].data)},
		{"dv", a.DV.Buffer, a.DV.Host, g.DType, len(g.arrays["v"].data)},
		{"dbias", a.DBias.Buffer, a.DBias.Host, attention.F32, len(g.arrays["bias"].data)},
		{"dsinks", a.DSinks.Buffer, a.DSinks.Host, attention.F32, len(g.arrays["sinks"].data)},
	} {
		if out.buffer == nil && out.host == nil {
			continue
		}
		if out.buffer != nil {
			out.host = make([]byte, out.n*out.dtype.Size())
			require.NoError(t, stream.Download(ctx, out.host, out.buffer, 0))
		}
		x := make([]float32, out.n)
		out.dtype.Decode(x, out.host)
		all[out.name] = g.padded(t, out.name, widen(x))
	}
	return all
}
