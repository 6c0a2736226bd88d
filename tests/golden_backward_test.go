package tests

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/accuracy"
	"vkattn/attention/cases"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// Golden gradients: inputs and gradients that golden/backward/make.py writes, compared with
// the reference and with every tier that computes gradients.

const goldenBackwardDir = "golden/backward"

// goldenBackward describes a problem. <name>.npz has its tensors and their gradients: q, k,
// v, do, dlse, dq, dk and dv, and of the options alibi, sinks, bias, mask, blocks, dbias and
// dsinks. attended_q, attended_k and attended_bias have 0 where a gradient is exactly 0.
// Tensors of packed sequences have one batch.
type goldenBackward struct {
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

	arrays map[string]npyArray
}

func readGoldenBackward(t *testing.T) (manifest []*goldenBackward) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(goldenBackwardDir, "manifest.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &manifest))
	for _, g := range manifest {
		g.arrays, err = readNpz(filepath.Join(goldenBackwardDir, g.Name+".npz"))
		require.NoError(t, err)
	}
	files, err := filepath.Glob(filepath.Join(goldenBackwardDir, "*.npz"))
	require.NoError(t, err)
	require.Len(t, files, len(manifest))
	return manifest
}

func (g *goldenBackward) config() attention.Config {
	cfg := attention.Config{DType: g.DType, HeadDim: g.HeadDim, HeadDimV: g.HeadDimV, Causal: g.Causal, Align: g.Align, Softcap: g.Softcap}
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
func (g *goldenBackward) args(t *testing.T, of memory) attention.BackwardArgs {
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
		x.Buffer, x.Host = of(encode(dtype, g.arrays[name].data))
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
	a.Q, a.K, a.V, a.DO = tensor("q", g.DType), tensor("k", g.DType), tensor("v", g.DType), tensor("do", g.DType)
	a.O, a.DQ, a.DK, a.DV = output("do", g.DType), output("q", g.DType), output("k", g.DType), output("v", g.DType)
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
	return a
}

func (g *goldenBackward) has(name string) bool { return g.arrays[name].data != nil }

// bitmap packs a row of blocks into words.
func (g *goldenBackward) bitmap() (words []int32) {
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
func (g *goldenBackward) padded(t *testing.T, name string, data []float64) []float64 {
	t.Helper()
	cu, length := g.CuQ, g.Sq
	switch name {
	case "dbias", "dsinks", "attended_bias":
		return data
	case "dk", "dv", "attended_k":
		cu, length = g.CuK, g.Sk
	}
	if cu == nil {
		return data
	}
	shape := g.arrays[name].shape
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

// golden returns the gradients of the files, by name.
func (g *goldenBackward) golden(t *testing.T) map[string][]float64 {
	t.Helper()
	all := map[string][]float64{}
	for _, name := range []string{"dq", "dk", "dv", "dbias", "dsinks"} {
		if x, ok := g.arrays[name]; ok {
			all[name] = g.padded(t, name, x.data)
		}
	}
	return all
}

func TestReferenceBackwardIsGolden(t *testing.T) {
	for _, g := range readGoldenBackward(t) {
		t.Run(g.Name, func(t *testing.T) {
			got, err := attention.ReferenceBackward(g.config(), g.args(t, hostOnly))
			require.NoError(t, err)
			gradients := map[string][]float64{"dq": got.DQ, "dk": got.DK, "dv": got.DV, "dbias": got.DBias, "dsinks": got.DSinks}
			maps.DeleteFunc(gradients, func(_ string, x []float64) bool { return x == nil })
			want := g.golden(t)
			require.ElementsMatch(t, slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(gradients)))
			for name, x := range want {
				closeTo(t, x, gradients[name], name)
			}
		})
	}
}

// TestTiersComputeGoldenGradients judges every tier by the rules for gradients, with the
// files as the truth. Rows that attend to nothing and keys and elements of the bias that no
// row attends to must have gradients of exactly 0.
func TestTiersComputeGoldenGradients(t *testing.T) {
	s := openTiers(t)
	manifest := readGoldenBackward(t)
	for _, tt := range s.available() {
		if !computesGradients(tt.Tier) || leftToGPUs(tt) {
			continue
		}
		t.Run(tt.String(), func(t *testing.T) {
			e := s.newEngine(tt)
			defer func() { require.NoError(t, e.close()) }()
			for i, g := range manifest {
				// A device compiles pipelines for every case: three drivers on the CPU take turns,
				// and those that compile longest have theirs in make test-full.
				turn := e.dev == nil || (s.open || i%3 == s.turn) && testlevel.Share(i/3%4 == 0 && s.name != "swiftshader" && s.name != "lavapipe")
				if g.DType != tt.DType || !turn || !hasBackwardKernels(cases.Case{D: g.HeadDim, Dv: g.HeadDimV}, tt) {
					continue
				}
				t.Run(g.Name, func(t *testing.T) {
					cfg := g.config()
					cfg.Tier, cfg.Tuning = tt.Tier, attention.TuningOff
					got := e.goldenGradients(t, g, cfg)
					low, err := accuracy.LowBackward(cfg, g.args(t, hostOnly))
					require.NoError(t, err)
					for name, want := range g.golden(t) {
						g.judge(t, name, got[name], want, &low)
						g.requireZeros(t, name, got[name])
					}
				})
			}
		})
	}
}

// judge compares one gradient of a tier with the gradient in the files.
func (g *goldenBackward) judge(t *testing.T, name string, got, want []float64, all *accuracy.LowGradients) {
	t.Helper()
	limits, width := accuracy.Gradient(g.DType), g.HeadDim
	var low []float32
	switch name {
	case "dq":
		low, limits.Noise = all.DQ, all.Noise.DQ
	case "dk":
		low, limits.Noise = all.DK, all.Noise.DK
	case "dv":
		low, limits.Noise, width = all.DV, all.Noise.DV, g.HeadDimV
	case "dbias":
		low, limits.Noise, width, limits.Stored = all.DBias, all.Noise.DBias, g.Sk, attention.F32
	case "dsinks":
		low, limits.Noise, width, limits.Stored = all.DSinks, all.Noise.DSinks, 1, attention.F32
	}
	x := make([]float32, len(got))
	for i, v := range got {
		x[i] = float32(v)
	}
	report := accuracy.Judge(limits, width, x, want, low)
	require.True(t, report.Pass(), "%s: %v", name, report.Reasons())
}

// requireZeros checks the gradient of what takes no part in attention.
func (g *goldenBackward) requireZeros(t *testing.T, name string, got []float64) {
	t.Helper()
	of, ok := map[string]string{"dq": "q", "dk": "k", "dv": "k", "dbias": "bias"}[name]
	if !ok {
		return
	}
	attended := g.padded(t, "attended_"+of, g.arrays["attended_"+of].data)
	dim := len(got) / len(attended)
	for i, x := range attended {
		if x == 0 {
			require.Equal(t, make([]float64, dim), got[i*dim:][:dim], "%s: row %d", name, i)
		}
	}
}

// goldenGradients computes forward and backward of a problem and returns its gradients.
func (e *engine) goldenGradients(t *testing.T, g *goldenBackward, cfg attention.Config) map[string][]float64 {
	t.Helper()
	op, err := e.op(cfg)
	require.NoError(t, err)
	var stream *vk.Stream
	of := memory(hostOnly)
	if e.dev != nil {
		stream, err = e.dev.NewStream("golden gradients")
		require.NoError(t, err)
		defer func() { require.NoError(t, stream.Close()) }()
		of = func(bytes []byte) (*vk.Buffer, []byte) {
			b, err := e.dev.NewBuffer(uint64(len(bytes)), vk.BufferOptions{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, b.Close()) })
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
	require.NoError(t, op.Forward(stream, a.Args))
	barrier()
	require.NoError(t, op.Backward(stream, a))
	barrier()

	all := map[string][]float64{}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, out := range []struct {
		name   string
		buffer *vk.Buffer
		host   []byte
		dtype  attention.DType
	}{
		{"dq", a.DQ.Buffer, a.DQ.Host, g.DType},
		{"dk", a.DK.Buffer, a.DK.Host, g.DType},
		{"dv", a.DV.Buffer, a.DV.Host, g.DType},
		{"dbias", a.DBias.Buffer, a.DBias.Host, attention.F32},
		{"dsinks", a.DSinks.Buffer, a.DSinks.Host, attention.F32},
	} {
		n := len(g.arrays[out.name].data)
		if n == 0 {
			continue
		}
		if out.buffer != nil {
			out.host = make([]byte, n*out.dtype.Size())
			require.NoError(t, stream.Download(ctx, out.host, out.buffer, 0))
		}
		x := make([]float32, n)
		out.dtype.Decode(x, out.host)
		all[out.name] = g.padded(t, out.name, widen(x))
	}
	require.Len(t, all, len(g.golden(t)))
	return all
}
