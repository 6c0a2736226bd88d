package bench

import (
	"fmt"
	"math"

	"vkattn/attention"
)

// compare fills in Row.Versus of the rows of one problem, which were timed in turns.
func compare(rows []*Row) {
	for _, p := range rows {
		if !p.isBaseline() || p.Status != OK {
			continue
		}
		for _, r := range rows {
			if r.Status != OK || r.Ms.Median <= 0 {
				continue // an ablation is no result and has no ratio
			}
			if r.Versus == nil {
				r.Versus = map[string]float64{}
			}
			r.Versus[p.Name()] = p.Ms.Median / r.Ms.Median
		}
	}
}

// Comparison sums up the ratios of one tier to one peer or baseline.
type Comparison struct {
	Who, Peer string
	Cells     int     // problems that both ran
	GeoMean   float64 // of the ratios; above 1 the tier is faster
	Min       float64 // the least ratio
	At        *Row    // the row with the least ratio
}

// Compare returns a Comparison for each pair of a tier (with its variant) and a peer or
// baseline that ran the same problem, in the order of the rows.
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

// String is the line below a table.
func (c Comparison) String() string {
	cells := "cells"
	if c.Cells == 1 {
		cells = "cell"
	}
	return fmt.Sprintf("%s / %s: geometric mean %.3fx, minimum %.3fx at %v, %d %s", c.Who, c.Peer, c.GeoMean, c.Min, c.At.Problem(), c.Cells, cells)
}

// Problem is the problem of the row.
func (r *Row) Problem() Problem {
	if r.problem != (Problem{}) {
		return r.problem
	}
	if r.Ceiling != "" {
		return Problem{Ceiling: r.Ceiling, Config: attention.Config{DType: r.DType}}
	}
	return Problem{Shape: r.Shape(), Config: r.Config(), LSE: r.LSE}
}
