package cases

import (
	"fmt"
	"math"
	"math/rand/v2"

	"vkattn/internal/problem"
)

// MaxExtremeFlops bounds the work of a case of RandomExtreme, so that its float64
// formula takes a tenth of a second.
const MaxExtremeFlops = 60e6

// ExtremeMods is a bit of a seed of RandomExtreme: the composition has modifiers of the user.
const ExtremeMods = 1 << 48

// ExtremeMask is one, too: sparse tokens and blocks have a mask as well.
const ExtremeMask = 1 << 50

const maxFloat = math.MaxFloat32

// RandomExtreme is a random composition of options whose numbers are often at the ends
// of their ranges. The seed decides what changes the pipeline, draw decides all else:
// lengths, windows, scales, sinks, biases and data. Draws of one seed therefore share
// their pipelines, nearly always.
func RandomExtreme(seed uint64, draw int, kv problem.KVType, dtype problem.DType) Case {
	r := draws{rand.New(rand.NewPCG(seed, 0x50a6+uint64(kv)))}
	c := Case{Name: fmt.Sprintf("extreme-%d-%d", seed, draw), KeyType: kv}
	if seed%3 == 0 {
		c.ValueType = OtherKVType(kv)
	}
	r.dims(&c)
	r.modifiers(&c)
	r.layOut(&c)
	r.lengths(&c)
	if seed&ExtremeMask != 0 {
		c.addMask(r)
	}
	if seed&ExtremeMods != 0 {
		c.Mods = 1 + int(seed%(1<<16))
	}

	d := draws{rand.New(rand.NewPCG(seed, 0xd4a3+uint64(draw)))}
	c.Seed = d.Uint64() | 1
	d.drawLengths(&c)
	d.drawWindow(&c)
	d.drawScores(&c, dtype)
	d.drawExtremes(&c, dtype)
	if d.chance(4) {
		d.drawNonFinite(&c)
	}
	return c
}

// pick is one of some values.
func pick[T any](r draws, of ...T) T { return of[r.IntN(len(of))] }

func (r draws) dims(c *Case) {
	one := func() int {
		switch r.IntN(6) {
		case 0:
			return pick(r, 32, 64, 64, 80, 96, 128, 128, 160, 192, 256)
		case 1, 2, 3:
			return 1 + r.IntN(256)
		case 4:
			return 8 * (1 + r.IntN(32))
		}
		return 1 + r.IntN(64)
	}
	c.D = one()
	c.Dv = c.D
	if r.chance(2) {
		c.Dv = one()
	}
	if c.KeyType.Blocked() {
		c.D, c.Dv = 32*(1+r.IntN(8)), 32*(1+r.IntN(8))
	}
	if r.chance(10) {
		wide := pick(r, [2]int{192, 128}, [2]int{576, 512}, [2]int{320, 256}, [2]int{512, 512})
		c.D, c.Dv = wide[0], wide[1]
	}
	c.VInK = c.D >= c.Dv && c.KeyType == problem.KVSame && r.chance(12)
	if c.KeyType.Latent() {
		c.D, c.Dv, c.VInK = 576, 512, true
	}
	c.Hkv = pick(r, 1, 1, 2, 3)
	c.Hq = c.Hkv * pick(r, 1, 1, 2, 4, 5, 8)
	c.LSE = !r.chance(4)
	if c.KeyType.Scaled() && r.chance(3) {
		c.KVBlock = pick(r, 2, 16, 100, problem.KVBlockHead, problem.KVBlockTensor)
	}
}

func (r draws) rowSpread() Spread {
	return Spread{On: true, Batches: r.chance(2), Heads: r.chance(2), Rows: !r.chance(3)}
}

func (r draws) modifiers(c *Case) {
	c.Causal = Causals[r.IntN(len(Causals))]
	if c.Causal == problem.CausalNone {
		c.Align = Causals[1+r.IntN(2)]
	}
	switch r.IntN(7) { // a call takes one of these
	case 0:
		c.SparseRatio, c.Shuffled, c.PerRow, c.TopK = pick(r, 0.02, 0.2, 0.7, 1), !r.chance(3), r.chance(2), r.chance(2)
	case 1:
		c.BlockQ, c.BlockK = 16<<r.IntN(4), 16<<r.IntN(4)
		c.Blocks = Spread{On: true, Batches: r.chance(2), Heads: r.chance(2)}
	case 2:
		c.Mask = r.rowSpread()
	}
	if r.chance(2) { // which sides there are; drawWindow says how long they are
		sides := pick(r, [2]int{0, 0}, [2]int{-1, 0}, [2]int{0, -1})
		c.Window = problem.WindowOf(sides[0], sides[1])
	}
	if r.chance(3) {
		c.Softcap = 1
	}
	if r.chance(2) {
		c.Bias = BiasKind{Spread: r.rowSpread(), DType: problem.DTypes()[r.IntN(3)]}
	}
	c.ALiBi, c.Sinks = r.chance(3), r.chance(2)
	if r.chance(3) {
		c.FixedSplit = pick(r, 1, 2, 3, 7, 16)
	}
}

func (r draws) layOut(c *Case) {
	c.Layout = []LayoutKind{Tight, Packed, BSHD, Padded, Odd}[r.IntN(5)]
	c.Access = Accesses[r.IntN(len(Accesses))]
	c.PackedQ, c.PackedK, c.LooseQ, c.LooseK = r.chance(2), r.chance(2), r.chance(3), r.chance(3)
	if r.chance(2) {
		c.PackedK = false
		c.PageSize = pick(r, 1, 2, 3, 5, 16, 16, 32, 64, 128, 256, 1+r.IntN(256))
		c.Prefix = r.IntN(2) * r.IntN(150)
	}
}

// lengths bounds the sequences.
func (r draws) lengths(c *Case) {
	sequences := 1 + r.IntN(4)
	c.Sq, c.Sk = 1+r.IntN(100), 1+r.IntN(260)
	if r.chance(2) {
		c.Sq = pick(r, 1, 1, 1+r.IntN(8))
	}
	for c.Flops() == 0 {
		for i := range sequences {
			rows, keys := 1+r.IntN(c.Sq), r.IntN(c.Sk+1)
			if r.chance(3) {
				rows, keys = c.Sq, c.Sk
			}
			c.Seqs = append(c.Seqs, Seq{i, rows, keys})
		}
	}
	for c.Flops() > MaxExtremeFlops {
		for i := range c.Seqs {
			c.Seqs[i].Rows, c.Seqs[i].Keys = (c.Seqs[i].Rows+1)/2, (3*c.Seqs[i].Keys+1)/4
		}
		c.Sq, c.Sk = (c.Sq+1)/2, (3*c.Sk+1)/4
	}
}

// drawLengths changes lengths within their bounds. Totals stay where plans depend on
// them: rows of packed sequences, and the keys that lists are made of.
func (r draws) drawLengths(c *Case) {
	r.Shuffle(len(c.Seqs), func(i, j int) {
		a, b := &c.Seqs[i], &c.Seqs[j]
		a.Rows, b.Rows = b.Rows, a.Rows
	})
	r.Shuffle(len(c.Seqs), func(i, j int) {
		a, b := &c.Seqs[i], &c.Seqs[j]
		a.Keys, b.Keys = b.Keys, a.Keys
	})
	for i := range c.Seqs {
		if s := &c.Seqs[i]; c.SparseRatio == 0 && s.Keys > 0 && r.chance(2) {
			s.Keys = r.IntN(s.Keys) + 1
		}
	}
}

func (r draws) drawWindow(c *Case) {
	if !c.Window.Given() {
		return
	}
	side := func(old int) int {
		if old < 0 {
			return -1
		}
		switch r.IntN(3) {
		case 0:
			return pick(r, 0, 0, 1, 2, r.IntN(40))
		case 1:
			return r.IntN(300)
		}
		return pick(r, math.MaxInt32, math.MaxInt32-1, math.MaxInt32-r.IntN(400), 1<<30, 1<<30+r.IntN(400), 1<<30-1, 1<<24)
	}
	c.Window = problem.WindowOf(side(c.Window.Left()), side(c.Window.Right()))
}

// drawScores draws what decides how large scores are.
func (r draws) drawScores(c *Case, dtype problem.DType) {
	if c.Softcap != 0 {
		c.Softcap = pick[float32](r, 50, 30, 3, 1e-3, 1e4)
	}
	c.Data = pick(r, Normal, Normal, Uniform, Uniform, Equal)
	switch r.IntN(8) {
	case 0:
		c.Scale = problem.ScaleOf(pick[float32](r, 0, -0.1, 0.05, 1e-8, -1e-8, 1))
	case 1:
		c.Scale = problem.ScaleOf(pick[float32](r, 1e4, 1e8, -1e4, -1e8))
	case 2:
		c.Data = pick(r, Large, Rising, Falling)
	case 3:
		gains := []float32{10, 1e3}
		if dtype != problem.F16 {
			gains = append(gains, 1e5)
		}
		c.Extremes.Q = gains[r.IntN(len(gains))]
		if c.KeyType == problem.KVSame {
			c.Extremes.K = gains[r.IntN(len(gains))]
		}
	}
	if c.KeyType == problem.KVSame && !c.VInK && r.chance(4) {
		c.Extremes.V = pick[float32](r, 1e3, 1e-3)
		if dtype != problem.F16 && r.chance(2) {
			c.Extremes.V = pick[float32](r, 1e30, 1e-30)
		}
	}
}

// drawExtremes draws the numbers of vectors and biases.
func (r draws) drawExtremes(c *Case, dtype problem.DType) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	e := &c.Extremes
	if c.Sinks && !r.chance(4) {
		for range c.Hq {
			ordinary := float32(8*r.Float64() - 4)
			e.Sinks = append(e.Sinks, pick(r, ordinary, ordinary, ordinary, 0, -inf, inf, nan, maxFloat, -maxFloat, 3e38, -3e38,
				1e30, -1e30, 1e9, -1e9, 88, -88, 1e4, -1e4))
		}
	}
	if c.Bias.On && !r.chance(3) {
		all := []float32{-maxFloat, -maxFloat, maxFloat, -65504, 65504, 3e38, -3e38, 1e30, -1e30, -1e9, 1e4, -1e4, -inf, 0}
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		e.Bias = all[:1+r.IntN(4)]
	}
	if c.ALiBi && r.chance(2) {
		for range c.Hq {
			e.Slopes = append(e.Slopes, pick[float32](r, 0, 0, 0.25, 1, 1e4, 1e-8, -0.125, 1e2))
		}
	}
	if !c.KeyType.Scaled() {
		return
	}
	some := func(of []float32) []float32 {
		switch r.IntN(4) {
		case 0:
			return nil
		case 1:
			return []float32{of[r.IntN(len(of))]}
		}
		r.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
		return append(of[:1+r.IntN(3)], nan)
	}
	e.KScales = some([]float32{0, 0x1p-126, 0x1p-140, 0x1p60, -0x1p60, -0x1p-6, 0x1p-20, 1e4, float32(math.Copysign(0, -1))})
	values := []float32{0, 0x1p-126, 0x1p-140, -0x1p-6, 0x1p-20, 4, -4}
	if dtype != problem.F16 {
		values = append(values, 0x1p60, -0x1p60)
	}
	e.VScales = some(values)
}

// drawNonFinite adds Inf and NaN to the numbers of the tensors.
func (r draws) drawNonFinite(c *Case) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	e := &c.Extremes
	e.NonFinite = true
	if c.Scale == problem.ScaleOf(0) {
		c.Scale = problem.Scale{} // kernels take 2^-100, and Inf times that is Inf
	}
	if e.Bias != nil && r.chance(2) {
		e.Bias = append(e.Bias, nan, inf)
	}
	if e.KScales != nil && r.chance(2) {
		e.KScales = append(e.KScales, ScaleNaN, inf)
	}
	if e.VScales != nil && r.chance(2) {
		e.VScales = append(e.VScales, ScaleNaN, -inf)
	}
}

// addMask gives sparse tokens or blocks a mask as well, unless there is a bias: GPUs do not take all three.
func (c *Case) addMask(r draws) {
	if (c.SparseRatio > 0 || c.BlockQ > 0) && !c.Bias.On {
		c.Mask = r.spread()
	}
}

// RandomOptions is the n-th random composition of options, the same on every run. Its name
// is "random-n".
func RandomOptions(n int) Case {
	r := draws{rand.New(rand.NewPCG(uint64(n), 0xfea7))}
	c := Case{Name: fmt.Sprintf("random-%d", n), LSE: true, Seed: uint64(n)<<1 | 1<<40}
	c.D = []int{64, 128, 96, 64, 32, 16, 33, 7, 1, 128}[r.IntN(10)]
	c.Dv = c.D
	if r.chance(3) {
		c.Dv = []int{32, 64, 80, 8, 1, 128}[r.IntN(6)]
	}
	if r.chance(5) {
		c.Scale = []problem.Scale{problem.ScaleOf(0), problem.ScaleOf(-0.1), problem.ScaleOf(0.05)}[r.IntN(3)]
	}
	heads := [][2]int{{4, 2}, {8, 1}, {3, 3}, {10, 2}}[r.IntN(4)]
	c.Hq, c.Hkv = heads[0], heads[1]
	c.Causal = Causals[r.IntN(len(Causals))]
	if c.Causal == problem.CausalNone {
		c.Align = Causals[1+r.IntN(2)]
	}
	c.Layout = []LayoutKind{Tight, Packed, BSHD, Padded, Odd}[r.IntN(5)]
	c.Data = []DataKind{Normal, Uniform}[r.IntN(2)]

	short := r.chance(2)
	sequence := func(i int) Seq {
		rows, keys := 1+r.IntN(120), r.IntN(200)
		if short {
			rows, keys = 1+r.IntN(8), r.IntN(400)
		}
		if r.chance(6) {
			rows = 0
		}
		return Seq{i, rows, keys}
	}
	for i := range 1 + r.IntN(4) {
		c.Seqs = append(c.Seqs, sequence(i))
	}
	c.PackedQ, c.PackedK, c.LooseQ, c.LooseK = r.chance(2), r.chance(2), r.chance(3), r.chance(3)
	if !c.PackedQ && !c.PackedK && !c.LooseQ && !c.LooseK && r.chance(2) {
		for i := range c.Seqs { // nothing but a batch
			c.Seqs[i].Rows, c.Seqs[i].Keys = max(c.Seqs[0].Rows, 1), max(c.Seqs[0].Keys, 1)
		}
	}
	for _, o := range options {
		if o.draw != nil {
			o.draw(&c, r)
		}
	}
	if n%3 == 2 {
		c.addMask(r)
	}
	return c
}
