package cases

import (
	"fmt"
	"math/rand/v2"

	"vkattn/internal/problem"
)

// RandomOptions is the n-th random composition of options, the same on every run. Its name
// is "random-n".
func RandomOptions(n int) Case {
	r := rand.New(rand.NewPCG(uint64(n), 0xfea7))
	chance := func(of int) bool { return r.IntN(of) == 0 }
	c := Case{Name: fmt.Sprintf("random-%d", n), LSE: true, Seed: uint64(n)<<1 | 1<<40}
	c.D = []int{64, 128, 96, 64, 32, 16, 33, 7, 1, 128}[r.IntN(10)]
	c.Dv = c.D
	if chance(3) {
		c.Dv = []int{32, 64, 80, 8, 1, 128}[r.IntN(6)]
	}
	if chance(5) {
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

	short := chance(2)
	sequence := func(i int) Seq {
		rows, keys := 1+r.IntN(120), r.IntN(200)
		if short {
			rows, keys = 1+r.IntN(8), r.IntN(400)
		}
		if chance(6) {
			rows = 0
		}
		return Seq{i, rows, keys}
	}
	for i := range 1 + r.IntN(4) {
		c.Seqs = append(c.Seqs, sequence(i))
	}
	c.PackedQ, c.PackedK, c.LooseQ, c.LooseK = chance(2), chance(2), chance(3), chance(3)
	if !c.PackedQ && !c.PackedK && !c.LooseQ && !c.LooseK && chance(2) {
		for i := range c.Seqs { // nothing but a batch
			c.Seqs[i].Rows, c.Seqs[i].Keys = max(c.Seqs[0].Rows, 1), max(c.Seqs[0].Keys, 1)
		}
	}
	if chance(2) {
		c.PageSize, c.PackedK = pageSizes[r.IntN(len(pageSizes))], false
		c.Prefix = r.IntN(2) * r.IntN(150)
	}
	any := func() Spread { return Spread{true, chance(2), chance(2), chance(2)} }
	switch r.IntN(6) { // of these one at most
	case 0:
		c.SparseRatio, c.Shuffled = []float64{0.02, 0.2, 0.7, 1}[r.IntN(4)], chance(2)
	case 1:
		c.BlockQ, c.BlockK, c.Blocks = 16<<r.IntN(4), 16<<r.IntN(4), Spread{true, chance(2), chance(2), false}
	case 2:
		c.Mask = any()
	}
	if chance(3) {
		c.Window = problem.WindowOf(r.IntN(90)-1, r.IntN(90)-1)
	}
	if chance(3) {
		c.Softcap = []float32{50, 3}[r.IntN(2)]
	}
	if chance(3) {
		c.Bias = BiasKind{any(), problem.DTypes()[r.IntN(3)]}
	}
	c.ALiBi, c.Sinks = chance(3), chance(3)
	if chance(3) {
		c.KV = problem.KVTypes()[1+r.IntN(len(problem.KVTypes())-1)]
		if c.KV.Scaled() && chance(2) {
			c.KVBlock = []int{2, 16, 100}[r.IntN(3)]
		}
		if c.KV.Blocked() {
			c.D, c.Dv = []int{32, 64, 128}[r.IntN(3)], []int{32, 64, 96}[r.IntN(3)]
		}
	}
	if chance(3) {
		c.FixedSplit = []int{1, 2, 3, 7}[r.IntN(4)]
	}
	return c
}
