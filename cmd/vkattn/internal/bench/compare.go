package bench

import (
	"fmt"
	"math"

	"vkattn/attention"
)

// compare fills in how many times faster than each peer, and each kernel of tier
// cuda, every row of one problem is. They took turns, so the ratio is one of the same minutes.
func compare(rows []*Row) {
	for _, p := range rows {
		if !p.isBaseline() || p.Status != OK {
			continue
		}
		for _, r := range rows {
			if r.Status != OK || r.Ms.Median <= 0 {
				continue // an ablation is no result, and has no ratio
			}
			if r.Versus == nil {
				r.Versus = map[string]float64{}
			}
			r.Versus[p.Name()] = p.Ms.Median / r.Ms.Median
		}
	}
}

// Comparison sums up the cells that a tier and a peer both ran.
type Comparison struct {
	Who, Peer string
	Cells     int
	GeoMean   float64 // of the ratios; above 1 the tier is faster
	Min       float64
	At        *Row // where the ratio is least
}

// Compare returns one Comparison per tier (and variant) and peer, or kernel of tier
// cuda, that share a cell, in the order of the rows.
func Compare(rows []*Row) []Comparison {
	var peers []string
	seen := map[string]bool{}
	for _, r := range rows {
		if r.isBaseline() && !seen[r.Name()] {
			seen[r.Name()] = true
			peers = append(peers, r.Name())
		}
	}
	var out []Comparison
	at := map[[2]string]int{}
	for _, r := range rows {
		if r.Peer || r.Baseline != "" {
			continue
		}
		for _, p := range peers {
			x, ok := r.Versus[p]
			if !ok || p == r.Name() {
				continue
			}
			key := [2]string{r.Who(), p}
			i, ok := at[key]
			if !ok {
				i = len(out)
				at[key] = i
				out = append(out, Comparison{Who: key[0], Peer: p, Min: math.Inf(1)})
			}
			c := &out[i]
			c.Cells++
			c.GeoMean += math.Log(x)
			if x < c.Min {
				c.Min, c.At = x, r
			}
		}
	}
	for i := range out {
		out[i].GeoMean = math.Exp(out[i].GeoMean / float64(out[i].Cells))
	}
	return out
}

// String is one line for people.
func (c Comparison) String() string {
	cells := "cells"
	if c.Cells == 1 {
		cells = "cell"
	}
	return fmt.Sprintf("%s / %s: geometric mean %.3fx, minimum %.3fx at %v, %d %s", c.Who, c.Peer, c.GeoMean, c.Min, c.At.Problem(), c.Cells, cells)
}

// Problem is what the row computed.
func (r *Row) Problem() Problem {
	if r.problem != (Problem{}) {
		return r.problem
	}
	return Problem{
		Shape:  attention.Shape{B: r.B, Hq: r.Hq, Hkv: r.Hkv, Sq: r.Sq, Sk: r.Sk},
		Config: attention.Config{DType: r.DType, HeadDim: r.D, HeadDimV: r.Dv, Causal: r.Causal},
	}
}
