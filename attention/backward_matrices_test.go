package attention_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/half"
	"vkattn/internal/testdevices"
	"vkattn/internal/testlevel"
)

// matrixCase is a call in float16 with two heads and a causal mask.
type matrixCase struct {
	cfg attention.Config
	attention.BackwardArgs
}

// dimOf is a head dim at which tier coopmat2 stores dS. In make test-full tier coopmat, which
// stores none, has a smaller one: a driver on the CPU compiles its kernels for 72 for a minute.
func dimOf(tier attention.Tier) int {
	if tier == attention.TierCoopMat && testlevel.Get() == testlevel.Full {
		return 24
	}
	return 72
}

func newMatrixCaseOf(n, dim int) *matrixCase {
	const heads = 2
	rng := rand.New(rand.NewPCG(3, 20))
	random := func() attention.Tensor {
		v := make([]float32, n*heads*dim)
		for i := range v {
			v[i] = float32(rng.IntN(255)-127) / 64
		}
		b := make([]byte, 2*len(v))
		half.EncodeF16(b, v)
		return attention.Tensor{Host: b}
	}
	c := &matrixCase{cfg: attention.Config{DType: attention.F16, HeadDim: dim, Causal: attention.TopLeft}}
	c.Shape = attention.Shape{B: 1, Hq: heads, Sq: n, Sk: n}
	c.Q, c.K, c.V, c.DO = random(), random(), random(), random()
	c.O, c.DQ, c.DK, c.DV = random(), random(), random(), random()
	c.LSE = attention.Tensor{Host: nans(n * heads)}
	return c
}

// numbers decodes the gradients and O.
func (c *matrixCase) numbers() (list [4][]float32) {
	for i, t := range []attention.Tensor{c.DQ, c.DK, c.DV, c.O} {
		list[i] = make([]float32, len(t.Host)/2)
		half.DecodeF16(list[i], t.Host)
	}
	return list
}

// On the coopmat tiers bits do not depend on how many chunks of heads dS takes. An Inf or
// NaN that takes part reaches the same gradients as on the CPU tier, also from masked
// tiles, and no others.
func TestBackwardOnMatrices(t *testing.T) {
	if l := testlevel.Get(); l == testlevel.Default || l == testlevel.Brief {
		t.Skip("a driver on the CPU compiles for 40 s: make test-full runs it")
	}
	d := newBackwardDevice(t)
	for _, r := range attention.TierReport(d.dev) {
		if !r.Available || r.DType != attention.F16 || r.Tier != attention.TierCoopMat && r.Tier != attention.TierCoopMat2 {
			continue
		}
		t.Run(r.Tier.String(), func(t *testing.T) {
			dim := dimOf(r.Tier)
			clean := newMatrixCaseOf(700, dim)
			clean.cfg.Tier, clean.cfg.Tuning = r.Tier, attention.TuningOff
			run := func(c *matrixCase, maxDSBytes uint64) attention.BackwardPlan {
				op, err := attention.New(attention.On(d.dev), clean.cfg)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, op.Close()) }) // later calls share its pipelines
				attention.SetMaxDSBytes(op, maxDSBytes)
				return d.compute(t, op, c.BackwardArgs)
			}
			all := run(clean, 0)
			if all.ScratchBytes > 2*16*700 { // dS is stored
				const oneHead = 768 * 768 * 2 // bytes of dS: 768 is a multiple of what every tile divides
				some := newMatrixCaseOf(700, dim)
				plan := run(some, oneHead)
				const marks = 2 << 10 // at most, of workgroups with rare inputs
				require.InDelta(t, 2*16*700+2*oneHead, all.ScratchBytes, marks)
				require.InDelta(t, 2*16*700+oneHead, plan.ScratchBytes, marks)
				for i, want := range []attention.Tensor{clean.DQ, clean.DK, clean.DV} {
					require.True(t, bytes.Equal(want.Host, []attention.Tensor{some.DQ, some.DK, some.DV}[i].Host), "gradient %d", i)
				}
			}
			if testlevel.Get() == testlevel.Full && r.Tier == attention.TierCoopMat2 {
				return // tier coopmat has both kernels
			}
			for name, x := range map[string]float32{"Q": float32(math.NaN()), "K": float32(math.Inf(1)), "V": float32(math.NaN()), "DO": float32(math.Inf(-1))} {
				t.Run(name, func(t *testing.T) {
					spoil := func(c *matrixCase) {
						tensor := map[string]attention.Tensor{"Q": c.Q, "K": c.K, "V": c.V, "DO": c.DO}[name]
						half.EncodeF16(tensor.Host[2*(450*dim+5):], []float32{x})
					}
					got := newMatrixCaseOf(700, dim)
					spoil(got)
					run(got, 0)
					want := newMatrixCaseOf(700, dim)
					spoil(want)
					cpu, err := attention.New(nil, attention.Config{DType: attention.F16, HeadDim: dim, Causal: attention.TopLeft})
					require.NoError(t, err)
					require.NoError(t, cpu.Forward(nil, want.Args))
					require.NoError(t, cpu.Backward(nil, want.BackwardArgs))
					w, g, n := want.numbers(), got.numbers(), 0
					for i := range w {
						for j := range w[i] {
							if name == "K" && i == 0 && j/dim >= 511 && j/dim < 700 && j%dim == 5 {
								continue // unmasked tiles: where K of Inf has weight 0, 0 x Inf is NaN
							}
							if a, b := w[i][j], g[i][j]; finite(a) != finite(b) || math.IsInf(float64(a), 0) && a != b {
								if n++; n < 8 {
									t.Errorf("%s, row %d, column %d is %v, want %v", []string{"dQ", "dK", "dV", "O"}[i], j/dim, j%dim, b, a)
								}
							}
						}
					}
				})
			}
		})
	}
}

// Where accumulators and operands have one order of elements, P and dS become operands in
// registers. Through shared memory, as on other devices, they are the same numbers.
func TestBackwardOperandsInSharedMemory(t *testing.T) {
	if l := testlevel.Get(); l == testlevel.Default || l == testlevel.Brief {
		t.Skip("a driver on the CPU compiles for 20 s: make test-full runs it")
	}
	d := newBackwardDevice(t)
	for _, r := range attention.TierReport(d.dev) {
		if !r.Available || r.DType != attention.F16 || r.Tier != attention.TierCoopMat {
			continue
		}
		cfg := attention.Config{DType: attention.F16, HeadDim: 16, Causal: attention.TopLeft, Tier: r.Tier, Tuning: attention.TuningOff}
		var calls [2]*matrixCase
		for i, tiles := range []string{"", "q.operands_in_smem=1 kv.operands_in_smem=1"} {
			op, err := attention.NewExperiment(attention.On(d.dev), cfg, attention.Experiment{BackwardTiles: tiles})
			require.NoError(t, err)
			defer func() { require.NoError(t, op.Close()) }()
			c := newMatrixCaseOf(100, cfg.HeadDim)
			u := d.upload(t, c.BackwardArgs)
			plan, err := op.PlanBackwardFor(u.BackwardArgs)
			require.NoError(t, err)
			for _, k := range plan.Kernels {
				inSmem := strings.HasSuffix(k.Tile, " smem")
				if k.Outputs != "dQ" && k.Outputs != "dK dV" {
					continue
				}
				if i == 0 && inSmem && os.Getenv("VKATTN_DRIVER") != "lavapipe" {
					t.Skipf("%s: the device has another order", k.Tile)
				}
				require.Equal(t, i == 1, inSmem, "%s: %s", k.Outputs, k.Tile)
			}
			require.NoError(t, op.Forward(attention.OnStream(d.stream), u.Args))
			require.NoError(t, d.stream.Barrier())
			require.NoError(t, op.Backward(attention.OnStream(d.stream), u.BackwardArgs))
			u.download(t, d)
			calls[i] = c
		}
		a, b := calls[0].BackwardArgs, calls[1].BackwardArgs
		for i, want := range []attention.Tensor{a.DQ, a.DK, a.DV} {
			require.True(t, bytes.Equal(want.Host, []attention.Tensor{b.DQ, b.DK, b.DV}[i].Host), "gradient %d", i)
		}
		require.NotZero(t, a.DK.Host[2*(50*2*16)])
	}
}

// Without a mask, where dS is stored, a first dispatch of the kernel of dK and dV leaves what
// has rare inputs to a second one: a large LSE, keys past the end of a tile. The bits are
// those of the kernel that computes all in one.
func TestBackwardRareWork(t *testing.T) {
	if l := testlevel.Get(); l == testlevel.Default || l == testlevel.Brief {
		t.Skip("a driver on the CPU compiles for 40 s: make test-full runs it")
	}
	d := newBackwardDevice(t)
	for _, r := range attention.TierReport(d.dev) {
		if !r.Available || r.DType != attention.F16 || r.Tier != attention.TierCoopMat && r.Tier != attention.TierCoopMat2 {
			continue
		}
		t.Run(r.Tier.String(), func(t *testing.T) {
			const n, dim = 300, 72
			var bytesOf [2]uint64
			var calls [2]*matrixCase
			for i, maxDSBytes := range []uint64{0, 1} { // 1: dS is not stored
				c := newMatrixCaseOf(n, dim)
				c.cfg.Causal, c.cfg.Tier, c.cfg.Tuning = attention.CausalNone, r.Tier, attention.TuningOff
				for j := range dim { // a row of the second head
					half.EncodeF16(c.Q.Host[2*((n+100)*dim+j):], []float32{512})
				}
				op := testdevices.Op(t, attention.On(d.dev), c.cfg)
				attention.SetMaxDSBytes(op, maxDSBytes)
				calls[i], bytesOf[i] = c, d.compute(t, op, c.BackwardArgs).ScratchBytes
			}
			if bytesOf[0] == bytesOf[1] {
				t.Skip("the device does not store dS")
			}
			require.True(t, bytes.Equal(calls[1].DK.Host, calls[0].DK.Host), "dK")
			require.True(t, bytes.Equal(calls[1].DV.Host, calls[0].DV.Host), "dV")
			want, got := calls[1].numbers(), calls[0].numbers()
			var difference, square float64
			for j, x := range want[0] { // its sums have another order
				difference += math.Pow(float64(x-got[0][j]), 2)
				square += math.Pow(float64(x), 2)
			}
			require.Less(t, difference/square, 1e-6)
		})
	}
}

func finite(x float32) bool { return !math.IsInf(float64(x), 0) && x == x }

// On the coopmat tiers, at a head dim at which tier coopmat2 stores dS, gradients with
// dropout equal the gradients of the CPU tier, and their bits do not depend on how many
// chunks of heads dS takes.
func TestBackwardDropoutOnMatrices(t *testing.T) {
	if l := testlevel.Get(); l == testlevel.Default || l == testlevel.Brief {
		t.Skip("a driver on the CPU compiles for 40 s: make test-full runs it")
	}
	d := newBackwardDevice(t)
	for _, r := range attention.TierReport(d.dev) {
		if !r.Available || r.DType != attention.F16 || r.Tier != attention.TierCoopMat && r.Tier != attention.TierCoopMat2 {
			continue
		}
		t.Run(r.Tier.String(), func(t *testing.T) {
			newCase := func() *matrixCase {
				c := newMatrixCaseOf(700, dimOf(r.Tier))
				c.cfg.Dropout, c.DropoutSeed, c.DropoutOffset = 0.5, 1<<40+3, 9
				return c
			}
			want := newCase()
			cpu, err := attention.New(nil, want.cfg)
			require.NoError(t, err)
			require.NoError(t, cpu.Forward(nil, want.Args))
			require.NoError(t, cpu.Backward(nil, want.BackwardArgs))
			const oneHead, without = 768 * 768 * 2, 2*16*700 + 16 // bytes: of dS of a head, of scratch without dS
			run := func(maxDSBytes uint64) (*matrixCase, uint64) {
				c := newCase()
				c.cfg.Tier, c.cfg.Tuning = r.Tier, attention.TuningOff
				op, err := attention.New(attention.On(d.dev), c.cfg)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, op.Close()) }) // the second call shares its pipelines
				attention.SetMaxDSBytes(op, maxDSBytes)
				plan := d.compute(t, op, c.BackwardArgs)
				require.Equal(t, r.Tier, plan.Tier)
				return c, plan.ScratchBytes
			}
			got, bytes := run(0)
			if r.Tier == attention.TierCoopMat2 || bytes != without { // dS is stored
				require.EqualValues(t, without+2*oneHead, bytes)
				some, bytes := run(oneHead)
				require.EqualValues(t, without+oneHead, bytes)
				require.Equal(t, got.numbers(), some.numbers())
			}
			g := got.numbers()
			for i, list := range want.numbers() {
				var difference, square float64
				for j, x := range list {
					difference += math.Pow(float64(x-g[i][j]), 2)
					square += math.Pow(float64(x), 2)
				}
				t.Logf("gradient %d: NMSE %.2g", i, difference/square)
				require.Less(t, difference/square, 1e-5, "gradient %d", i)
			}
		})
	}
}
