package host

import (
	"math/bits"

	"vkattn/internal/half"
	"vkattn/internal/problem"
	"vkattn/internal/simd"
	"vkattn/internal/tensors"
)

// cpuBackwardWorker computes tasks in its own memory.
type cpuBackwardWorker struct {
	*simd.Backward
	c       *cpuBackward
	dAt     []int64   // byte offsets of rows or keys of a gradient
	delta   []float64 // of the rows of a block
	biasSum []float64 // [heads][keys] of dBias that all rows share
	heads   int       // of biasSum
	modifiedTile
}

func newCPUBackwardWorker(c *cpuBackward) *cpuBackwardWorker {
	w := &cpuBackwardWorker{c: c}
	w.Backward = Kernels.NewBackward(c.Cfg.HeadDim, c.Cfg.ValueDim(), simd.BackwardOptions{
		Scale: c.Cfg.ScaleValue(), Softcap: c.Cfg.Softcap, ALiBi: c.Args.ALiBi.Given(),
		Bias: c.Args.Bias != nil, Mask: c.Args.Mask != nil || c.Args.Blocks != nil || c.Cfg.MaskMod.Given(), Counts: c.Args.SparseTokens != nil,
		DK: c.want.K, DV: c.want.V, Accumulate: c.args.Accumulate, Dropout: simdDropout(&c.Call),
	})
	w.modifiedTile.init(&c.Call)
	w.openTables()
	w.dAt, w.delta = make([]int64, max(simd.BackwardRows, simd.BackwardKeys)), make([]float64, simd.BackwardRows)
	if c.want.Bias && tensors.BiasSizes(c.Args.Bias, &c.Args.Shape)[2] == 1 {
		w.heads = 1
		if tensors.BiasSizes(c.Args.Bias, &c.Args.Shape)[1] > 1 {
			w.heads = c.Args.Group()
		}
		w.biasSum = make([]float64, w.heads*simd.BackwardKeys)
	}
	return w
}

// rowAt returns the head and the row in the sequence of a packed row.
func (c *cpuBackward) rowAt(u *backwardUnit, r int) (head, row int) {
	group := c.Args.Group()
	return u.kv*group + r%group, r / group
}

// rowsOf returns the first packed row of a block and the number of its rows.
func (w *cpuBackwardWorker) rowsOf(u *backwardUnit, block int) (first, n int) {
	first = block * simd.BackwardRows
	return first, min(simd.BackwardRows, u.rows-first)
}

// locate sets the byte offsets of the rows of a block in Q and dO.
func (w *cpuBackwardWorker) locate(u *backwardUnit, first int, rows []simd.BackwardRow) {
	c := w.c
	group := c.Args.Group()
	g, row := first%group, first/group
	batch, at := c.QueryRow(u.b, row)
	for i := range rows {
		w.QAt[i] = -1
		if rows[i].First < rows[i].End {
			w.QAt[i], w.DOAt[i] = c.Q.ByteOf(batch, u.kv*group+g, at), c.dO.ByteOf(batch, u.kv*group+g, at)
		}
		if g++; g == group {
			g, at = 0, at+1
		}
	}
}

// beginKeys reads a block of keys.
func (w *cpuBackwardWorker) beginKeys(u *backwardUnit, tile int) (n int) {
	c := w.c
	first := tile * simd.BackwardKeys
	n = min(simd.BackwardKeys, u.keys-first)
	for i := range n {
		w.Keys[i] = u.key(first + i)
		batch, at := c.KVRow(u.b, int(w.Keys[i]))
		w.KAt[i], w.VAt[i] = c.K.ByteOf(batch, u.kv, at), c.V.ByteOf(batch, u.kv, at)
		if u.count != nil {
			w.Count[i] = u.count[first+i]
		}
	}
	w.BeginKeys(c.Args.K.Host, c.Args.V.Host, n, c.stored)
	return n
}

// run computes a task.
func (w *cpuBackwardWorker) run(u *backwardUnit, tile, task int) {
	c := w.c
	n := w.beginKeys(u, tile)
	clear(w.biasSum)
	first, end := 0, u.blocks
	if u.folds > 1 {
		first, end = task*backwardFold, min((task+1)*backwardFold, u.blocks)
	}
	fold := first / backwardFold
	for block := first; block < end; block++ {
		info := &c.blocks[u.firstBlk+block]
		if int(info.first) > tile || int(info.last) < tile {
			continue
		}
		if f := block / backwardFold; f != fold {
			w.Fold()
			fold = f
		}
		w.block(u, tile, task, block, info)
		u.pass(tile, task, int32(block+1))
	}
	w.Fold()
	if w.biasSum != nil {
		u.waitForSharers(tile, allBlocks)
		w.storeBiasSum(u, n)
	}
	if u.folds == 1 || w.combine(u, tile, task) {
		if c.want.K {
			w.storeKeys(u, n, &c.dK, c.args.DK.Host, w.StoreDK)
		}
		if c.want.V {
			w.storeKeys(u, n, &c.dV, c.args.DV.Host, w.StoreDV)
		}
	}
	u.waitForSharers(tile, allBlocks)
	u.pass(tile, task, allBlocks)
}

// combine stores the sums of a fold. The last of a tile to do so adds up all folds in their
// order and returns true.
func (w *cpuBackwardWorker) combine(u *backwardUnit, tile, fold int) bool {
	sums := w.Sums()
	part := func(fold int) []float32 { return w.c.parts[(u.firstPart+tile*u.folds+fold)*len(sums):][:len(sums)] }
	copy(part(fold), sums)
	if int(u.stored[tile].Add(1)) < u.folds {
		return false
	}
	clear(sums)
	for fold := range u.folds {
		w.AddSums(part(fold))
	}
	return true
}

// block computes the tile of a block of rows.
func (w *cpuBackwardWorker) block(u *backwardUnit, tile, task, block int, info *backwardBlock) {
	c := w.c
	first, rows := w.rowsOf(u, block)
	w.Rows = c.rows[u.firstRow+first:][:rows]
	any := w.compute(u, first, info)
	if c.want.Bias && w.biasSum == nil {
		// The heads of the last row may be in the next block, which adds to the same elements.
		group := c.Args.Group()
		last := ((first+rows-1)/group + 1) * group
		u.waitForSharers(tile, int32(countBlocks(last, simd.BackwardRows)))
		if any {
			w.AddBias(c.args.DBias.Host)
		}
	}
	if w.biasSum != nil && any {
		w.SumBias(w.biasSum, first%w.heads, w.heads)
	}
	if !c.want.Q {
		return
	}
	if tile > int(info.first) {
		u.wait(tile-1, task, int32(block+1))
	}
	if any {
		w.AddQuery(c.sums[(u.firstRow+first)*c.stride:][:rows*c.stride])
	}
	if tile == int(info.last) {
		w.storeQuery(u, block)
	}
}

// compute computes all of a tile but dQ and dBias. It returns false if no row attends to a
// key of the tile.
func (w *cpuBackwardWorker) compute(u *backwardUnit, first int, info *backwardBlock) bool {
	c := w.c
	w.locate(u, first, w.Rows)
	w.ReadRows(c.Args.Q.Host, c.args.DO.Host, len(w.Rows), c.stored)
	if !w.readOptions(u, first) {
		return false
	}
	if w.score != nil {
		w.modifyScores(u, first, w.full(info))
		w.TileOf(w.product, w.inner, info.finite)
		w.sumPlaces(u, first)
		return true
	}
	w.Tile(w.full(info), info.finite)
	return true
}

// full reports whether every row of a block attends to every key of the tile.
func (w *cpuBackwardWorker) full(info *backwardBlock) bool {
	a := w.c.Args
	return a.Mask == nil && a.Blocks == nil && !w.c.Cfg.MaskMod.Given() && info.mostLo <= w.Keys[0] && w.Last() < info.leHi
}

// readOptions reads the bias and the mask or bitmap of a tile, and the mask of a modifier. It returns false if a mask
// excludes all slots.
func (w *cpuBackwardWorker) readOptions(u *backwardUnit, first int) bool {
	c := w.c
	if c.Args.Bias == nil && c.Args.Mask == nil && c.Args.Blocks == nil && !c.Cfg.MaskMod.Given() {
		return true
	}
	for i := range w.Rows {
		head, row := c.rowAt(u, first+i)
		switch {
		case c.Args.Blocks != nil:
			w.MaskAt[i] = c.BlocksAt(u.b, head, row)
		case c.Args.Mask != nil:
			w.MaskAt[i] = c.MaskAt(u.b, head, row)
		}
		if c.Args.Bias != nil {
			w.BiasAt[i] = c.BiasAt(u.b, head, row)
		}
		if c.want.Bias {
			w.DBiasAt[i] = c.dBiasAt(int64(u.b), int64(head), int64(row))
		}
	}
	switch {
	case c.Args.Blocks != nil:
		if !w.ReadBlocks(c.Args.Blocks.Map.Host, bits.TrailingZeros(uint(c.Args.Blocks.BlockK))) {
			return false
		}
	case c.Args.Mask != nil:
		if !w.ReadMask(c.Args.Mask.Host) {
			return false
		}
	}
	if (c.Cfg.MaskMod.Given() || c.Args.Blocks != nil && c.Args.Mask != nil) && !w.maskSlots(u, first, c.Args.Mask != nil || c.Args.Blocks != nil) {
		return false
	}
	if c.Args.Bias != nil {
		w.ReadBias(c.Args.Bias.Host, simdType(c.Args.Bias.DType))
	}
	return true
}

// storeQuery stores the rows of dQ of a block.
func (w *cpuBackwardWorker) storeQuery(u *backwardUnit, block int) {
	c := w.c
	first, n := w.rowsOf(u, block)
	for i := range n {
		head, row := c.rowAt(u, first+i)
		batch, at := c.QueryRow(u.b, row)
		w.dAt[i] = c.dQ.ByteOf(batch, head, at)
	}
	w.StoreDQ(c.args.DQ.Host, w.dAt, c.sums[(u.firstRow+first)*c.stride:], n, c.args.Accumulate, c.gradient)
}

// storeKeys stores dK or dV of a block of n keys.
func (w *cpuBackwardWorker) storeKeys(u *backwardUnit, n int, view *tensors.HostRows, host []byte, store func([]byte, []int64, simd.Type)) {
	for i := range n {
		batch, at := w.c.KVRow(u.b, int(w.Keys[i]))
		w.dAt[i] = view.ByteOf(batch, u.kv, at)
	}
	store(host, w.dAt, w.c.gradient)
}

// storeBiasSum adds the sums over all rows to dBias.
func (w *cpuBackwardWorker) storeBiasSum(u *backwardUnit, n int) {
	c := w.c
	for h := range w.heads {
		at := c.dBiasAt(int64(u.b), int64(u.kv*c.Args.Group()+h), 0)
		for i, sum := range w.biasSum[h*simd.BackwardKeys:][:n] {
			var x [1]float32
			to := c.args.DBias.Host[(at+int64(w.Keys[i]))*int64(problem.F32.Size()):]
			half.DecodeF32(x[:], to)
			x[0] = float32(float64(x[0]) + sum)
			half.EncodeF32(to, x[:])
		}
	}
}
