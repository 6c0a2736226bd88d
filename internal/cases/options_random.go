package cases

import (
	"fmt"
	"math/rand/v2"

	"vkattn/internal/problem"
)

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
