package attention

// queryExtent returns the batches and rows of Q, O and LSE.
func queryExtent(a *Args) (batches, rows int) {
	if a.Varlen != nil && a.Varlen.CuQ.Given() {
		return 1, a.Varlen.TotalQ
	}
	return a.B, a.Sq
}

// kvExtent returns the batches and rows of K and V.
func kvExtent(a *Args) (batches, keys int) {
	switch {
	case a.Pages != nil:
		return a.Pages.Count, a.Pages.PageSize
	case a.Varlen != nil && a.Varlen.CuK.Given():
		return 1, a.Varlen.TotalK
	}
	return a.B, a.Sk
}

// hasLSE reports whether the caller asked for LSE. An offset or strides without memory
// count too, so that missing memory is an error.
func hasLSE(a *Args) bool {
	return a.LSE.Given() || a.LSE.Offset != 0 || a.LSE.Strides != (Strides{})
}

// hasOptions reports whether a call has options in Args or a KV type of its own. Calls
// without skip the checks of options.
func hasOptions(a *Args, cfg *Config) bool {
	return a.Varlen != nil || a.Pages != nil || a.SparseTokens != nil || a.Blocks != nil || a.Bias != nil || a.Mask != nil ||
		vectorBegun(&a.ALiBi) || vectorBegun(&a.Sinks) || vectorBegun(&a.KScale) || vectorBegun(&a.VScale) || cfg.KV != KVSame
}

// scaleGroups is the number of entries of KScale and VScale for a number of keys.
func scaleGroups(c *Config, keys int) int { return ceilDivInt(keys, max(1, c.KVBlock)) }

// broadcast returns the strides with their default, and 0 for dimensions of size 1.
func broadcast(s Strides, sizes [3]int, dim int) [3]int64 {
	s = s.Resolve(sizes[1], sizes[2], dim)
	steps := [3]int64{s.Batch, s.Head, s.Seq}
	for i, n := range sizes {
		if n == 1 {
			steps[i] = 0
		}
	}
	return steps
}

// biasSizes returns the batches, heads and rows of a bias.
func biasSizes(b *Bias, s *Shape) [3]int {
	return [3]int{orFull(b.Batches, s.B), orFull(b.Heads, s.Hq), orFull(b.Rows, s.Sq)}
}

// biasStrides returns the strides of batch, head and row in elements, 0 where one entry serves all.
func biasStrides(b *Bias, s Shape) [3]int64 { return broadcast(b.Strides, biasSizes(b, &s), s.Sk) }

// maskSizes returns the batches, heads and rows of a mask.
func maskSizes(m *Mask, s *Shape) [3]int {
	return [3]int{orFull(m.Batches, s.B), orFull(m.Heads, s.Hq), orFull(m.Rows, s.Sq)}
}

// maskStrides returns the strides of batch, head and row in bytes, 0 where one entry serves all.
func maskStrides(m *Mask, s Shape) [3]int64 { return broadcast(m.Strides, maskSizes(m, &s), s.Sk) }

// blocksGrid returns the number of rows of blocks and the words in each.
func blocksGrid(b *Blocks, s *Shape) (rows, words int) {
	return ceilDivInt(s.Sq, b.BlockQ), ceilDivInt(ceilDivInt(s.Sk, b.BlockK), 32)
}

// blocksStrides returns the strides of batch, head and row of blocks in words, 0 where one entry serves all.
func blocksStrides(b *Blocks, s Shape) [3]int64 {
	rows, words := blocksGrid(b, &s)
	return broadcast(Strides{}, [3]int{orFull(b.Batches, s.B), orFull(b.Heads, s.Hq), rows}, words)
}

// orFull is a size, or the full size if it is 0.
func orFull(n, full int) int {
	if n == 0 {
		return full
	}
	return n
}

// tableStride is Pages.Stride, or the default if it is 0.
func tableStride(p *Pages, s *Shape) int {
	if p.Stride == 0 {
		return ceilDivInt(s.Sk, p.PageSize)
	}
	return p.Stride
}
