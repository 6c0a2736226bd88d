package attention_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/cases"
	"vkattn/internal/half"
	"vkattn/internal/inputs"
	"vkattn/internal/problem"
	"vkattn/internal/testlevel"
)

// Kernel sets with fused multiply-add give the same bits, whatever their vectors, groups and
// blocks of rows. The others are held to the rules of package accuracy.
func TestCPUBitsDoNotDependOnKernels(t *testing.T) {
	testlevel.HostOnly(t)
	eachOptions(t, 30, func(t *testing.T, c cases.Case, dtype attention.DType) {
		p := newOptions(t, c, dtype)
		var fused [][]byte
		attention.EachKernelSet(t, func(t *testing.T, name string) {
			after := computed(t, p, p.Image)
			v, err := accuracy.Verify(problem.Config(onCPU(p)), p.HostArgs(after), accuracy.Options{Rows: 200})
			require.NoError(t, err)
			require.True(t, v.Pass(), "%v", v)
			switch {
			case name == "plain":
			case fused == nil:
				fused = after
			default:
				require.NoError(t, p.Same(fused, after))
			}
		})
	})
}

func TestCPUBitsOfOptionsDoNotDependOnGOMAXPROCS(t *testing.T) {
	testlevel.HostOnly(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	eachOptions(t, 30, func(t *testing.T, c cases.Case, dtype attention.DType) {
		p := newOptions(t, c, dtype)
		runtime.GOMAXPROCS(1)
		one := computed(t, p, p.Image)
		for _, n := range []int{3, 64} {
			runtime.GOMAXPROCS(n)
			require.NoError(t, p.Same(one, computed(t, p, p.Image)), "GOMAXPROCS %d", n)
		}
	})
}

// Keys of float32 are read in place where they are aligned.
func TestCPUKeysAtAnyAddress(t *testing.T) {
	testlevel.HostOnly(t)
	p := newProblem(attention.Config{DType: attention.F32, HeadDim: 37}, attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 50, Sk: 300}, attention.BSHD, 4)
	o, lse := p.run(t)
	for shift := 1; shift < 4; shift++ {
		q := *p
		for _, tensor := range []*attention.Tensor{&q.Q, &q.K, &q.V, &q.O} {
			moved := make([]byte, len(tensor.Host)+shift)
			copy(moved[shift:], tensor.Host)
			tensor.Host = moved[shift:]
		}
		o1, lse1 := q.run(t)
		sameBits(t, o, o1, "O, %d bytes on", shift)
		sameBits(t, lse, lse1, "LSE, %d bytes on", shift)
	}
}

// wildRows are biases of rows whose scores float32 hardly holds, by key.
var wildRows = map[string]func(key int) float32{
	"all as low as they go":    func(int) float32 { return -math.MaxFloat32 },
	"all but one as low":       func(key int) float32 { return []float32{-math.MaxFloat32, 0}[b2i(key == 170)] },
	"low, then not":            func(key int) float32 { return []float32{-math.MaxFloat32, 0}[b2i(key > 140)] },
	"all as high as they go":   func(int) float32 { return 3e38 },
	"both ends":                func(key int) float32 { return []float32{-3e38, 3e38}[key%2] },
	"a billion":                func(key int) float32 { return 1e9 + 64*float32(key%3) },
	"minus a billion":          func(key int) float32 { return -1e9 + 64*float32(key%3) },
	"just below the limit":     func(key int) float32 { return 0x1p18 - 10 - float32(key%5) },
	"just above the limit":     func(key int) float32 { return 0x1p18 + 10 - float32(key%5) },
	"across the limit":         func(key int) float32 { return 0x1p18 - 150 + float32(key) },
	"across the limit, down":   func(key int) float32 { return -0x1p18 + 150 - float32(key) },
	"across it by two tiles":   func(key int) float32 { return []float32{1, -0x1p20}[b2i(key < 128)] },
	"nothing, then something":  func(key int) float32 { return []float32{float32(math.Inf(-1)), 1}[b2i(key > 130)] },
	"nothing":                  func(int) float32 { return float32(math.Inf(-1)) },
	"rising":                   func(key int) float32 { return 3 * float32(key) },
	"falling":                  func(key int) float32 { return -3 * float32(key) },
	"far below the first key":  func(key int) float32 { return []float32{-200, 0}[b2i(key == 0)] },
	"the first key far below":  func(key int) float32 { return []float32{0, -1e6}[b2i(key == 0)] },
	"the first key -Inf":       func(key int) float32 { return []float32{0, float32(math.Inf(-1))}[b2i(key == 0)] },
	"ordinary":                 func(key int) float32 { return float32(key%7) / 3 },
	"the smallest there are":   func(key int) float32 { return math.SmallestNonzeroFloat32 * float32(key) },
	"one as high as they go":   func(key int) float32 { return []float32{0, math.MaxFloat32}[b2i(key == 131)] },
	"alternately far and near": func(key int) float32 { return []float32{5, -1e30}[key%2] },
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Each row is right for any scores, and its bits do not depend on the scores of the rows
// around it.
func TestCPURowsOfWildScores(t *testing.T) {
	testlevel.HostOnly(t)
	const keys, d = 290, 16
	names := make([]string, 0, len(wildRows))
	for name := range wildRows {
		names = append(names, name)
	}
	shape := func(rows int) attention.Shape { return attention.Shape{B: 1, Hq: 1, Sq: rows, Sk: keys} }
	cfg := attention.Config{DType: attention.F32, HeadDim: d}
	one := newProblem(cfg, shape(1), attention.BHSD, 5)
	q := make([]float32, d) // so that biases are the scores, exactly
	run := func(rows []string) (o, lse []float32, refO, refLSE []float64) {
		p := newProblem(cfg, shape(len(rows)), attention.BHSD, 5)
		p.K, p.V = one.K, one.V
		bias := make([]float32, 0, len(rows)*keys)
		for r, name := range rows {
			p.viewQ().WriteRow(q, 0, 0, r)
			for key := range keys {
				bias = append(bias, wildRows[name](key))
			}
		}
		p.Bias = &attention.Bias{Tensor: attention.Tensor{Host: make([]byte, 4*len(bias))}, DType: attention.F32}
		half.EncodeF32(p.Bias.Host, bias)
		o, lse = p.run(t)
		refO, refLSE, err := attention.Reference(p.cfg, p.Args)
		require.NoError(t, err)
		return o, lse, refO, refLSE
	}
	attention.EachKernelSet(t, func(t *testing.T, _ string) {
		const seed = 3
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 0))
		for range 5 {
			r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
			o, lse, refO, refLSE := run(names)
			for i, name := range names {
				alone, lseAlone, _, _ := run([]string{name})
				sameBits(t, alone, o[i*d:][:d], "O of %q", name)
				sameBits(t, lseAlone, lse[i:][:1], "LSE of %q", name)
				if math.IsInf(refLSE[i], -1) {
					require.True(t, math.IsInf(float64(lse[i]), -1), "LSE of %q is %v", name, lse[i])
				} else {
					require.InDelta(t, refLSE[i], float64(lse[i]), 1e-6*(1+math.Abs(refLSE[i])), "LSE of %q", name)
				}
				for j := range d {
					require.InDelta(t, refO[i*d+j], float64(o[i*d+j]), 1e-5, "O of %q, column %d", name, j)
				}
			}
		}
	})
}

// For such scores a row's bits show where tiles end. Tiles end at the same keys whatever
// key a block's window begins with.
func TestCPUTilesDoNotDependOnBlocks(t *testing.T) {
	testlevel.HostOnly(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	const n = 600
	cfg := attention.Config{DType: attention.F32, HeadDim: 16, Causal: attention.TopLeft, Window: attention.WindowOf(170, 0)}
	p := newProblem(cfg, attention.Shape{B: 1, Hq: 1, Sq: n, Sk: n}, attention.BHSD, 6)
	bias := make([]float32, n)
	for key := range bias {
		bias[key] = 0x1p19 + float32(key)/16
	}
	p.Bias = &attention.Bias{Tensor: attention.Tensor{Host: make([]byte, 4*n)}, DType: attention.F32, Rows: 1}
	half.EncodeF32(p.Bias.Host, bias)
	runtime.GOMAXPROCS(1)
	o, lse := p.run(t)
	runtime.GOMAXPROCS(64)
	o1, lse1 := p.run(t)
	sameBits(t, o, o1, "O")
	sameBits(t, lse, lse1, "LSE")
}

// A weight above 1 would make Inf of a value near the top of float32.
func TestCPULargestValues(t *testing.T) {
	testlevel.HostOnly(t)
	attention.EachKernelSet(t, func(t *testing.T, _ string) {
		for _, ahead := range []float32{100, 100.1, 100.2, 100.3, 100.4, 100.5, 100.6, 100.7, 300} {
			p := newProblem(attention.Config{DType: attention.F32, HeadDim: 2}, attention.Shape{B: 1, Hq: 1, Sq: 1, Sk: 150}, attention.BHSD, 8)
			bias := make([]float32, p.Sk)
			for key := range bias {
				bias[key] = 1
				p.viewV().WriteRow([]float32{1, -1}, 0, 0, key)
			}
			bias[140] = 1 + ahead
			p.viewQ().WriteRow([]float32{0, 0}, 0, 0, 0)
			p.viewV().WriteRow([]float32{3.3e38, -3.3e38}, 0, 0, 140)
			p.Bias = &attention.Bias{Tensor: attention.Tensor{Host: make([]byte, 4*p.Sk)}, DType: attention.F32}
			half.EncodeF32(p.Bias.Host, bias)
			o, _ := p.run(t)
			require.InEpsilon(t, 3.3e38, float64(o[0]), 1e-6, "%v ahead", ahead)
			require.InEpsilon(t, -3.3e38, float64(o[1]), 1e-6, "%v ahead", ahead)
		}
	})
}

// Adding many small weights to a large row sum must not round each of them the same way.
func TestCPURowSumsOfSmallWeights(t *testing.T) {
	testlevel.HostOnly(t)
	const keys, small = 6000, 1.7e-6
	p := newProblem(attention.Config{DType: attention.F32, HeadDim: 1}, attention.Shape{B: 1, Hq: 1, Hkv: 1, Sq: 1, Sk: keys}, padded(0), 4)
	k := make([]float32, keys)
	for key := range keys {
		k[key] = float32(math.Log(small))
	}
	k[0] = 0
	writeAll(p.Q, attention.F32, 1, 1, 1, 1, []float32{1})
	writeAll(p.K, attention.F32, 1, 1, keys, 1, k)
	attention.EachKernelSet(t, func(t *testing.T, name string) {
		_, lse := p.run(t)
		require.InDelta(t, math.Log1p((keys-1)*small), float64(lse[0]), 1e-6, name)
	})
}

// Equal values of equal weights, added to O one after another, are all rounded the same way.
func TestCPUSumsOfEqualValues(t *testing.T) {
	testlevel.HostOnly(t)
	const keys, value = 6000, 1.1
	p := newProblem(attention.Config{DType: attention.F32, HeadDim: 1}, attention.Shape{B: 1, Hq: 1, Hkv: 1, Sq: 1, Sk: keys}, padded(0), 4)
	v := make([]float32, keys)
	for key := range keys {
		v[key] = value
	}
	writeAll(p.Q, attention.F32, 1, 1, 1, 1, []float32{0})
	writeAll(p.V, attention.F32, 1, 1, keys, 1, v)
	attention.EachKernelSet(t, func(t *testing.T, name string) {
		o, _ := p.run(t)
		require.InEpsilon(t, value, float64(o[0]), 1e-5, name)
	})
}

// A NaN of any sign and payload in Q, K or V gives one NaN in O and LSE, whichever instructions add it.
func TestOneNaNOnTheCPU(t *testing.T) {
	const keys, dim = 70, 8
	for name, spoil := range map[string]func(q, k, v []uint16){
		"in Q": func(q, _, _ []uint16) { q[3] = 0xfe01 },
		"in K": func(_, k, _ []uint16) { k[5*dim] = 0xff00 },
		"in V": func(_, _, v []uint16) {
			for i := range dim {
				v[i], v[dim+i] = 0x7c00, 0xfc00 // Inf - Inf
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			q, k, v := make([]uint16, dim), make([]uint16, keys*dim), make([]uint16, keys*dim)
			spoil(q, k, v)
			bytes := func(x []uint16) []byte {
				b := make([]byte, 2*len(x))
				for i, h := range x {
					binary.LittleEndian.PutUint16(b[2*i:], h)
				}
				return b
			}
			o, lse := make([]byte, 4*dim), make([]byte, 4)
			op, err := attention.New(nil, attention.Config{HeadDim: dim, F32O: true})
			require.NoError(t, err)
			require.NoError(t, op.Forward(nil, attention.Args{Shape: attention.Shape{B: 1, Hq: 1, Sq: 1, Sk: keys},
				Q: attention.Tensor{Host: bytes(q)}, K: attention.Tensor{Host: bytes(k)}, V: attention.Tensor{Host: bytes(v)},
				O: attention.Tensor{Host: o}, LSE: attention.Tensor{Host: lse}}))
			const one = 0x7fc00000
			for i := range dim {
				require.Equal(t, uint32(one), binary.LittleEndian.Uint32(o[4*i:]), "O[%d]", i)
			}
			if name != "in V" {
				require.Equal(t, uint32(one), binary.LittleEndian.Uint32(lse), "LSE")
			}
		})
	}
}

// A list of tokens in any order has the same sums in every block of rows, also where a block sees few of them.
func TestCPUBitsOfUnsortedTokens(t *testing.T) {
	testlevel.HostOnly(t)
	const rows, keys, dim = 40, 200, 16
	var tokens []int32
	for i := range int32(30) { // keys that all rows see, and between them keys that only the last rows see
		tokens = append(tokens, i, 170+i)
	}
	x := func(n int, seed uint64) attention.Tensor {
		return attention.Tensor{Host: inputs.New(int64(n), attention.F32, inputs.Normal, seed)}
	}
	list := make([]byte, 4*len(tokens))
	for i, k := range tokens {
		binary.LittleEndian.PutUint32(list[4*i:], uint32(k))
	}
	offsets := []byte{0, 0, 0, 0, byte(len(tokens)), 0, 0, 0}
	a := attention.Args{Shape: attention.Shape{B: 1, Hq: 1, Sq: rows, Sk: keys}, Q: x(rows*dim, 1), K: x(keys*dim, 2), V: x(keys*dim, 3),
		SparseTokens: &attention.SparseTokens{Offsets: attention.Vector{Host: offsets}, Tokens: attention.Vector{Host: list}, Total: len(tokens)}}
	op, err := attention.New(nil, attention.Config{DType: attention.F32, HeadDim: dim, Causal: attention.BottomRight})
	require.NoError(t, err)
	var fused []byte
	attention.EachKernelSet(t, func(t *testing.T, name string) {
		a.O = attention.Tensor{Host: make([]byte, 4*rows*dim)}
		require.NoError(t, op.Forward(nil, a))
		switch {
		case name == "plain":
		case fused == nil:
			fused = a.O.Host
		default:
			require.Equal(t, fused, a.O.Host)
		}
	})
}
