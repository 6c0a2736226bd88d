package attention_test

import (
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/testlevel"
)

// bf16Inputs change the values of a problem in bfloat16: those that products of pairs treat differently than
// fused multiply-adds do, and those that meet them.
var bf16Inputs = []struct {
	name string
	set  func(r *rand.Rand, q, k, v []float32)
}{
	{"as they are", func(*rand.Rand, []float32, []float32, []float32) {}},
	{"products subnormal", func(_ *rand.Rand, q, k, v []float32) { scaled(q, 0x1p-66); scaled(k, 0x1p-63); scaled(v, 0x1p-120) }},
	{"subnormal Q", func(_ *rand.Rand, q, k, _ []float32) { scaled(q, 0x1p-127); scaled(k, 0x1p125) }},
	{"subnormal K", func(_ *rand.Rand, q, k, _ []float32) { scaled(q, 0x1p125); scaled(k, 0x1p-127) }},
	{"subnormal V", func(r *rand.Rand, _, _, v []float32) { scaled(v, 0x1p-126); v[r.IntN(len(v))] = 1 }},
	{smallestP, func(*rand.Rand, []float32, []float32, []float32) {}},
	{"small P", func(_ *rand.Rand, q, _, _ []float32) { scaled(q, 20) }},
	{"zeros", func(r *rand.Rand, q, k, v []float32) { some(r, q, 0); some(r, k, 0); some(r, v, 0) }},
	{"Inf in V", func(r *rand.Rand, _, _, v []float32) { v[r.IntN(len(v))] = float32(math.Inf(1)) }},
	{"NaN in V", func(r *rand.Rand, _, _, v []float32) { v[r.IntN(len(v))] = float32(math.NaN()) }},
	{"Inf in K", func(r *rand.Rand, _, k, _ []float32) { k[r.IntN(len(k))] = float32(math.Inf(-1)) }},
	{"NaN in Q and K", func(r *rand.Rand, q, k, _ []float32) {
		q[r.IntN(len(q))], k[r.IntN(len(k))] = float32(math.NaN()), float32(math.NaN())
	}},
	{"the largest there are", func(r *rand.Rand, q, k, v []float32) { some(r, q, 3e38); some(r, k, 3e38); scaled(v, 1e38) }},
}

const smallestP = "subnormal P"

// setSmallestP makes every P but that of the first key subnormal, and every value but that of the first key large.
func setSmallestP(d, dv int, q, k, v []float32) {
	clear(q)
	clear(k)
	for i := 0; i < len(q); i += d {
		q[i] = 1
	}
	for i := d; i < len(k); i += d {
		k[i] = -87.5
	}
	for i := range v {
		v[i] = 0x1p120
	}
	clear(v[:dv])
}

func scaled(x []float32, by float32) {
	for i := range x {
		x[i] *= by
	}
}

// some sets an eighth of the elements.
func some(r *rand.Rand, x []float32, to float32) {
	for range len(x) / 8 {
		x[r.IntN(len(x))] = to
	}
}

// In bfloat16 kernels with products of pairs give the bits of the others: at odd head dims, where rows begin and
// end between the keys of a pair, and for numbers that these products treat as 0 or whose products with a masked
// slot are NaN.
func TestCPUBitsOfBF16(t *testing.T) {
	testlevel.HostOnly(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	const seed = 7
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	dims := [][2]int{{1, 1}, {2, 3}, {7, 16}, {31, 33}, {32, 32}, {64, 64}, {65, 12}, {80, 80}, {96, 96}, {127, 129}, {128, 128},
		{130, 64}, {192, 128}, {256, 256}, {320, 17}}
	options := []attention.Config{
		{}, {Causal: attention.TopLeft}, {Causal: attention.BottomRight, Window: attention.WindowOf(37, 0)}, {Softcap: 4},
		{Window: attention.WindowOf(3, 40)}, {F32O: true}, {Causal: attention.BottomRight, Dropout: 0.3},
	}
	n := 0
	for _, input := range bf16Inputs {
		t.Run(input.name, func(t *testing.T) {
			for range 12 {
				d, cfg := dims[n%len(dims)], options[n%len(options)]
				n++
				cfg.DType, cfg.HeadDim, cfg.HeadDimV = attention.BF16, d[0], d[1]
				p := newProblem(cfg, attention.Shape{B: 1, Hq: 2, Hkv: 1, Sq: 1 + r.IntN(70), Sk: 1 + r.IntN(300)}, attention.BSHD, r.Uint64()%1000)
				if cfg.F32O {
					p.O.Host = make([]byte, 2*len(p.O.Host))
				}
				q, k, v := rowsOf(p.viewQ(), 2, p.Sq, d[0]), rowsOf(p.viewK(), 1, p.Sk, d[0]), rowsOf(p.viewV(), 1, p.Sk, d[1])
				input.set(r, q, k, v)
				if input.name == smallestP {
					setSmallestP(d[0], d[1], q, k, v)
					cfg.Scale = attention.ScaleOf(1)
				}
				writeAll(p.Q, attention.BF16, 1, 2, p.Sq, d[0], q)
				writeAll(p.K, attention.BF16, 1, 1, p.Sk, d[0], k)
				writeAll(p.V, attention.BF16, 1, 1, p.Sk, d[1], v)
				var o, lse []byte
				attention.EachKernelSet(t, func(t *testing.T, kernels string) {
					for _, threads := range []int{1, 5} {
						runtime.GOMAXPROCS(threads)
						require.NoError(t, attention.ForwardCPU(cfg, p.Args))
						switch {
						case kernels == "plain":
						case o == nil:
							o, lse = append(o, p.O.Host...), append(lse, p.LSE.Host...)
						default:
							require.Equal(t, o, p.O.Host, "O, %+v, %+v, %d threads", cfg, p.Shape, threads)
							if kernels != "go" { // which have logarithms of Go
								require.Equal(t, lse, p.LSE.Host, "LSE, %+v, %+v", cfg, p.Shape)
							}
						}
					}
				})
			}
		})
	}
}

func rowsOf(v attention.HostView, heads, seq, dim int) []float32 {
	x := make([]float32, heads*seq*dim)
	for i := range heads * seq {
		v.ReadRow(x[i*dim:][:dim], 0, i/seq, i%seq)
	}
	return x
}
