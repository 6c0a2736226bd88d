package attention_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/testlevel"
)

// onF32Matrices runs a test on each tier of cooperative matrices of the device, with the
// experiment that float32 needs there: terms of float16 without matrices of bfloat16.
func onF32Matrices(t *testing.T, d *backwardDevice, test func(t *testing.T, tier attention.Tier, e attention.Experiment)) {
	bfloat := map[attention.Tier]bool{}
	for _, r := range attention.TierReport(d.dev) {
		bfloat[r.Tier] = bfloat[r.Tier] || r.Available && r.DType == attention.F32
	}
	for _, r := range attention.TierReport(d.dev) {
		if r.Available && r.DType == attention.F16 && (r.Tier == attention.TierCoopMat || r.Tier == attention.TierCoopMat2) {
			t.Run(r.Tier.String(), func(t *testing.T) { test(t, r.Tier, attention.Experiment{HalfTerms: !bfloat[r.Tier]}) })
		}
	}
}

func f32Tensor(values []float32) attention.Tensor {
	host := make([]byte, 4*len(values))
	for i, x := range values {
		binary.LittleEndian.PutUint32(host[4*i:], math.Float32bits(x))
	}
	return attention.Tensor{Host: host}
}

func f32Values(host []byte) []float32 {
	values := make([]float32, len(host)/4)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(host[4*i:]))
	}
	return values
}

// forwardF32 computes O and LSE on the device.
func (d *backwardDevice) forwardF32(t *testing.T, cfg attention.Config, e attention.Experiment, a attention.Args) (o, lse []float32) {
	op, err := attention.NewExperiment(attention.On(d.dev), cfg, e)
	require.NoError(t, err)
	d.keep(op)
	u := d.upload(t, attention.BackwardArgs{Args: a})
	require.NoError(t, op.Forward(attention.OnStream(d.stream), u.Args))
	oHost, lseHost := make([]byte, len(a.O.Host)), make([]byte, len(a.LSE.Host))
	require.NoError(t, d.stream.Download(t.Context(), oHost, u.O.Buffer, 0))
	require.NoError(t, d.stream.Download(t.Context(), lseHost, u.LSE.Buffer, 0))
	return f32Values(oHost), f32Values(lseHost)
}

// An Inf or NaN in Q, K or V reaches the elements of O that it reaches on the CPU tier, and no
// others: as a term it must not meet the other terms of its factor, which are 0 or have the
// other sign.
func TestF32OnMatricesKeepsInfAndNaN(t *testing.T) {
	testF32KeepsInfAndNaN(t, "")
	testF32KeepsInfAndNaN(t, "subgroups=4,kv_tile=16,kv_step=16,pair_tile=16,dim_split=2,alias_kv=1")
}

func testF32KeepsInfAndNaN(t *testing.T, tile string) {
	const n, keys, dim = 150, 170, 16
	d := newBackwardDevice(t)
	inf := float32(math.Inf(1))
	onF32Matrices(t, d, func(t *testing.T, tier attention.Tier, e attention.Experiment) {
		for name, spoil := range map[string]func(q, k, v []float32){
			"V": func(_, _, v []float32) { v[5*dim], v[70*dim+3], v[100*dim+3], v[149*dim+dim-1] = inf, -inf, inf, inf },
			"NaN of V": func(_, _, v []float32) {
				v[9*dim+1], v[169*dim] = float32(math.NaN()), math.Float32frombits(0x7f800001)
			},
			"-Inf of K": func(_, k, _ []float32) { k[3*dim] = -inf },
			"Inf of Q and K": func(q, k, _ []float32) { // rows 20 to 29 attend to nothing
				for i := range keys {
					k[i*dim] = -1
				}
				k[3*dim], k[10*dim] = -inf, -inf
				for i := 20; i < 30; i++ {
					q[i*dim] = inf
				}
			},
			"Inf of K": func(_, k, _ []float32) { k[90*dim+1] = inf },
			"NaN of K": func(_, k, _ []float32) { k[80*dim] = math.Float32frombits(0xffffffff) },
			"Q":        func(q, _, _ []float32) { q[7*dim], q[8*dim+9] = inf, float32(math.NaN()) },
		} {
			t.Run(name, func(t *testing.T) {
				e.Tile = tile
				r := rand.New(rand.NewPCG(7, 8))
				random := func(n int) []float32 {
					x := make([]float32, n)
					for i := range x {
						x[i] = float32(r.NormFloat64())
					}
					return x
				}
				q, k, v := random(n*dim), random(keys*dim), random(keys*dim)
				for i := range n { // so that -Inf of K is a score of -Inf
					q[i*dim] = float32(math.Abs(float64(q[i*dim])))
				}
				spoil(q, k, v)
				a := attention.Args{Shape: attention.Shape{B: 1, Hq: 1, Sq: n, Sk: keys}, Q: f32Tensor(q), K: f32Tensor(k), V: f32Tensor(v),
					O: f32Tensor(make([]float32, n*dim)), LSE: f32Tensor(make([]float32, n))}
				cfg := attention.Config{DType: attention.F32, HeadDim: dim, Causal: attention.TopLeft}
				cpu, err := attention.New(nil, cfg)
				require.NoError(t, err)
				require.NoError(t, cpu.Forward(nil, a))
				want, wantLSE := f32Values(a.O.Host), f32Values(a.LSE.Host)
				cfg.Tier, cfg.Tuning = tier, attention.TuningOff
				o, lse := d.forwardF32(t, cfg, e, a)
				same := func(name string, got, want []float32, width int) {
					wrong := 0
					for i := range want {
						x, y := float64(got[i]), float64(want[i])
						ok := math.IsNaN(x) && math.IsNaN(y) || x == y || math.Abs(x-y) <= 1e-5*(1+math.Abs(y))
						if !ok {
							if wrong++; wrong < 5 {
								t.Errorf("%s of row %d column %d is %v, want %v", name, i/width, i%width, x, y)
							}
						}
					}
				}
				same("O", o, want, dim)
				same("LSE", lse, wantLSE, 1)
			})
		}
	})
}

// What the kernel of float32 on cooperative matrices does not compute runs on tier scalar, or
// is refused with the reason if the Config names the tier.
func TestF32OnMatricesRefuses(t *testing.T) {
	d := newBackwardDevice(t)
	onF32Matrices(t, d, func(t *testing.T, tier attention.Tier, e attention.Experiment) {
		for _, x := range []struct {
			cfg attention.Config
			e   attention.Experiment
			why string
		}{
			{attention.Config{DType: attention.F32, HeadDim: 512}, e, "head dims up to 256"},
			{attention.Config{DType: attention.F32, HeadDim: 320, HeadDimV: 256}, e, "head dims up to 256"},
			{attention.Config{DType: attention.F32, HeadDim: 64, Softcap: 3}, e, "takes no options"},
			{attention.Config{DType: attention.F32, HeadDim: 64, FixedSplit: 3}, e, "takes no options"},
			{attention.Config{DType: attention.F32, HeadDim: 64}, attention.Experiment{HalfTerms: e.HalfTerms, Variant: 2}, "no variants"},
			{attention.Config{DType: attention.F16, HeadDim: 64}, attention.Experiment{HalfTerms: true}, "only float32 has terms"},
		} {
			x.cfg.Tier, x.cfg.Tuning = tier, attention.TuningOff
			_, err := attention.NewExperiment(attention.On(d.dev), x.cfg, x.e)
			require.ErrorIs(t, err, attention.ErrUnsupported)
			require.ErrorContains(t, err, x.why)
			if x.e.Variant != 0 || x.cfg.DType != attention.F32 {
				continue
			}
			x.cfg.Tier = attention.TierAuto
			op, err := attention.New(attention.On(d.dev), x.cfg)
			require.NoError(t, err)
			plan, err := op.Plan(attention.Shape{B: 1, Hq: 1, Sq: 300, Sk: 300})
			require.NoError(t, err)
			require.Equal(t, attention.TierScalar, plan.Tier)
			require.NoError(t, op.Close())
		}
	})
}

// Gradients of float32 keep their bits when dS takes more chunks of heads. Where a chunk holds some keys of a head, dQ is
// added up in memory: dK and dV keep their bits, dQ differs by roundings. Kernels that store P differ from those that do not by the order of columns in a product.
func TestBackwardF32OnMatricesInChunks(t *testing.T) {
	if l := testlevel.Get(); l == testlevel.Default || l == testlevel.Brief {
		t.Skip("a driver on the CPU compiles for 35 s: make test-full runs it")
	}
	const heads, n, keys, dim = 2, 40, 300, 16
	d := newBackwardDevice(t)
	onF32Matrices(t, d, func(t *testing.T, tier attention.Tier, e attention.Experiment) {
		if tier == attention.TierCoopMat && e.HalfTerms {
			t.Skip("a driver on the CPU: one tier has the same host code")
		}
		run := func(maxDSBytes uint64, accumulate bool, tiles string) (list [3][]float32, scratch uint64) {
			r := rand.New(rand.NewPCG(4, 5))
			random := func(n int) attention.Tensor {
				x := make([]float32, n*dim)
				for i := range x {
					x[i] = float32(r.NormFloat64())
				}
				return f32Tensor(x)
			}
			a := attention.BackwardArgs{Args: attention.Args{Shape: attention.Shape{B: 1, Hq: heads, Sq: n, Sk: keys},
				Q: random(heads * n), K: random(heads * keys), V: random(heads * keys), O: random(heads * n), LSE: f32Tensor(make([]float32, heads*n))},
				DO: random(heads * n), DQ: random(heads * n), DK: random(heads * keys), DV: random(heads * keys), Accumulate: accumulate}
			e.BackwardTiles = tiles
			op, err := attention.NewExperiment(attention.On(d.dev), attention.Config{DType: attention.F32, HeadDim: dim, Tier: tier, Tuning: attention.TuningOff}, e)
			require.NoError(t, err)
			d.keep(op)
			attention.SetMaxDSBytes(op, maxDSBytes)
			plan := d.compute(t, op, a)
			require.Equal(t, tier, plan.Tier)
			return [3][]float32{f32Values(a.DQ.Host), f32Values(a.DK.Host), f32Values(a.DV.Host)}, plan.ScratchBytes
		}
		const oneHead = 192 * 512 * 4 // bytes of dS: rows and keys rounded up to what every tile divides
		whole, scratch := run(0, false, "")
		require.EqualValues(t, 16*heads*n+2*oneHead, scratch)
		single, scratch := run(oneHead, false, "")
		require.EqualValues(t, 16*heads*n+oneHead, scratch)
		require.Equal(t, whole, single)
		halves, scratch := run(oneHead/2, false, "")
		require.EqualValues(t, 16*heads*n+oneHead/2, scratch)
		require.Equal(t, whole[1:], halves[1:])
		require.InDeltaSlice(t, whole[0], halves[0], 2e-6)
		require.NotEqual(t, whole[0], make([]float32, len(whole[0])))
		twice, _ := run(oneHead/2, true, "")
		before, _ := run(0, true, "")
		require.InDeltaSlice(t, before[0], twice[0], 2e-6)
		require.NotEqual(t, whole[0], before[0])

		near := func(want, got [3][]float32) {
			for i := range want {
				require.InDeltaSlice(t, want[i], got[i], 2e-6)
			}
		}
		// The kernels of head dims above 128, which store P too.
		const stages = "scores.group=1,dv.slices=2,dk.slices=2,add.slices=2"
		stored, scratch := run(0, false, stages)
		require.EqualValues(t, 16*heads*n+2*2*oneHead, scratch)
		near(whole, stored)
		quarters, scratch := run(oneHead, false, stages)
		require.EqualValues(t, 16*heads*n+oneHead, scratch)
		require.Equal(t, stored[1:], quarters[1:])
		near(halves, quarters)
	})
}
