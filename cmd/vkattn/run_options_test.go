package main

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/score"
	"vkattn/cmd/vkattn/internal/npy"
	"vkattn/internal/half"
	"vkattn/internal/inputs"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// withOptions is one call with options, as arguments and as files and flags. Both
// are written down by each test, so that neither is made from the other.
type withOptions struct {
	t     *testing.T
	dir   string
	cfg   attention.Config
	args  attention.Args
	flags []string
}

// file writes a .npy file and names it with a flag.
func (f *withOptions) file(flag string, dtype npy.DType, shape []int, data []byte) {
	path := filepath.Join(f.dir, flag+".npy")
	out, err := os.Create(path)
	require.NoError(f.t, err)
	require.NoError(f.t, npy.Write(out, &npy.Array{DType: dtype, Shape: shape, Data: data}))
	require.NoError(f.t, out.Close())
	f.flag("--"+flag, path)
}

func (f *withOptions) flag(words ...string) { f.flags = append(f.flags, words...) }

// ints is a file of int32, and the vector of it.
func (f *withOptions) ints(flag string, shape []int, v ...int32) attention.Vector {
	data := littleEndian(v)
	if flag != "" {
		f.file(flag, npy.Int32, shape, data)
	}
	return attention.Vector{Host: data}
}

func littleEndian(v []int32) (out []byte) {
	for _, x := range v {
		out = binary.LittleEndian.AppendUint32(out, uint32(x))
	}
	return out
}

// floats is a file of random float32, and the vector of it.
func (f *withOptions) floats(flag string, seed uint64, shape ...int) attention.Vector {
	n := int64(1)
	for _, s := range shape {
		n *= int64(s)
	}
	data := inputs.New(n, attention.F32, inputs.Uniform, seed)
	f.file(flag, npy.Float32, shape, data)
	return attention.Vector{Host: data}
}

const (
	testD, testDv = 32, 64
	testPage      = 5
)

// base is 3 sequences of 7 rows and 33 keys, 4 query heads over 2.
func base(t *testing.T) *withOptions {
	return &withOptions{t: t, dir: t.TempDir(), cfg: attention.Config{DType: attention.F32, HeadDim: testD, HeadDimV: testDv},
		args: attention.Args{Shape: attention.Shape{B: 3, Hq: 4, Hkv: 2, Sq: 7, Sk: 33}}}
}

// tensors writes Q, K and V of these axes, [batch, heads, rows, dim] each.
func (f *withOptions) q(shape []int, strides attention.Strides) {
	f.tensor("q", &f.args.Q, shape, strides, 1)
}
func (f *withOptions) k(shape []int, strides attention.Strides) {
	f.tensor("k", &f.args.K, shape, strides, 2)
}
func (f *withOptions) v(shape []int, strides attention.Strides) {
	f.tensor("v", &f.args.V, shape, strides, 3)
}

func (f *withOptions) tensor(flag string, to *attention.Tensor, shape []int, strides attention.Strides, seed uint64) {
	*to = attention.Tensor{Host: f.floats(flag, seed, shape...).Host, Strides: strides}
}

func (f *withOptions) plainQ() { f.q([]int{3, 4, 7, testD}, attention.BHSD(4, 7, testD)) }

func (f *withOptions) plainKV() {
	f.k([]int{3, 2, 33, testD}, attention.BHSD(2, 33, testD))
	f.v([]int{3, 2, 33, testDv}, attention.BHSD(2, 33, testDv))
}

func (f *withOptions) plain() {
	f.plainQ()
	f.plainKV()
}

// packedQ has 3, 0 and 7 rows.
func (f *withOptions) packedQ() {
	f.q([]int{10, 4, testD}, attention.BSHD(4, 10, testD))
	f.args.Varlen = &attention.Varlen{CuQ: f.ints("cu-seqlens-q", []int{4}, 0, 3, 3, 10), TotalQ: 10}
}

// paged has 33, 4 and 16 keys in pages of 5; pages 1 and 0 are shared.
func (f *withOptions) paged(hnd bool) {
	const pages = 13
	axes := func(dim int) ([]int, attention.Strides) {
		if hnd {
			return []int{pages, 2, testPage, dim}, attention.BHSD(2, testPage, dim)
		}
		return []int{pages, testPage, 2, dim}, attention.BSHD(2, testPage, dim)
	}
	f.k(axes(testD))
	f.v(axes(testDv))
	if hnd {
		f.flag("--kv-layout", "HND")
	}
	f.table()
}

// tokensOfRows lists keys for each row of Q and KV head.
func (f *withOptions) tokensOfRows(batches, rows int) *attention.SparseTokens {
	const topK = 3
	var tokens []int32
	for i := range batches * rows * 2 * topK {
		tokens = append(tokens, int32(i*i*7%34-1))
	}
	return &attention.SparseTokens{Tokens: f.ints("sparse-tokens", []int{batches, rows, 2, topK}, tokens...), TopK: topK, PerRow: true}
}

func (f *withOptions) table() {
	if f.args.Varlen == nil {
		f.args.Varlen = &attention.Varlen{}
	}
	f.args.Varlen.UsedK = f.ints("seqused-k", []int{3}, 33, 4, 16)
	f.args.Pages = &attention.Pages{Stride: 8, PageSize: testPage, Count: 13,
		Table: f.ints("block-table", []int{3, 8}, 12, 1, 3, 2, 9, 8, 11, -7, 1, 99, 99, 99, 99, 99, 99, 99, 4, 0, 1, 12, 99, -1, -1, -1)}
}

// quantized writes K and V [3, 2, 33, ...] of a type, with a scale for each block of keys.
func (f *withOptions) quantized(k, v attention.KVType, block int) {
	f.cfg.KeyType, f.cfg.ValueType, f.cfg.KVBlock = k, v, block
	f.flag("--kv-dtype", k.String())
	if v != k {
		f.flag("--v-dtype", v.String())
	}
	groups, shape := 33, []int{3, 2}
	switch block {
	case attention.KVBlockHead:
		groups, shape = 2, nil
	case attention.KVBlockTensor:
		groups, shape = 1, nil
	}
	if block > 0 {
		groups = (33 + block - 1) / block
	}
	for _, t := range []struct {
		flag   string
		to     *attention.Tensor
		scales *attention.Vector
		kv     attention.KVType
		dim    int
		seed   uint64
	}{{"k", &f.args.K, &f.args.KScale, k, testD, 2}, {"v", &f.args.V, &f.args.VScale, v, testDv, 3}} {
		kv := t.kv
		const rows = 3 * 2 * 33
		wide := make([]float32, rows*t.dim)
		half.DecodeF32(wide, inputs.New(int64(len(wide)), attention.F32, inputs.Uniform, t.seed))
		n := kv.RowBytes(attention.F32, t.dim)
		data := make([]byte, rows*n)
		for r := range rows {
			dst, src := data[r*n:][:n], wide[r*t.dim:][:t.dim]
			problem.FormatOf(kv).Encode(dst, src)
		}
		dtype := npy.UInt8
		if kv == attention.KVInt8 {
			dtype = npy.Int8
		}
		f.file(t.flag, dtype, []int{3, 2, 33, n}, data)
		*t.to = attention.Tensor{Host: data, Strides: attention.BHSD(2, 33, t.dim)}
		if kv.Scaled() {
			scales := f.floats(t.flag+"-scale", t.seed+10, append(shape, groups)...)
			for i := range len(scales.Host) / 4 { // as small as scales of such numbers are
				x := math.Float32frombits(binary.LittleEndian.Uint32(scales.Host[4*i:]))
				x = (x + 1.5) / 200
				if kv == attention.KVFP8E5M2 {
					x /= 128
				}
				binary.LittleEndian.PutUint32(scales.Host[4*i:], math.Float32bits(x))
			}
			f.flags = f.flags[:len(f.flags)-2]
			f.file(t.flag+"-scale", npy.Float32, append(shape, groups), scales.Host)
			*t.scales = scales
		}
	}
}

var optionRuns = map[string]func(f *withOptions){
	"seqused": func(f *withOptions) {
		f.plain()
		f.cfg.Causal = attention.BottomRight
		f.flag("--causal", "bottom-right")
		f.args.Varlen = &attention.Varlen{UsedQ: f.ints("seqused-q", []int{3}, 7, 0, 2), UsedK: f.ints("seqused-k", []int{3}, 1, 33, 0)}
	},
	"cu-seqlens": func(f *withOptions) {
		f.packedQ()
		f.k([]int{60, 2, testD}, attention.BSHD(2, 60, testD))
		f.v([]int{60, 2, testDv}, attention.BSHD(2, 60, testDv))
		f.args.Varlen.CuK, f.args.Varlen.TotalK = f.ints("cu-seqlens-k", []int{4}, 2, 22, 22, 55), 60
		f.cfg.Causal = attention.TopLeft
		f.flag("--causal", "top-left")
	},
	"cu-seqlens-q alone, seqused-k": func(f *withOptions) {
		f.packedQ()
		f.plainKV()
		f.args.Varlen.UsedK = f.ints("seqused-k", []int{3}, 30, 2, 33)
	},
	"pages":         func(f *withOptions) { f.plainQ(); f.paged(false); f.flag("--page-size", "5") },
	"pages, hnd":    func(f *withOptions) { f.plainQ(); f.paged(true) },
	"pages, packed": func(f *withOptions) { f.packedQ(); f.paged(false) },
	"sparse tokens, padded": func(f *withOptions) {
		f.plain()
		f.ints("sparse-tokens", []int{3, 2, 3}, 5, -1, 32, 0, 1, 2, -1, -1, -1, 7, 7, -1, -1, 4, -1, 31, 30, 29)
		f.args.SparseTokens = &attention.SparseTokens{Offsets: f.ints("", nil, 0, 2, 5, 5, 7, 8, 11), Tokens: f.ints("", nil, 5, 32, 0, 1, 2, 7, 7, 4, 31, 30, 29), Total: 11}
	},
	"sparse tokens of each row": func(f *withOptions) {
		f.plain()
		f.cfg.Causal = attention.BottomRight
		f.flag("--causal", "bottom-right")
		f.args.SparseTokens = f.tokensOfRows(3, f.args.Sq)
	},
	"sparse tokens of each row, packed": func(f *withOptions) {
		f.packedQ()
		f.plainKV()
		f.args.SparseTokens = f.tokensOfRows(1, f.args.Varlen.TotalQ)
	},
	"sparse tokens, with offsets": func(f *withOptions) {
		f.plain()
		tokens := []int32{9, 5, 32, 0, 1, 2, 7, 8, 4, 31, 30, 29}
		f.args.SparseTokens = &attention.SparseTokens{Offsets: f.ints("sparse-offsets", []int{7}, 1, 3, 6, 6, 8, 9, 12), Tokens: f.ints("sparse-tokens", []int{12}, tokens...), Total: 12}
	},
	"window": func(f *withOptions) {
		f.plain()
		f.cfg.Window, f.cfg.Align = attention.WindowOf(4, 2), attention.TopLeft
		f.flag("--window", "4,2", "--align", "top-left")
	},
	"window, causal": func(f *withOptions) {
		f.plain()
		f.cfg.Window, f.cfg.Causal = attention.WindowOf(3, -1), attention.BottomRight
		f.flag("--window", "3,-1", "--causal", "bottom-right")
	},
	"softcap": func(f *withOptions) {
		f.plain()
		f.cfg.Softcap, f.cfg.Scale = 0.75, attention.ScaleOf(1)
		f.flag("--softcap", "0.75", "--scale", "1")
	},
	"modifiers with tables": func(f *withOptions) {
		f.plain()
		f.modifiers()
	},
	"dropout": func(f *withOptions) {
		f.plain()
		f.cfg.Dropout, f.args.DropoutSeed, f.args.DropoutOffset = 0.25, 1<<40+3, 9
		f.flag("--dropout", "0.25", "--dropout-seed", "1099511627779", "--dropout-offset", "9")
	},
	"alibi, sinks": func(f *withOptions) {
		f.plain()
		f.cfg.Align = attention.BottomRight
		f.flag("--align", "bottom-right")
		f.args.ALiBi, f.args.Sinks = f.floats("alibi", 7, 4), f.floats("sinks", 8, 4)
	},
	"bias of a head": func(f *withOptions) {
		f.plain()
		f.args.Bias = &attention.Bias{Tensor: attention.Tensor{Host: f.floats("bias", 9, 1, 4, 1, 33).Host}, DType: attention.F32, Batches: 1, Rows: 1}
	},
	"bias, whole, f16": func(f *withOptions) {
		f.plain()
		data := inputs.New(3*4*7*33, attention.F16, inputs.Normal, 9)
		f.file("bias", npy.Float16, []int{3, 4, 7, 33}, data)
		f.args.Bias = &attention.Bias{Tensor: attention.Tensor{Host: data}, DType: attention.F16}
	},
	"bias, bf16": func(f *withOptions) {
		f.plain()
		data := inputs.New(7*33, attention.BF16, inputs.Normal, 9)
		f.file("bias", npy.BFloat16, []int{1, 1, 7, 33}, data)
		f.args.Bias = &attention.Bias{Tensor: attention.Tensor{Host: data}, DType: attention.BF16, Batches: 1, Heads: 1}
	},
	"mask": func(f *withOptions) {
		f.plain()
		data := make([]byte, 3*7*33)
		r := rand.New(rand.NewPCG(1, 1))
		for i := range data {
			data[i] = byte(r.IntN(2))
		}
		f.file("mask", npy.Bool, []int{3, 1, 7, 33}, data)
		f.args.Mask = &attention.Mask{Tensor: attention.Tensor{Host: data}, Heads: 1}
	},
	"block mask": func(f *withOptions) {
		f.plain()
		// [1, 4, 1, 3]: one block of rows, three of keys
		f.file("block-mask", npy.UInt8, []int{1, 4, 1, 3}, []byte{1, 0, 1, 0, 2, 0, 0, 0, 0, 1, 1, 1})
		f.flag("--block-size", "16,16")
		f.args.Blocks = &attention.Blocks{Map: f.ints("", nil, 0b101, 0b010, 0, 0b111), BlockQ: 16, BlockK: 16, Batches: 1}
	},
	"fixed split": func(f *withOptions) { f.plain(); f.cfg.FixedSplit = 3; f.flag("--fixed-split", "3") },
	"int8":        func(f *withOptions) { f.plainQ(); f.quantized(attention.KVInt8, attention.KVInt8, 0) },
	"fp8":         func(f *withOptions) { f.plainQ(); f.quantized(attention.KVFP8, attention.KVFP8, 0) },
	"int8, a scale for 8 keys": func(f *withOptions) {
		f.plainQ()
		f.quantized(attention.KVInt8, attention.KVInt8, 8)
		f.flag("--kv-block", "8")
	},
	"fp8, a scale of a head": func(f *withOptions) {
		f.plainQ()
		f.quantized(attention.KVFP8, attention.KVInt8, attention.KVBlockHead)
		f.flag("--kv-block", "head")
	},
	"fp8-e5m2, one scale": func(f *withOptions) {
		f.plainQ()
		f.quantized(attention.KVFP8E5M2, attention.KVFP8E5M2, attention.KVBlockTensor)
		f.flag("--kv-block", "tensor")
	},
	"v-dim": func(f *withOptions) {
		f.plainQ()
		f.cfg.HeadDimV = 20
		f.k([]int{3, 2, 33, testD}, attention.BHSD(2, 33, testD))
		f.args.V = f.args.K
		f.flag("--v-dim", "20")
	},
	"v-dim, pages": func(f *withOptions) {
		f.packedQ()
		f.cfg.HeadDimV = testD
		f.k([]int{13, testPage, 2, testD}, attention.BSHD(2, testPage, testD))
		f.args.V = f.args.K
		f.table()
		f.flag("--v-dim", "32")
	},
	"fp8_ds_mla, v-dim, pages": func(f *withOptions) {
		f.cfg.HeadDim, f.cfg.HeadDimV, f.cfg.KeyType, f.cfg.ValueType = 576, 512, attention.KVFP8DSMLA, attention.KVFP8DSMLA
		f.args.Hkv = 1
		f.q([]int{3, 4, 7, 576}, attention.BHSD(4, 7, 576))
		wide := make([]float32, 13*testPage*576)
		half.DecodeF32(wide, inputs.New(int64(len(wide)), attention.F32, inputs.Uniform, 2))
		rows, _, err := attention.EncodeKV(attention.KVFP8DSMLA, 0, 13, 1, testPage, 576, wide)
		require.NoError(f.t, err)
		f.file("k", npy.UInt8, []int{13, testPage, 1, 656}, rows)
		f.args.K = attention.Tensor{Host: rows, Strides: attention.BHSD(1, testPage, 576)}
		f.args.V = f.args.K
		f.table()
		f.flag("--kv-dtype", "fp8_ds_mla", "--v-dim", "512")
	},
	"q8_0":          func(f *withOptions) { f.plainQ(); f.quantized(attention.KVQ8_0, attention.KVQ8_0, 0) },
	"q8_0 and q4_0": func(f *withOptions) { f.plainQ(); f.quantized(attention.KVQ8_0, attention.KVQ4_0, 0) },
	"fp8 and int8":  func(f *withOptions) { f.plainQ(); f.quantized(attention.KVFP8, attention.KVInt8, 0) },
	"q4_1 and q5_0": func(f *withOptions) { f.plainQ(); f.quantized(attention.KVQ4_1, attention.KVQ5_0, 0) },
	"q5_1 and iq4":  func(f *withOptions) { f.plainQ(); f.quantized(attention.KVQ5_1, attention.KVIQ4NL, 0) },
	"fp8-e5m2":      func(f *withOptions) { f.plainQ(); f.quantized(attention.KVFP8E5M2, attention.KVFP8E5M2, 0) },
	"q4_0":          func(f *withOptions) { f.plainQ(); f.quantized(attention.KVQ4_0, attention.KVQ4_0, 0) },
	"much at once": func(f *withOptions) {
		f.packedQ()
		f.paged(false)
		f.cfg.Causal, f.cfg.Window, f.cfg.Softcap = attention.BottomRight, attention.WindowOf(9, -1), 2
		f.flag("--causal", "bottom-right", "--window", "9,-1", "--softcap", "2")
		f.args.ALiBi, f.args.Sinks = f.floats("alibi", 7, 4), f.floats("sinks", 8, 4)
		f.args.Bias = &attention.Bias{Tensor: attention.Tensor{Host: f.floats("bias", 9, 3, 1, 1, 33).Host}, DType: attention.F32, Heads: 1, Rows: 1}
	},
}

// modifiers adds a score and a mask modifier with their tables to a padded call.
func (f *withOptions) modifiers() {
	f.cfg.ScoreMod = score.Add(score.S, score.FloatTable("pairs", 2).At(score.Head, score.Mod(score.J, score.Int(5))))
	f.cfg.MaskMod = score.And(score.Causal(), score.Documents(score.IntTable("doc", 1)))
	var doc []int32
	for i := range 33 {
		doc = append(doc, int32(i/8))
	}
	f.args.Tables = []attention.Table{{Name: "doc", Dims: [3]int{33}, Vector: f.ints("doc", []int{33}, doc...)},
		{Name: "pairs", Dims: [3]int{4, 5}, Vector: f.floats("pairs", 3, 4, 5)}}
	for i, word := range f.flags { // --doc FILE becomes --table doc=FILE
		if word == "--doc" || word == "--pairs" {
			f.flags[i], f.flags[i+1] = "--table", word[2:]+"="+f.flags[i+1]
		}
	}
	f.flag("--score-mod", "s + pairs[h, j % 5]", "--mask-mod", "j <= i && doc[i] == doc[j]")
}

func TestRunWithOptionsAgreesWithTheReference(t *testing.T) {
	for name, build := range optionRuns {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkOptions(t, build, "--device", "cpu")
		})
	}
}

// On a device one call has most of them: kernels have tests of their own.
func TestRunWithOptionsOnADevice(t *testing.T) {
	quickDriver(t)
	for _, name := range []string{"seqused", "pages, packed", "q8_0", "v-dim, pages", "much at once"} {
		t.Run(name, func(t *testing.T) { checkOptions(t, optionRuns[name], "--tier", "scalar") })
	}
}

func checkOptions(t *testing.T, build func(*withOptions), where ...string) {
	f := base(t)
	build(f)
	at := func(name string) string { return filepath.Join(f.dir, name+".npy") }
	stdout, _ := succeeds(t, slices.Concat([]string{"run", "--json", "--o", at("o"), "--lse", at("lse")}, where, f.flags)...)
	require.Contains(t, stdout, `"options": [`)

	s, dv := f.args.Shape, f.cfg.HeadDimV
	ref, refLSE, err := attention.Reference(f.cfg, f.args)
	require.NoError(t, err)
	sequences, err := tensors.Sequences(f.args)
	require.NoError(t, err)
	packed := f.args.Varlen != nil && f.args.Varlen.CuQ.Given()
	shape, lseShape := []int{s.B, s.Hq, s.Sq, dv}, []int{s.B, s.Hq, s.Sq}
	if packed {
		shape, lseShape = []int{f.args.Varlen.TotalQ, s.Hq, dv}, []int{s.Hq, f.args.Varlen.TotalQ}
	}
	o, lse := readFloats(t, at("o"), shape), readFloats(t, at("lse"), lseShape)
	seen := 0
	for b, q := range sequences {
		for h := range s.Hq {
			for row := range s.Sq {
				from := (b*s.Hq+h)*s.Sq + row
				to, lseTo := from, from
				if packed {
					if row >= q.Rows {
						continue
					}
					to, lseTo = (q.Row+row)*s.Hq+h, h*f.args.Varlen.TotalQ+q.Row+row
				}
				got, want := o[to*dv:][:dv], ref[from*dv:][:dv]
				for i := range got {
					require.InDelta(t, want[i], got[i], 1e-4, "sequence %d, head %d, row %d, column %d", b, h, row, i)
				}
				if math.IsInf(refLSE[from], -1) {
					require.Equal(t, float32(math.Inf(-1)), lse[lseTo])
				} else {
					require.InDelta(t, refLSE[from], lse[lseTo], 1e-4)
					seen++
				}
			}
		}
	}
	require.NotZero(t, seen)
}
