package tests

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/half"
	"vkattn/internal/oracle"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/internal/testlevel"
)

// Golden options: outputs and gradients of every option, alone and in pairs, that golden/options/make.py writes,
// compared with the reference, the CPU tier and tier scalar. Inputs are not in files: both programs compute them.

const goldenOptionsDir = "golden/options"

// goldenOption is a case of golden/options/cases.json.
type goldenOption struct {
	goldenCall
	Bias    []int `json:"bias"` // batches, heads and rows; null: none
	Mask    []int `json:"mask"`
	Blocks  []int `json:"blocks"` // batches and heads
	ALiBi   bool  `json:"has_alibi"`
	Sinks   bool  `json:"has_sinks"`
	DLSE    bool  `json:"has_dlse"`
	Grad    bool  `json:"has_gradients"`
	Outputs map[string]struct {
		First int   `json:"first"` // element of outputs.f32
		Shape []int `json:"shape"`
	} `json:"outputs"`
}

func readGoldenOptions(t *testing.T) (all []*goldenOption) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(goldenOptionsDir, "cases.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &all))
	data, err := os.ReadFile(filepath.Join(goldenOptionsDir, "outputs.f32"))
	require.NoError(t, err)
	for _, g := range all {
		g.makeInputs(t)
		for name, out := range g.Outputs {
			x := make([]float64, count(out.Shape))
			for i := range x {
				x[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(data[4*(out.First+i):])))
			}
			g.arrays[name] = npyArray{out.Shape, x}
		}
	}
	return all
}

// hashed returns words of SplitMix64, whose seed is the FNV-1a hash of case and tensor.
func (g *goldenOption) hashed(tensor string, n int) []uint64 {
	seed := uint64(0xcbf29ce484222325)
	for _, b := range []byte(g.Name + "/" + tensor) {
		seed = (seed ^ uint64(b)) * 0x100000001b3
	}
	words := make([]uint64, n)
	for i := range words {
		z := seed + uint64(i+1)*0x9e3779b97f4a7c15
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		words[i] = z ^ z>>31
	}
	return words
}

func count(shape []int) int {
	n := 1
	for _, x := range shape {
		n *= x
	}
	return n
}

// number is between -2 and 2, with so many bits that the type has it exactly.
func number(word uint64, dtype attention.DType) float64 {
	bits := map[attention.DType]int{attention.F32: 23, attention.F16: 10, attention.BF16: 7}[dtype]
	return math.Ldexp(2*float64(word>>(64-bits))+1-math.Ldexp(1, bits), 1-bits)
}

// scaleOf is 64 to 127 units.
func scaleOf(word uint64, unit float64) float64 { return (float64(word>>58) + 64) * unit }

// makeInputs computes the inputs of a case.
func (g *goldenOption) makeInputs(t *testing.T) {
	t.Helper()
	g.arrays, g.raw = map[string]npyArray{}, map[string][]byte{}
	set := func(name string, value func(word uint64) float64, shape ...int) {
		x := npyArray{shape, make([]float64, count(shape))}
		for i, word := range g.hashed(name, len(x.data)) {
			x.data[i] = value(word)
		}
		g.arrays[name] = x
	}
	numbers := func(dtype attention.DType) func(uint64) float64 {
		return func(word uint64) float64 { return number(word, dtype) }
	}
	bit := func(word uint64) float64 {
		if word%8 < 5 {
			return 1
		}
		return 0
	}
	batches, rows := g.B, g.Sq
	if g.CuQ != nil {
		batches, rows = 1, int(g.CuQ[g.B])
	}
	kvBatches, keys := g.B, g.Sk
	switch {
	case g.PageSize > 0:
		kvBatches, keys = g.PageCount, g.PageSize
	case g.CuK != nil:
		kvBatches, keys = 1, int(g.CuK[g.B])
	}
	set("q", numbers(g.DType), batches, g.Hq, rows, g.HeadDim)
	set("k", numbers(g.DType), kvBatches, g.Hkv, keys, g.HeadDim)
	set("v", numbers(g.DType), kvBatches, g.Hkv, keys, g.HeadDimV)
	if g.KV != attention.KVSame {
		g.quantized("k", kvBatches, keys, g.HeadDim)
		g.quantized("v", kvBatches, keys, g.HeadDimV)
	}
	if g.Grad {
		set("do", numbers(g.DType), batches, g.Hq, rows, g.HeadDimV)
	}
	if g.DLSE {
		set("dlse", numbers(attention.F32), batches, g.Hq, rows)
	}
	if g.ALiBi {
		set("alibi", func(word uint64) float64 { return math.Abs(number(word, attention.F32)) / 4 }, g.Hq)
	}
	if g.Sinks {
		set("sinks", numbers(attention.F32), g.Hq)
	}
	if g.Bias != nil {
		dtype, err := attention.ParseDType(g.BiasDType)
		require.NoError(t, err)
		set("bias", numbers(dtype), g.Bias[0], g.Bias[1], g.Bias[2], g.Sk)
		x := g.arrays["bias"].data
		for i, word := range g.hashed("away", len(x)) {
			if word%32 == 0 {
				x[i] = math.Inf(-1)
			}
		}
	}
	if g.Mask != nil {
		set("mask", bit, g.Mask[0], g.Mask[1], g.Mask[2], g.Sk)
		clear(g.arrays["mask"].data[(g.Mask[2]-1)*g.Sk:][:g.Sk]) // a row without keys
	}
	if g.Blocks != nil {
		n := (g.Sk + g.BlockK - 1) / g.BlockK
		set("blocks", bit, g.Blocks[0], g.Blocks[1], (g.Sq+g.BlockQ-1)/g.BlockQ, n)
		clear(g.arrays["blocks"].data[n:][:n])
	}
}

// quantized makes the memory of K or V of a quantized type.
func (g *goldenOption) quantized(name string, batches, keys, dim int) {
	n := batches * g.Hkv * keys
	words := g.hashed(name, n*dim)
	switch g.KV {
	case attention.KVInt8, attention.KVFP8, attention.KVFP8E5M2:
		b := make([]byte, n*dim)
		unit := 0x1p-13
		for i := range b {
			b[i] = byte(words[i])
			switch g.KV { // numbers up to 2^5; Inf and NaN are not among them
			case attention.KVFP8:
				b[i], unit = b[i]&0x80|b[i]%0x60, 0x1p-11
			case attention.KVFP8E5M2:
				b[i], unit = b[i]&0x80|b[i]%0x50, 0x1p-11
			}
		}
		block := max(g.KVBlock, 1)
		count := batches * g.Hkv * ((keys + block - 1) / block)
		switch g.KVBlock {
		case attention.KVBlockHead:
			count = g.Hkv
		case attention.KVBlockTensor:
			count = 1
		}
		var scales []byte
		for _, word := range g.hashed(name+"scale", count) {
			scales = binary.LittleEndian.AppendUint32(scales, math.Float32bits(float32(scaleOf(word, unit))))
		}
		g.raw[name], g.raw[name+"scale"] = b, scales
	default:
		blocks := n * dim / 32
		fifth, minima := g.hashed(name+"fifth", blocks), g.hashed(name+"minimum", blocks)
		numbers := map[attention.KVType]int{attention.KVQ4_1: 16, attention.KVQ5_0: 32, attention.KVQ5_1: 32}[g.KV] // with a minimum or fifth bits
		bytes, unit := 16, 0x1p-9
		switch {
		case g.KV == attention.KVQ8_0:
			bytes, unit = 32, 0x1p-13
		case g.KV == attention.KVIQ4NL:
			unit = 0x1p-13
		case numbers == 32:
			unit = 0x1p-10
		}
		var b []byte
		half16 := func(x float64) { b = binary.LittleEndian.AppendUint16(b, half.F16FromFloat32(float32(x))) }
		for i, word := range g.hashed(name+"scale", blocks) {
			half16(scaleOf(word, unit))
			if g.KV == attention.KVQ4_1 || g.KV == attention.KVQ5_1 {
				half16(-scaleOf(minima[i], unit*float64(numbers)/2))
			}
			if numbers == 32 {
				b = binary.LittleEndian.AppendUint32(b, uint32(fifth[i]))
			}
			for _, w := range words[i*bytes:][:bytes] {
				b = append(b, byte(w))
			}
		}
		g.raw[name] = b
	}
}

// rows are the rows that exist, and where each is in a padded tensor.
func (g *goldenOption) rows(t *testing.T) (sample []attention.Rows, at []int) {
	t.Helper()
	sample, err := tensors.ExistingRows(g.args(t, hostOnly).Args)
	require.NoError(t, err)
	for _, s := range sample {
		for _, r := range s.Rows {
			at = append(at, (s.B*g.Hq+s.H)*g.Sq+r)
		}
	}
	return sample, at
}

// gathered are some rows of a padded tensor.
func gathered(x []float64, at []int, width int) (out []float64) {
	for _, row := range at {
		out = append(out, x[row*width:][:width]...)
	}
	return out
}

// TestReferenceOfOptionsIsGolden allows the rounding of the files to float32.
func TestReferenceOfOptionsIsGolden(t *testing.T) {
	testlevel.HostOnly(t)
	for _, g := range readGoldenOptions(t) {
		t.Run(g.Name, func(t *testing.T) {
			a := g.args(t, hostOnly)
			got := map[string][]float64{}
			var err error
			got["o"], got["lse"], err = attention.Reference(g.config(), a.Args)
			require.NoError(t, err)
			if g.Grad {
				x, err := attention.ReferenceBackward(g.config(), a)
				require.NoError(t, err)
				got["dq"], got["dk"], got["dv"], got["dbias"], got["dsinks"] = x.DQ, x.DK, x.DV, x.DBias, x.DSinks
			}
			_, at := g.rows(t)
			for name := range g.Outputs {
				want, have := g.padded(t, name, g.arrays[name].data), got[name]
				switch name {
				case "o":
					want, have = gathered(want, at, g.HeadDimV), gathered(have, at, g.HeadDimV)
				case "lse":
					want, have = gathered(want, at, 1), gathered(have, at, 1)
				}
				require.Len(t, have, len(want), name)
				for i, w := range want {
					if x := have[i]; x != w && !(math.Abs(x-w) <= 0x1.01p-24*math.Abs(w)+1e-12) {
						t.Fatalf("%s: element %d is %v, the file has %v", name, i, x, w)
					}
				}
			}
		})
	}
}

// TestTiersComputeGoldenOptions judges the CPU tier and tier scalar by the accuracy rules, with the files as the
// truth.
func TestTiersComputeGoldenOptions(t *testing.T) {
	s := openTiers(t)
	all := readGoldenOptions(t)
	for _, tt := range s.available() {
		if tt.Tier != attention.TierCPU && tt.Tier != attention.TierScalar {
			continue
		}
		t.Run(tt.String(), func(t *testing.T) {
			e := s.newEngine(tt)
			defer func() { require.NoError(t, e.close()) }()
			for i, g := range all {
				// A device compiles a pipeline for every case, and up to six for its gradients: drivers on the
				// CPU take turns, and compute the gradients of one case in four.
				turn := i / 3 % 3
				if g.DType != tt.DType || e.dev != nil && (!s.open && turn != s.turn || !testlevel.Share(i/9%4 == 0)) {
					continue
				}
				backward := g.Grad && (e.dev == nil || s.open || i/9%4 == 1)
				t.Run(g.Name, func(t *testing.T) { g.judgeAll(t, e, tt.Tier, backward) })
			}
		})
	}
}

// judgeAll computes a case on a tier and judges its outputs, and its gradients if backward.
func (g *goldenOption) judgeAll(t *testing.T, e *engine, tier attention.Tier, backward bool) {
	t.Helper()
	cfg := g.config()
	cfg.Tier, cfg.Tuning = tier, attention.TuningOff
	got := e.golden(t, &g.goldenCall, cfg, backward)
	sample, at := g.rows(t)
	a := g.args(t, hostOnly)
	lowO, lowLSE, err := oracle.Low(problem.Config(cfg), a.Args, sample)
	require.NoError(t, err)
	noiseO, noiseLSE, err := oracle.Noise(problem.Config(cfg), a.Args, sample)
	require.NoError(t, err)
	judge := func(name string, limits accuracy.Limits, width int, low []float32, noise []float64) {
		limits.Noise = noise
		var x []float32
		for _, v := range gathered(got[name], at, width) {
			x = append(x, float32(v))
		}
		report := accuracy.Judge(limits, width, x, gathered(g.padded(t, name, g.arrays[name].data), at, width), low)
		require.True(t, report.Pass(), "%s: %v", name, report.Reasons())
	}
	judge("o", accuracy.Forward(g.DType), g.HeadDimV, lowO, noiseO)
	judge("lse", accuracy.ForwardLSE(g.DType), 1, lowLSE, noiseLSE)
	if !backward {
		return
	}
	low, err := oracle.LowBackward(problem.Config(cfg), a)
	require.NoError(t, err)
	for name := range g.Outputs {
		if name != "o" && name != "lse" {
			g.judge(t, name, got[name], g.padded(t, name, g.arrays[name].data), low)
		}
	}
}
