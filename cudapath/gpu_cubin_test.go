//go:build !windows

package cudapath

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/half"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// needCubins opens a device that launches cubins for sm_90a, or says why it skips.
func needCubins(t testing.TB) (*vk.Device, *vk.Stream) {
	t.Helper()
	t.Setenv("VKATTN_VALIDATION", "")
	d, err := vk.Open(vk.Options{PipelineCache: "off"})
	if err != nil {
		t.Skipf("no Vulkan device here: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	if err := (cubinBackend{}).Check(d, d.Info(), attention.F16); err != nil {
		t.Skip(err)
	}
	s, err := d.NewStream(t.Name())
	require.NoError(t, err)
	return d, s
}

// cubinTable is the table of this build, or the table of the folder in VKATTN_CUBIN_TABLE, to try other tiles.
func cubinTable(t testing.TB) *table {
	t.Helper()
	list, err := embedded()
	if dir := os.Getenv("VKATTN_CUBIN_TABLE"); dir != "" {
		list, err = readTable(os.DirFS(dir))
	}
	require.NoError(t, err)
	return list
}

// cubinArch is the architecture under test, the first one or that in VKATTN_CUBIN_ARCH.
func cubinArch() string {
	return cmp.Or(os.Getenv("VKATTN_CUBIN_ARCH"), cubinArchitectures[0].name)
}

// leastScaleLog2 stands for smaller scales in log2 units: kernels multiply masked scores,
// which are -Inf, by it.
const leastScaleLog2 = 0x1p-100

// setScale sets scale and what follows from it.
func (p *cubinParams) setScale(scale float32) {
	p.scale = scale
	log2, unit := float64(scale)*math.Log2E, math.Ln2
	if math.Abs(log2) < leastScaleLog2 {
		p.scaleLog2 = float32(math.Copysign(leastScaleLog2, log2))
	} else {
		p.scaleLog2 = float32(log2)
		unit = math.Abs(float64(scale)) / math.Abs(float64(p.scaleLog2))
	}
	p.unitHigh = float32(unit)
	p.unitLow = float32(unit - float64(p.unitHigh))
}

// cubinCase is a problem for the kernels of cubinFamily.
type cubinCase struct {
	dtype                     string
	batch, hq, hkv, sq, sk, d int
	causal                    bool
	offset                    int  // of the causal mask
	heads                     bool // [batch, head, row, dim] in memory; otherwise [batch, row, head, dim]
	scale                     float32
}

func (c cubinCase) String() string {
	mask, order := "full", "bshd"
	if c.causal {
		mask = fmt.Sprintf("causal%+d", c.offset)
	}
	if c.heads {
		order = "bhsd"
	}
	return fmt.Sprintf("%s b%d hq%d hkv%d sq%d sk%d d%d %s %s scale %.3g", c.dtype, c.batch, c.hq, c.hkv, c.sq, c.sk, c.d, mask, order, c.scale)
}

// cubinRun has a problem on the device.
type cubinRun struct {
	c       cubinCase
	kernel  *Kernel
	f       *vk.CubinFunction
	params  cubinParams
	launch  vk.CubinLaunch
	buffers [5]*vk.Buffer // Q, K, V, O, LSE
	values  [3][]float32  // of Q, K and V, as stored
}

// problem is what the choice of a kernel depends on.
func (c cubinCase) problem() *problem.CUDAProblem {
	return &problem.CUDAProblem{DType: map[string]attention.DType{"f16": attention.F16, "bf16": attention.BF16}[c.dtype], HeadDim: c.d, HeadDimV: c.d, Causal: c.causal}
}

func (c cubinCase) layout(address uint64, heads, rows int) tensorParams {
	d := int64(c.d)
	if c.heads {
		return tensorParams{address, int64(heads*rows) * d, int64(rows) * d, d}
	}
	return tensorParams{address, int64(heads*rows) * d, d, int64(heads) * d}
}

func (c cubinCase) index(b, h, r, heads, rows int) int {
	if c.heads {
		return ((b*heads+h)*rows + r) * c.d
	}
	return ((b*rows+r)*heads + h) * c.d
}

func (c cubinCase) encode(x []float32) (stored []byte) {
	stored = make([]byte, 2*len(x))
	if c.dtype == "bf16" {
		half.EncodeBF16(stored, x)
		half.DecodeBF16(x, stored)
	} else {
		half.EncodeF16(stored, x)
		half.DecodeF16(x, stored)
	}
	return stored
}

// newCubinRun uploads the problem. change may set values of K and V.
func newCubinRun(t testing.TB, d *vk.Device, s *vk.Stream, c cubinCase, seed uint64, change func(k, v []float32)) *cubinRun {
	t.Helper()
	table := cubinTable(t)
	list, why := table.cubin(cubinArch(), c.problem())
	require.Empty(t, why)
	return newCubinRunOf(t, table, fastest(list, &attention.Shape{B: c.batch, Hq: c.hq, Hkv: c.hkv, Sq: c.sq, Sk: c.sk}, d.Caps().ShaderCores), d, s, c, seed, change)
}

// cubinKernels lists the kernels that can compute a problem, at large head dims also those for
// larger ones.
func cubinKernels(table *table, c cubinCase) (list []*Kernel) {
	const large = 120
	for i := range table.cubins {
		k := &table.cubins[i]
		if k.Arch == cubinArch() && k.DType == c.dtype && k.Causal == c.causal && !k.General && k.D >= c.d && k.DV >= c.d && (len(list) == 0 || c.d >= large || k.D == list[0].D) {
			list = append(list, k)
		}
	}
	return list
}

func newCubinRunOf(t testing.TB, table *table, kernel *Kernel, d *vk.Device, s *vk.Stream, c cubinCase, seed uint64, change func(k, v []float32)) *cubinRun {
	t.Helper()
	r := &cubinRun{c: c, kernel: kernel, f: loadCubin(t, table, d, kernel)}
	var err error
	random := rand.New(rand.NewPCG(seed, 22))
	sizes := []int{c.batch * c.hq * c.sq * c.d, c.batch * c.hkv * c.sk * c.d, c.batch * c.hkv * c.sk * c.d, c.batch * c.hq * c.sq * c.d, 2 * c.batch * c.hq * c.sq}
	for i, n := range sizes {
		r.buffers[i], err = d.NewBuffer(uint64(2*n), vk.BufferOptions{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, r.buffers[i].Close()) })
		if i < 3 {
			r.values[i] = make([]float32, n)
			const period = 1<<20 + 7 // large problems repeat these
			for j := range min(n, period) {
				r.values[i][j] = float32(random.NormFloat64())
			}
			for j := period; j < n; j += period {
				copy(r.values[i][j:], r.values[i][:period])
			}
		}
	}
	if change != nil {
		change(r.values[1], r.values[2])
	}
	for i := range r.values {
		require.NoError(t, s.Upload(r.buffers[i], 0, c.encode(r.values[i])))
	}
	for _, b := range r.buffers[3:] {
		require.NoError(t, s.Fill(vk.BufferRange{Buffer: b}, 0x7fffffff)) // NaN: every element is to be written
	}
	require.NoError(t, s.Barrier())
	p := &r.params
	p.q, p.o = c.layout(r.buffers[0].Address(), c.hq, c.sq), c.layout(r.buffers[3].Address(), c.hq, c.sq)
	p.k, p.v = c.layout(r.buffers[1].Address(), c.hkv, c.sk), c.layout(r.buffers[2].Address(), c.hkv, c.sk)
	p.lse = r.buffers[4].Address()
	p.b, p.hq, p.hkv, p.sq, p.sk = int32(c.batch), int32(c.hq), int32(c.hkv), int32(c.sq), int32(c.sk)
	p.d, p.dv, p.causalOffset = int32(c.d), int32(c.d), int32(c.offset)
	p.setScale(c.scale)
	require.NoError(t, p.setMaps(r.kernel))
	r.launch = c.launch(d, kernel)
	return r
}

func loadCubin(t testing.TB, table *table, d *vk.Device, kernel *Kernel) *vk.CubinFunction {
	t.Helper()
	image, err := table.cubinImage(kernel)
	require.NoError(t, err)
	m, err := d.NewCubin(kernel.Module, image)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	f, err := m.Function(kernel.Entry)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

func (c cubinCase) launch(d *vk.Device, kernel *Kernel) vk.CubinLaunch {
	shape := attention.Shape{B: c.batch, Hq: c.hq, Hkv: c.hkv, Sq: c.sq, Sk: c.sk}
	return kernel.launchOf(kernel.tiles(&shape, c.batch), d.Caps().ShaderCores)
}

func (r *cubinRun) record(s *vk.Stream) error {
	return s.Launch(r.f, r.launch, r.params.bytes(r.kernel), r.buffers[0], r.buffers[1], r.buffers[2], r.buffers[3], r.buffers[4])
}

// results downloads O and LSE.
func (r *cubinRun) results(t testing.TB, s *vk.Stream) (o, lse []float32, bits []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	bits = make([]byte, 2*r.c.batch*r.c.hq*r.c.sq*r.c.d)
	require.NoError(t, s.Download(ctx, bits, r.buffers[3], 0))
	o = make([]float32, len(bits)/2)
	if r.c.dtype == "bf16" {
		half.DecodeBF16(o, bits)
	} else {
		half.DecodeF16(o, bits)
	}
	raw := make([]byte, 4*r.c.batch*r.c.hq*r.c.sq)
	require.NoError(t, s.Download(ctx, raw, r.buffers[4], 0))
	lse = make([]float32, len(raw)/4)
	for i := range lse {
		lse[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return o, lse, bits
}

// reference is a row in float64.
func (r *cubinRun) reference(b, h, row int) (o []float64, lse float64) {
	c := &r.c
	end := c.sk
	if c.causal {
		end = max(min(row+c.offset+1, c.sk), 0)
	}
	o = make([]float64, c.d)
	if end == 0 {
		return o, math.Inf(-1)
	}
	kv := h / (c.hq / c.hkv)
	q := r.values[0][c.index(b, h, row, c.hq, c.sq):][:c.d]
	scores := make([]float64, end)
	top := math.Inf(-1)
	for j := range scores {
		k := r.values[1][c.index(b, kv, j, c.hkv, c.sk):][:c.d]
		for i := range q {
			scores[j] += float64(q[i]) * float64(k[i])
		}
		scores[j] *= float64(c.scale)
		top = max(top, scores[j])
	}
	sum := 0.0
	for j, x := range scores {
		p := math.Exp(x - top)
		sum += p
		v := r.values[2][c.index(b, kv, j, c.hkv, c.sk):][:c.d]
		for i := range o {
			o[i] += p * float64(v[i])
		}
	}
	for i := range o {
		o[i] /= sum
	}
	return o, top + math.Log(sum)
}

// compare checks up to 40 rows and returns the largest errors.
func (r *cubinRun) compare(t testing.TB, o, lse []float32, seed uint64) (worst, worstLSE float64) {
	t.Helper()
	c := &r.c
	random := rand.New(rand.NewPCG(seed, 23))
	rows := []int{0, 1, 7, 8, 63, 64, 191, 192, c.sq / 2, c.sq - 2, c.sq - 1}
	for len(rows) < 40 {
		rows = append(rows, random.IntN(c.sq))
	}
	limit, limitLSE := 4e-3, 1e-3
	if c.dtype == "bf16" {
		limit = 3e-2
	}
	for _, row := range rows {
		if row < 0 || row >= c.sq {
			continue
		}
		b, h := random.IntN(c.batch), random.IntN(c.hq)
		want, wantLSE := r.reference(b, h, row)
		at := c.index(b, h, row, c.hq, c.sq)
		for i, w := range want {
			g := float64(o[at+i])
			if math.IsNaN(w) || math.IsInf(w, 0) {
				require.Truef(t, math.IsNaN(g) || math.IsInf(g, 0), "%v: row %d,%d,%d column %d: %v, want %v", c, b, h, row, i, g, w)
				continue
			}
			e := math.Abs(g - w)
			require.Truef(t, e <= limit*(1+math.Abs(w)), "%v: row %d,%d,%d column %d: %v, want %v", c, b, h, row, i, g, w)
			worst = max(worst, e)
		}
		g := float64(lse[(b*c.hq+h)*c.sq+row])
		if math.IsInf(wantLSE, -1) {
			require.True(t, math.IsInf(g, -1), "%v: LSE of row %d: %v", c, row, g)
			continue
		}
		e := math.Abs(g - wantLSE)
		require.Truef(t, e <= limitLSE*(1+math.Abs(wantLSE)), "%v: LSE of row %d,%d,%d: %v, want %v", c, b, h, row, g, wantLSE)
		worstLSE = max(worstLSE, e)
	}
	return worst, worstLSE
}

func cubinCases() (list []cubinCase) {
	for _, dtype := range []string{"f16", "bf16"} {
		for _, d := range []int{64, 128, 96, 8, 40, 72, 80, 104, 120, 192, 136} {
			scale := float32(1 / math.Sqrt(float64(d)))
			list = append(list,
				cubinCase{dtype, 1, 1, 1, 192, 512, d, false, 0, true, scale},
				cubinCase{dtype, 2, 4, 2, 333, 517, d, false, 0, false, scale},
				cubinCase{dtype, 2, 4, 1, 517, 517, d, true, 0, false, scale},
				cubinCase{dtype, 1, 6, 3, 200, 611, d, true, 411, true, scale},
				cubinCase{dtype, 1, 2, 2, 700, 300, d, true, -400, true, scale},
				cubinCase{dtype, 1, 2, 2, 1, 77, d, false, 0, true, scale},
				cubinCase{dtype, 3, 5, 5, 64, 1, d, true, 0, false, -scale},
			)
		}
		list = append(list,
			cubinCase{dtype, 4, 40, 8, 1111, 1111, 128, true, 0, false, 0.08}, // more row blocks than CTAs
			cubinCase{dtype, 4, 40, 8, 1111, 1111, 64, false, 0, false, 0.12},
			// whole blocks of 192 rows and a partial one, which comes last from 16 whole ones on
			cubinCase{dtype, 2, 9, 3, 3333, 300, 128, false, 0, false, 0.08},
			cubinCase{dtype, 2, 9, 3, 3333, 3333, 128, true, 0, false, 0.08},
			cubinCase{dtype, 2, 9, 3, 3160, 611, 96, true, -1000, true, 0.08},
			cubinCase{dtype, 1, 2, 1, 300, 300, 128, false, 0, true, 0},
			cubinCase{dtype, 1, 2, 1, 300, 300, 128, true, 0, true, 20})
	}
	return list
}

// Every kernel computes attention, with the same bits for every grid and in every run.
func TestCubinGPUAttention(t *testing.T) {
	d, s := needCubins(t)
	table := cubinTable(t)
	for i, c := range cubinCases() {
		for _, k := range cubinKernels(table, c) {
			t.Run(c.String()+" "+k.Entry, func(t *testing.T) { checkCubin(t, table, k, d, s, c, uint64(i+1)) })
		}
	}
}

func checkCubin(t *testing.T, table *table, k *Kernel, d *vk.Device, s *vk.Stream, c cubinCase, seed uint64) {
	t.Logf("seed %d", seed)
	r := newCubinRunOf(t, table, k, d, s, c, seed, nil)
	require.NoError(t, r.record(s))
	require.NoError(t, s.Barrier())
	o, lse, bits := r.results(t, s)
	worst, worstLSE := r.compare(t, o, lse, seed)
	t.Logf("RESULT %v: error of O %.2e, of LSE %.2e", c, worst, worstLSE)
	for _, ctas := range []uint32{1 + r.launch.Grid[0]/2, r.launch.Grid[0]} {
		if k.persistent() {
			r.launch.Grid[0] = ctas
		}
		require.NoError(t, r.record(s))
		require.NoError(t, s.Barrier())
		_, _, again := r.results(t, s)
		require.True(t, slices.Equal(bits, again), "%d CTAs give other bits", ctas)
	}
}

// Quantized decode computes the cases of TestDecodeKernelsOnTheCPU, with the same bits in every run, whatever lies in what must
// not matter.
func TestCubinGPUDecode(t *testing.T) {
	d, s := needCubins(t)
	for _, dtype := range []attention.DType{attention.F16, attention.BF16} {
		for _, dim := range []int{64, 128, 256} {
			for _, kv := range decodeTypes {
				for _, c := range decodeCases(dim, kv) {
					t.Run(fmt.Sprintf("%v/%v", dtype, c), func(t *testing.T) {
						p, err := cases.NewProblem(c, dtype)
						require.NoError(t, err)
						checkOnGPU(t, d, s, p, attention.TierCubin)
					})
				}
			}
		}
	}
}

// Kernels for lengths and windows, each with its long and its short tile, compute the cases of TestSequencesKernelsOnTheCPU, with the same bits in every run.
func TestCubinGPUSequences(t *testing.T) {
	d, s := needCubins(t)
	table, err := embedded()
	require.NoError(t, err)
	var short []*Kernel
	for i := range table.cubins {
		if k := &table.cubins[i]; k.Sequences && k.Speed != 0 {
			speed := k.Speed
			t.Cleanup(func() { k.Speed = speed })
			short = append(short, k)
		}
	}
	require.Len(t, short, 8)
	for _, dtype := range []attention.DType{attention.F16, attention.BF16} {
		for _, c := range sequenceCases() {
			for _, speed := range []float64{0.001, 100} {
				for _, k := range short {
					k.Speed = speed
				}
				t.Run(fmt.Sprintf("%v/%v/%v", dtype, speed > 1, &c), func(t *testing.T) {
					p, err := cases.NewProblem(c, dtype)
					require.NoError(t, err)
					checkOnGPU(t, d, s, p, attention.TierCubin)
				})
			}
		}
	}
}

func checkOnGPU(t *testing.T, d *vk.Device, s *vk.Stream, p *cases.Problem, tier attention.Tier) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	op, err := attention.New(attention.On(d), attention.Config(p.Config(cases.On(tier, p.DType))))
	require.NoError(t, err)
	defer op.Close()
	var afters [2][][]byte
	for i, before := range [2][][]byte{p.Image, p.Spoiled()} {
		var buffers []*vk.Buffer
		for _, image := range before {
			b, err := d.NewBuffer(uint64(max(len(image), 4)), vk.BufferOptions{})
			require.NoError(t, err)
			defer func() { require.NoError(t, b.Close()) }()
			require.NoError(t, s.Upload(b, 0, image))
			buffers = append(buffers, b)
		}
		a := p.DeviceArgs(buffers)
		plan, err := op.PlanFor(a)
		require.NoError(t, err)
		require.Equal(t, tier, plan.Tier)
		require.NoError(t, op.Forward(attention.OnStream(s), a))
		for j, b := range buffers {
			after := make([]byte, len(before[j]))
			require.NoError(t, s.Download(ctx, after, b, 0))
			afters[i] = append(afters[i], after)
		}
		require.NoError(t, p.Trespass(before, afters[i]))
	}
	formula := cases.NewFormula(p)
	formula.Rounded = p.KeyType.Scaled()
	judged := formula.Judge(afters[0])
	require.NoError(t, judged.Err())
	require.NoError(t, p.Same(afters[0], afters[1]))
}

// Non-finite K and V in masked slots do not change a bit. Non-finite V in other slots
// reaches the rows that attend to it and no others.
func TestCubinGPUMaskedSlots(t *testing.T) {
	d, s := needCubins(t)
	for _, dtype := range []string{"f16", "bf16"} {
		for _, dim := range []int{64, 96, 128, 192} {
			c := cubinCase{dtype, 2, 2, 1, 300, 512, dim, true, 100, true, 0.1}
			visible := c.sq + c.offset // keys from here on are masked for every row
			nan := float32(math.NaN())
			fill := func(x []float32, from int, value float32) {
				for b := range c.batch {
					for j := from; j < c.sk; j++ {
						for i := range c.d {
							x[c.index(b, 0, j, 1, c.sk)+i] = value
						}
					}
				}
			}
			clean := newCubinRun(t, d, s, c, 5, nil)
			require.NoError(t, clean.record(s))
			require.NoError(t, s.Barrier())
			_, _, want := clean.results(t, s)
			r := newCubinRun(t, d, s, c, 5, func(k, v []float32) { fill(k, visible, nan); fill(v, visible, nan) })
			require.NoError(t, r.record(s))
			require.NoError(t, s.Barrier())
			_, _, got := r.results(t, s)
			require.True(t, slices.Equal(want, got), "%v", c)

			r = newCubinRun(t, d, s, c, 5, func(k, v []float32) {
				v[c.index(0, 0, visible-5, 1, c.sk)+3] = nan
				v[c.index(1, 0, visible-90, 1, c.sk)+c.d-1] = float32(math.Inf(1))
			})
			require.NoError(t, r.record(s))
			require.NoError(t, s.Barrier())
			o, lse, _ := r.results(t, s)
			r.compare(t, o, lse, 7)
			for _, row := range []int{c.sq - 6, c.sq - 5, c.sq - 1} {
				x := float64(o[c.index(0, 1, row, c.hq, c.sq)+3])
				require.Equal(t, row >= c.sq-5, math.IsNaN(x), "%v: row %d: %v", c, row, x)
			}
		}
	}
}

// The speed of the kernels, from timestamps around four launches.
func TestCubinGPUSpeed(t *testing.T) {
	d, s := needCubins(t)
	for _, dtype := range []string{"f16", "bf16"} {
		for _, dim := range []int{128, 64, 96} {
			for _, length := range []int{4096, 1024, 16384} {
				for _, causal := range []bool{false, true} {
					if length == 16384 && (dtype == "bf16" || dim == 96) {
						continue
					}
					batch := 16
					if length == 16384 {
						batch = 4
					}
					c := cubinCase{dtype, batch, 8, 8, length, length, dim, causal, 0, true, float32(1 / math.Sqrt(float64(dim)))}
					t.Run(c.String(), func(t *testing.T) { timeCubin(t, d, s, c) })
				}
			}
		}
	}
}

func timeCubin(t *testing.T, d *vk.Device, s *vk.Stream, c cubinCase) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	r := newCubinRun(t, d, s, c, 9, nil)
	for start := time.Now(); time.Since(start) < 500*time.Millisecond; { // the clocks rise
		for range 5 {
			require.NoError(t, r.record(s))
			require.NoError(t, s.Barrier())
		}
		require.NoError(t, s.Wait(ctx))
	}
	const samples, launches = 15, 4
	var times []time.Duration
	for range samples {
		begin, err := s.Timestamp()
		require.NoError(t, err)
		for range launches {
			require.NoError(t, r.record(s))
			require.NoError(t, s.Barrier())
		}
		end, err := s.Timestamp()
		require.NoError(t, err)
		require.NoError(t, s.Wait(ctx))
		took, err := s.Elapsed(begin, end)
		require.NoError(t, err)
		times = append(times, took/launches)
	}
	slices.Sort(times)
	pairs := float64(c.sq) * float64(c.sk)
	if c.causal {
		pairs = float64(c.sq) * float64(c.sq+1) / 2
	}
	flop := 4 * float64(c.batch*c.hq*c.d) * pairs
	median := times[samples/2]
	t.Logf("RESULT %v: %v (%v to %v), %.1f TFLOP/s", c, median, times[0], times[samples-1], flop/median.Seconds()/1e12)
}
