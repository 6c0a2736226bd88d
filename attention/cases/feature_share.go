package cases

import (
	"fmt"
	"slices"
	"strings"

	"vkattn/attention"
)

// What a table costs on a device is compiling, and the storage types of a tier
// differ in little but how elements are read and written. So the types divide the
// pipelines of a table between them, in such a way that each of them meets every
// feature, alone and with what it has to go along with.

// Facets are what a case shows of the features, by name: each of them, and each
// together with pages and with lengths of sequences.
func (c FeatureCase) Facets() []string {
	shape := c.Shape()
	usedQ, usedK := c.usedLengths()
	varlen := c.PackedQ || c.PackedK || usedQ || usedK
	var all []string
	also := func(on bool, format string, args ...any) {
		if on {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	feature := func(on bool, format string, args ...any) {
		name := fmt.Sprintf(format, args...)
		also(on, "%s", name)
		also(on && c.PageSize > 0, "%s, paged", name)
		also(on && varlen, "%s, varlen", name)
	}
	also(c.PackedQ, "packed rows")
	also(c.PackedK, "packed keys")
	also(usedQ && !c.PackedQ, "padded rows")
	also(usedK && !c.PackedK, "padded keys")
	also(c.PackedQ && c.LooseQ, "packed rows with gaps")
	also(c.PackedK && c.LooseK, "packed keys with gaps")
	also(varlen, "varlen, %v", c.Causal)
	also(slices.ContainsFunc(c.Seqs, func(s Seq) bool { return s.Rows == 0 || s.Keys == 0 }), "empty sequences")
	also(slices.ContainsFunc(c.Seqs, func(s Seq) bool { return s.Keys > 10000 }) && len(c.Seqs) > 1, "short and very long sequences")
	also(len(c.Seqs) >= 600 && shape.Sq > 1000, "600 decodes and long prefills")
	also(len(c.Seqs) >= 600 && shape.Sq < 16, "600 decodes")
	also(c.PageSize > 0, "pages of %d", c.PageSize)
	also(c.PageSize > 0 && varlen, "pages of %d, varlen", c.PageSize)
	also(c.Prefix > 0 && c.PageSize > 0, "shared pages")
	feature(c.Kept > 0, "kept tokens")
	also(c.Shuffled, "kept tokens, in any order")
	also(c.Kept > 0 && c.Kept < 0.05, "few kept tokens")
	feature(c.BlockQ > 0, "blocks")
	feature(c.Window.Left() >= 0, "window to the left, %v", c.Causal)
	feature(c.Window.Right() >= 0, "window to the right, %v", c.Causal)
	feature(c.Softcap != 0, "softcap")
	feature(c.ALiBi, "ALiBi")
	also(c.ALiBi, "ALiBi, %v", max(c.Causal, c.Align))
	feature(c.Sinks, "sinks")
	feature(c.Bias.On, "bias %v", c.Bias.DType)
	also(c.Bias.On, "bias of %v", c.Bias.Spread)
	feature(c.Mask.On, "mask")
	also(c.Mask.On, "mask of %v", c.Mask)
	feature(c.KV != attention.KVSame, "%v", c.KV)
	also(c.KVBlock > 1, "%v, scales of blocks", c.KV)
	feature(c.FixedSplit > 1, "fixed split")
	also(shape.Sq <= 16, "decode, group of %d", min(c.Group(), 8))
	also(shape.Sq <= 16 && shape.Sq > 1, "decode of several rows")
	also(c.VInK, "V in K")
	also(c.Layout == Odd, "odd places")
	also(c.Access == attention.AccessDescriptors, "descriptors")
	also(strings.HasPrefix(c.Name, "random"), "random composition")
	also(true, "head dimensions %d and %d", c.D, c.Dv)
	return all
}

// ShareFeatures deals a table out to n storage types.
func ShareFeatures(list []FeatureCase, n int) [][]FeatureCase {
	var groups [][]int // of one pipeline each, as places of the list
	number := map[string]int{}
	for i, c := range list {
		key := c.Pipeline()
		g, known := number[key]
		if !known {
			g = len(groups)
			number[key] = g
			groups = append(groups, nil)
		}
		groups[g] = append(groups[g], i)
	}
	facets := make([][]string, len(list))
	for i, c := range list {
		facets[i] = c.Facets()
	}
	chosen := make([]map[int]bool, n) // places of the list
	met := make([]map[string]bool, n)
	pipelines := make([]int, n)
	for t := range n {
		chosen[t], met[t] = map[int]bool{}, map[string]bool{}
	}
	add := func(t int, places ...int) {
		for _, i := range places {
			chosen[t][i] = true
			for _, f := range facets[i] {
				met[t][f] = true
			}
		}
		pipelines[t]++
	}
	gain := func(t int, places ...int) int {
		fresh := map[string]bool{}
		for _, i := range places {
			for _, f := range facets[i] {
				if !met[t][f] {
					fresh[f] = true
				}
			}
		}
		return len(fresh)
	}
	for _, g := range groups {
		best := 0
		for t := 1; t < n; t++ {
			a, b := gain(t, g...), gain(best, g...)
			if a > b || a == b && pipelines[t] < pipelines[best] {
				best = t
			}
		}
		add(best, g...)
	}
	// What has fewer pipelines than there are types: the case that adds most.
	for t := range n {
		for {
			best, most := -1, 0
			for i := range list {
				if chosen[t][i] {
					continue
				}
				if m := gain(t, i); m > most || m == most && m > 0 && list[i].Flops() < list[best].Flops() {
					best, most = i, m
				}
			}
			if best < 0 {
				break
			}
			add(t, best)
		}
	}
	shares := make([][]FeatureCase, n)
	for t := range n {
		for i, c := range list {
			if chosen[t][i] {
				shares[t] = append(shares[t], c)
			}
		}
	}
	return shares
}
