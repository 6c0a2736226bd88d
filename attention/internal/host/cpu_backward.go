package host

import (
	"math"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"vkattn/attention/half"
	"vkattn/attention/internal/par"
	"vkattn/attention/internal/simd"
	"vkattn/attention/internal/tensors"
	"vkattn/attention/problem"
	"vkattn/vk/hostmem"
)

// Backward computes the gradients of a call in host memory, those that have an output.
// It reads O and LSE as the forward call has written them. The caller has checked a, O and
// LSE included.
//
// A unit is a sequence and key head with all query heads of its group, whose rows are
// packed: row r is of head r % group. A task is a block of keys of a unit. It loops over
// the blocks of rows, sums dK and dV, and adds to dQ, five products in all. Tasks that add
// to the same rows of dQ take turns in the order of their keys, and a task that has to wait
// is never ahead of one that has not begun. So each sum has one order, whatever the number
// of CPUs. Where there are few tasks for the CPUs, each fold of blocks of rows is a task of
// its own; its sums are added to the others in the same order.
//
// Gradients of rows and keys past the end of their sequence, but within its range of the
// tensors, are 0. DSinks holds rowsum(dO * O) of each row, so it is as exact as O.
func Backward(cfg problem.Config, a problem.BackwardArgs) error {
	want := tensors.GradientsOf(&a)
	if err := tensors.CheckHost("Backward", backwardBytes(&cfg, &a, want)); err != nil {
		return err
	}
	c := cpuBackward{args: &a, want: want}
	if err := c.open(&cfg); err != nil {
		return err
	}
	c.clearBias()
	c.begin()
	c.sumSinks()
	if want.Q || want.K || want.V || want.Bias {
		par.Each(int64(len(c.tasks)), func() func(int64) {
			w := c.worker()
			return func(i int64) {
				t := &c.tasks[i]
				w.run(&c.units[t.unit], int(t.tile), int(t.fold))
			}
		})
	}
	return nil
}

// cpuBackward is a backward call with what its tasks share.
type cpuBackward struct {
	hostCall
	args       *problem.BackwardArgs
	want       tensors.GradientSet
	stored     simd.Type
	o, dO      tensors.HostRows
	dLSE       tensors.HostRows // if args.DLSE is given
	dQ, dK, dV tensors.HostRows // those wanted
	lse        []byte           // from element 0 on
	lseRows    int              // rows per head
	dBias      [3]int64         // strides, as hostCall.bias

	units  []backwardUnit
	tasks  []backwardTask
	rows   []simd.BackwardRow // of all units
	blocks []backwardBlock    // of all units
	sums   []float32          // dQ of rows, without the scale
	parts  []float32          // sums of dK and dV of folds that are tasks
	stride int                // elements of sums per row

	mu      sync.Mutex
	workers []*cpuBackwardWorker // idle
}

// keep keeps a worker for the tasks.
func (c *cpuBackward) keep(w *cpuBackwardWorker) {
	c.mu.Lock()
	c.workers = append(c.workers, w)
	c.mu.Unlock()
}

// worker returns a worker that is kept, or a new one.
func (c *cpuBackward) worker() *cpuBackwardWorker {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.workers)
	if n == 0 {
		return newCPUBackwardWorker(c)
	}
	w := c.workers[n-1]
	c.workers = c.workers[:n-1]
	return w
}

type backwardTask struct{ unit, tile, fold int32 }

// backwardFold is how many blocks of rows are summed before their sum is added to that of
// all. It keeps the rounding errors of long sums small, and folds are computed by several
// CPUs.
const backwardFold = 8

// backwardUnit is a sequence and key head.
type backwardUnit struct {
	b, kv     int
	rows      int       // packed
	firstRow  int       // in cpuBackward.rows
	blocks    int       // of rows
	firstBlk  int       // in cpuBackward.blocks
	tiles     int       // blocks of keys
	keys      int       // of the sequence or of the list
	list      []int32   // keys of a list, ascending, each once; nil: all keys
	count     []float32 // how often the list has each
	folds     int       // tasks of a tile
	firstPart int       // in cpuBackward.parts, in sums of a fold
	before    *backwardUnit
	done      []atomic.Int32 // blocks of rows that each task of a tile has passed: [tiles][folds]
	stored    []atomic.Int32 // folds of each tile whose sums are stored
	mu        sync.Mutex
	passed    sync.Cond
	waiting   atomic.Int32
}

// backwardBlock is a block of rows.
type backwardBlock struct {
	mostLo, leHi int32 // keys [mostLo, leHi) are in the span of every row
	first, last  int32 // tiles that rows attend to; first > last: none
	finite       bool  // whether Q and dO are
}

// countBlocks is the number of blocks of a size that n rows or keys have, 0 for none.
func countBlocks(n, size int) int { return (n + size - 1) / size }

// key returns key i of a unit.
func (u *backwardUnit) key(i int) int32 {
	if u.list != nil {
		return u.list[i]
	}
	return int32(i)
}

// tilesOf returns the first and the last tile with a key in [lo, hi).
func (u *backwardUnit) tilesOf(lo, hi int32) (first, last int32) {
	if u.list != nil {
		from, _ := slices.BinarySearch(u.list, lo)
		to, _ := slices.BinarySearch(u.list, hi)
		lo, hi = int32(from), int32(to)
	}
	if lo >= hi {
		return 0, -1
	}
	return lo / simd.BackwardKeys, (hi - 1) / simd.BackwardKeys
}

// wait returns when a task has passed n blocks of rows.
func (u *backwardUnit) wait(tile, fold int, n int32) {
	done := &u.done[tile*u.folds+fold]
	if done.Load() >= n {
		return
	}
	u.mu.Lock()
	u.waiting.Add(1)
	for done.Load() < n {
		u.passed.Wait()
	}
	u.waiting.Add(-1)
	u.mu.Unlock()
}

// pass says that a task has passed n blocks of rows.
func (u *backwardUnit) pass(tile, fold int, n int32) {
	u.done[tile*u.folds+fold].Store(n)
	if u.waiting.Load() > 0 {
		u.mu.Lock()
		u.passed.Broadcast()
		u.mu.Unlock()
	}
}

// waitForSharers waits until the units before u that add to the same elements of dBias have
// passed n blocks of rows with the keys of a tile.
func (u *backwardUnit) waitForSharers(tile int, n int32) {
	for p := u.before; p != nil; p = p.before {
		switch {
		case u.list != nil: // tiles of other lists have other keys
			last := min((tile+1)*simd.BackwardKeys, u.keys) - 1
			first, end := p.tilesOf(u.list[tile*simd.BackwardKeys], u.list[last]+1)
			for t := int(first); t <= int(end); t++ {
				p.wait(t, 0, n) // with dBias a tile is one task
			}
		case p.tiles > tile:
			p.wait(tile, 0, n)
			return // p has waited for those before it
		}
	}
}

const allBlocks = math.MaxInt32

func (c *cpuBackward) open(cfg *problem.Config) (err error) {
	a := c.args
	if err := c.hostCall.open(cfg, &a.Args); err != nil {
		return err
	}
	_, rows := tensors.QueryExtent(&a.Args)
	_, keys := tensors.KVExtent(&a.Args)
	d, dv := cfg.HeadDim, cfg.ValueDim()
	for _, v := range [...]struct {
		used             bool
		view             *tensors.HostRows
		tensor           *problem.Tensor
		dtype            problem.DType
		heads, rows, dim int
	}{
		{true, &c.o, &a.O, cfg.DType, a.Hq, rows, dv},
		{true, &c.dO, &a.DO, cfg.DType, a.Hq, rows, dv},
		{a.DLSE.Given(), &c.dLSE, &a.DLSE, problem.F32, a.Hq, rows, 1},
		{c.want.Q, &c.dQ, &a.DQ, cfg.DType, a.Hq, rows, d},
		{c.want.K, &c.dK, &a.DK, cfg.DType, a.KVHeads(), keys, d},
		{c.want.V, &c.dV, &a.DV, cfg.DType, a.KVHeads(), keys, dv},
	} {
		if v.used {
			if *v.view, err = tensors.ViewRows(*v.tensor, v.dtype, v.heads, v.rows, v.dim); err != nil {
				return err
			}
		}
	}
	c.stored, c.lseRows = simdType(cfg.DType), rows
	c.lse = a.LSE.Host[a.LSE.Offset*int64(problem.F32.Size()):]
	if c.want.Bias {
		c.dBias = tensors.Broadcast(a.DBias.Strides, tensors.BiasSizes(a.Bias, &a.Shape), a.Sk)
	}
	c.stride = Kernels.Stride(d)
	c.openUnits()
	return nil
}

// openUnits lists units, blocks of rows and tasks.
func (c *cpuBackward) openUnits() {
	heads, group := c.a.KVHeads(), c.a.Group()
	c.units = make([]backwardUnit, c.a.B*heads)
	rows, blocks := 0, 0
	var tasks, tiles int
	for i := range c.units {
		u := &c.units[i]
		u.b, u.kv = i/heads, i%heads
		u.passed.L = &u.mu
		s := &c.sequences[u.b]
		u.rows, u.keys = s.Rows*group, s.Keys
		if c.a.SparseTokens != nil {
			c.openList(u)
			u.keys = len(u.list)
		}
		u.firstRow, u.firstBlk = rows, blocks
		u.blocks, u.tiles = countBlocks(u.rows, simd.BackwardRows), countBlocks(u.keys, simd.BackwardKeys)
		rows, blocks = rows+u.rows, blocks+u.blocks
		tasks, tiles = tasks+u.tiles, max(tiles, u.tiles)
		if c.want.Bias {
			u.before = c.sharer(i)
		}
	}
	c.rows, c.blocks = make([]simd.BackwardRow, rows), make([]backwardBlock, blocks)
	if c.want.Q {
		c.sums = make([]float32, rows*c.stride)
	}
	tasks = c.openFolds(tasks)
	// Tasks of one unit follow each other at a distance, so that they seldom wait. Under a
	// causal mask the first keys take longest. Lists that share dBias wait for any tile of the
	// units before.
	c.tasks = make([]backwardTask, 0, tasks)
	add := func(unit, tile int) {
		u := &c.units[unit]
		for fold := 0; tile < u.tiles && fold < u.folds; fold++ {
			c.tasks = append(c.tasks, backwardTask{int32(unit), int32(tile), int32(fold)})
		}
	}
	if c.want.Bias && c.a.SparseTokens != nil {
		for unit := range c.units {
			for tile := range tiles {
				add(unit, tile)
			}
		}
		return
	}
	for tile := range tiles {
		for unit := range c.units {
			add(unit, tile)
		}
	}
}

// Folds are tasks if there are fewer tiles than this for each CPU, and if their sums fit
// maxParts bytes.
const (
	tilesPerCPU = 4
	maxParts    = 32 << 20
)

// openFolds decides whether folds are tasks and returns the number of tasks.
func (c *cpuBackward) openFolds(tiles int) (tasks int) {
	size := simd.BackwardKeys * (c.cfg.HeadDim + c.cfg.ValueDim())
	for i := range c.units {
		u := &c.units[i]
		tasks += u.tiles * max(1, countBlocks(u.blocks, backwardFold))
	}
	split := tasks > tiles && tiles < tilesPerCPU*runtime.GOMAXPROCS(0) && tasks*size*4 <= maxParts && !c.want.Bias
	if split {
		c.parts = make([]float32, tasks*size)
	} else {
		tasks = tiles
	}
	parts := 0
	for i := range c.units {
		u := &c.units[i]
		u.folds, u.firstPart = 1, parts
		if split {
			u.folds = max(1, countBlocks(u.blocks, backwardFold))
			u.stored = make([]atomic.Int32, u.tiles)
		}
		u.done = make([]atomic.Int32, u.tiles*u.folds)
		parts += u.tiles * u.folds
	}
	return tasks
}

// openList sorts the list of a unit's keys.
func (c *cpuBackward) openList(u *backwardUnit) {
	at, end := c.list(u.b, u.kv)
	all := make([]int32, 0, max(end-at, 0))
	for ; at < end; at++ {
		if key := tensors.IntAt(&c.a.SparseTokens.Tokens, at); key >= 0 && key < c.sequences[u.b].Keys {
			all = append(all, int32(key))
		}
	}
	slices.Sort(all)
	u.list = all[:0]
	for i, key := range all {
		if i == 0 || key != all[i-1] {
			u.list, u.count = append(u.list, key), append(u.count, 0)
		}
		u.count[len(u.count)-1]++
	}
}

// sharer returns the unit before unit i that adds to the same elements of dBias.
func (c *cpuBackward) sharer(i int) *backwardUnit {
	n, heads := tensors.BiasSizes(c.a.Bias, &c.a.Shape), c.a.KVHeads()
	for j := i - 1; j >= 0; j-- {
		if (n[0] == 1 || j/heads == i/heads) && (n[1] == 1 || j%heads == i%heads) {
			return &c.units[j]
		}
	}
	return nil
}

// clearBias sets dBias to 0.
func (c *cpuBackward) clearBias() {
	if !c.want.Bias {
		return
	}
	n := tensors.BiasSizes(c.a.Bias, &c.a.Shape)
	par.Each(int64(n[0])*int64(n[1])*int64(n[2]), func() func(int64) {
		return func(i int64) {
			row := i % int64(n[2])
			head, batch := i/int64(n[2])%int64(n[1]), i/int64(n[2])/int64(n[1])
			clear(c.args.DBias.Host[c.dBiasAt(batch, head, row)*int64(problem.F32.Size()):][:c.a.Sk*problem.F32.Size()])
		}
	})
}

// dBiasAt returns the element offset of a row of dBias.
func (c *cpuBackward) dBiasAt(b, head, row int64) int64 {
	return c.args.DBias.Offset + b*c.dBias[0] + head*c.dBias[1] + row*c.dBias[2]
}

// begin computes the numbers of each row and block of rows, and stores the gradients of
// rows that no tile reaches.
func (c *cpuBackward) begin() {
	type piece struct{ unit, block int }
	pieces := make([]piece, 0, len(c.blocks)+len(c.units))
	for i := range c.units {
		for block := -1; block < c.units[i].blocks; block++ { // -1: what has no block
			pieces = append(pieces, piece{i, block})
		}
	}
	par.Each(int64(len(pieces)), func() func(int64) {
		w := newCPUBackwardWorker(c)
		c.keep(w)
		return func(i int64) {
			u := &c.units[pieces[i].unit]
			if pieces[i].block < 0 {
				w.storeZeros(u)
				return
			}
			w.beginBlock(u, pieces[i].block)
		}
	})
}

// sumSinks sums the gradient of each sink over the rows of its head, in their order.
func (c *cpuBackward) sumSinks() {
	if !c.want.Sinks {
		return
	}
	heads, group := c.a.KVHeads(), c.a.Group()
	par.Each(int64(c.a.Hq), func() func(int64) {
		return func(i int64) {
			head := int(i)
			sink, _ := c.sink(head)
			var sum float64
			for b := range c.a.B {
				u := &c.units[b*heads+head/group]
				for r := head % group; r < u.rows; r += group {
					row := &c.rows[u.firstRow+r]
					if p := math.Exp(float64(sink) - float64(row.LSE)); p != 0 {
						sum -= p * float64(row.Factor) * float64(row.Delta)
					}
				}
			}
			at := (c.args.DSinks.Offset + i) * int64(problem.F32.Size())
			half.EncodeF32(c.args.DSinks.Host[at:], []float32{float32(sum)})
		}
	})
}

// cpuBackwardWorker computes tasks in its own memory.
type cpuBackwardWorker struct {
	*simd.Backward
	c       *cpuBackward
	dAt     []int64   // byte offsets of rows or keys of a gradient
	delta   []float64 // of the rows of a block
	biasSum []float64 // [heads][keys] of dBias that all rows share
	heads   int       // of biasSum
}

func newCPUBackwardWorker(c *cpuBackward) *cpuBackwardWorker {
	w := &cpuBackwardWorker{c: c}
	w.Backward = Kernels.NewBackward(c.cfg.HeadDim, c.cfg.ValueDim(), simd.BackwardOptions{
		Scale: c.cfg.ScaleValue(), Softcap: c.cfg.Softcap, ALiBi: c.a.ALiBi.Given(),
		Bias: c.a.Bias != nil, Mask: c.a.Mask != nil || c.a.Blocks != nil, Counts: c.a.SparseTokens != nil,
		DK: c.want.K, DV: c.want.V, Accumulate: c.args.Accumulate,
	})
	w.dAt, w.delta = make([]int64, max(simd.BackwardRows, simd.BackwardKeys)), make([]float64, simd.BackwardRows)
	if c.want.Bias && tensors.BiasSizes(c.a.Bias, &c.a.Shape)[2] == 1 {
		w.heads = 1
		if tensors.BiasSizes(c.a.Bias, &c.a.Shape)[1] > 1 {
			w.heads = c.a.Group()
		}
		w.biasSum = make([]float64, w.heads*simd.BackwardKeys)
	}
	return w
}

// rowAt returns the head and the row in the sequence of a packed row.
func (c *cpuBackward) rowAt(u *backwardUnit, r int) (head, row int) {
	group := c.a.Group()
	return u.kv*group + r%group, r / group
}

// storeZeros stores the gradients of the keys that a list leaves out, and of rows and keys
// past the end of a sequence.
func (w *cpuBackwardWorker) storeZeros(u *backwardUnit) {
	c := w.c
	if c.args.Accumulate {
		return
	}
	zero := make([]float32, max(c.cfg.HeadDim, c.cfg.ValueDim()))
	rows, keys := c.a.Sq, c.a.Sk
	if v := c.a.Varlen; v != nil {
		rows, keys = rangeOf(v.CuQ, v.TotalQ, rows, u.b), rangeOf(v.CuK, v.TotalK, keys, u.b)
	}
	if c.want.Q {
		for row := c.sequences[u.b].Rows; row < rows; row++ {
			batch, at := c.queryRow(u.b, row)
			for h := u.kv * c.a.Group(); h < (u.kv+1)*c.a.Group(); h++ {
				c.dQ.WriteRow(zero, batch, h, at)
			}
		}
	}
	next := 0 // of the list
	for key := range keys {
		if key < c.sequences[u.b].Keys {
			if u.list == nil {
				continue
			}
			if next < len(u.list) && u.list[next] == int32(key) {
				next++
				continue
			}
		}
		batch, at := c.kvRow(u.b, key)
		if c.want.K {
			c.dK.WriteRow(zero, batch, u.kv, at)
		}
		if c.want.V {
			c.dV.WriteRow(zero, batch, u.kv, at)
		}
	}
}

// rangeOf returns the rows that sequence b has in a tensor, used or not.
func rangeOf(cu problem.Vector, total, most, b int) int {
	if !cu.Given() {
		return most
	}
	first, end := min(max(tensors.IntAt(&cu, b), 0), total), min(max(tensors.IntAt(&cu, b+1), 0), total)
	return max(end-first, 0)
}

// beginBlock computes the numbers of the rows of a block.
func (w *cpuBackwardWorker) beginBlock(u *backwardUnit, block int) {
	c := w.c
	first, n := w.rowsOf(u, block)
	rows := c.rows[u.firstRow+first:][:n]
	low, high := int32(math.MaxInt32), int32(0)
	info := backwardBlock{leHi: math.MaxInt32}
	for i := range rows {
		r := &rows[i]
		head, row := c.rowAt(u, first+i)
		batch, at := c.queryRow(u.b, row)
		var lse [1]float32
		half.DecodeF32(lse[:], c.lse[((int64(batch)*int64(c.a.Hq)+int64(head))*int64(c.lseRows)+int64(at))*int64(problem.F32.Size()):])
		*r = simd.BackwardRow{Position: float64(c.position(u.b, row)), LSE: lse[0], Slope: c.slope(head), Factor: 1}
		if math.IsInf(float64(r.LSE), -1) {
			r.LSE = float32(math.Inf(1)) // nothing to attend to
		} else {
			lo, hi := c.span(u.b, row)
			r.First, r.End = int32(lo), int32(hi)
		}
		if r.First < r.End {
			low, high = min(low, r.First), max(high, r.End)
		}
		info.mostLo, info.leHi = max(info.mostLo, r.First), min(info.leHi, r.End)
	}
	info.first, info.last = u.tilesOf(low, high)
	w.locate(u, first, rows)
	for i := range rows {
		head, row := c.rowAt(u, first+i)
		w.OAt[i] = -1
		if w.QAt[i] >= 0 {
			batch, at := c.queryRow(u.b, row)
			w.OAt[i] = c.o.ByteOf(batch, head, at)
		}
	}
	w.ReadRows(c.a.Q.Host, c.args.DO.Host, n, c.stored)
	info.finite = w.Delta(w.delta, c.a.O.Host, c.stored)
	for i := range rows {
		r := &rows[i]
		if math.IsInf(float64(r.LSE), 1) {
			continue
		}
		delta := w.delta[i]
		if c.args.DLSE.Given() {
			head, row := c.rowAt(u, first+i)
			batch, at := c.queryRow(u.b, row)
			var dLSE [1]float32
			c.dLSE.ReadRow(dLSE[:], batch, head, at)
			delta -= float64(dLSE[0])
		}
		r.Delta = float32(delta)
	}
	c.blocks[u.firstBlk+block] = info
	w.correct(u, first, rows, &info)
	if c.want.Q && info.first > info.last && !c.args.Accumulate {
		w.storeQuery(u, block)
	}
}

// exactLSE bounds LSE in magnitude: below it, rounding LSE to float32 changes P by less than
// 1.6e-5 of itself.
const exactLSE = 256

// correct computes the factors of rows whose LSE is large. The sum of their P differs from 1
// because LSE is rounded: at 1e4 by 5e-4, at 1e9 by anything.
func (w *cpuBackwardWorker) correct(u *backwardUnit, first int, rows []simd.BackwardRow, info *backwardBlock) {
	c := w.c
	large := func(r *simd.BackwardRow) bool {
		lse := math.Abs(float64(r.LSE))
		return r.First < r.End && lse >= exactLSE && !math.IsInf(lse, 1)
	}
	if !slices.ContainsFunc(rows, func(r simd.BackwardRow) bool { return large(&r) }) {
		return
	}
	w.Rows = rows
	sums := w.delta
	clear(sums)
	for tile := int(info.first); tile <= int(info.last); tile++ {
		w.beginKeys(u, tile)
		if w.readOptions(u, first) {
			w.RowSums(sums, w.full(info))
		}
	}
	for i := range rows {
		r := &rows[i]
		if !large(r) {
			continue
		}
		head, _ := c.rowAt(u, first+i)
		if sink, ok := c.sink(head); ok {
			sums[i] += math.Exp(float64(sink) - float64(r.LSE))
		}
		if sums[i] > 0 && !math.IsInf(sums[i], 1) {
			r.Factor = float32(1 / sums[i])
		}
	}
}

// rowsOf returns the first packed row of a block and the number of its rows.
func (w *cpuBackwardWorker) rowsOf(u *backwardUnit, block int) (first, n int) {
	first = block * simd.BackwardRows
	return first, min(simd.BackwardRows, u.rows-first)
}

// locate sets the byte offsets of the rows of a block in Q and dO.
func (w *cpuBackwardWorker) locate(u *backwardUnit, first int, rows []simd.BackwardRow) {
	c := w.c
	group := c.a.Group()
	g, row := first%group, first/group
	batch, at := c.queryRow(u.b, row)
	for i := range rows {
		w.QAt[i] = -1
		if rows[i].First < rows[i].End {
			w.QAt[i], w.DOAt[i] = c.q.ByteOf(batch, u.kv*group+g, at), c.dO.ByteOf(batch, u.kv*group+g, at)
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
		batch, at := c.kvRow(u.b, int(w.Keys[i]))
		w.KAt[i], w.VAt[i] = c.k.ByteOf(batch, u.kv, at), c.v.ByteOf(batch, u.kv, at)
		if u.count != nil {
			w.Count[i] = u.count[first+i]
		}
	}
	w.BeginKeys(c.a.K.Host, c.a.V.Host, n, c.stored)
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
		group := c.a.Group()
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
	w.ReadRows(c.a.Q.Host, c.args.DO.Host, len(w.Rows), c.stored)
	if !w.readOptions(u, first) {
		return false
	}
	w.Tile(w.full(info), info.finite)
	return true
}

// full reports whether every row of a block attends to every key of the tile.
func (w *cpuBackwardWorker) full(info *backwardBlock) bool {
	a := w.c.a
	return a.Mask == nil && a.Blocks == nil && info.mostLo <= w.Keys[0] && w.Last() < info.leHi
}

// readOptions reads the bias and the mask or bitmap of a tile. It returns false if the mask
// excludes all slots.
func (w *cpuBackwardWorker) readOptions(u *backwardUnit, first int) bool {
	c := w.c
	if c.a.Bias == nil && c.a.Mask == nil && c.a.Blocks == nil {
		return true
	}
	for i := range w.Rows {
		head, row := c.rowAt(u, first+i)
		switch {
		case c.a.Mask != nil:
			w.MaskAt[i] = c.maskAt(u.b, head, row)
		case c.a.Blocks != nil:
			w.MaskAt[i] = c.blocksAt(u.b, head, row)
		}
		if c.a.Bias != nil {
			w.BiasAt[i] = c.biasAt(u.b, head, row)
		}
		if c.want.Bias {
			w.DBiasAt[i] = c.dBiasAt(int64(u.b), int64(head), int64(row))
		}
	}
	switch {
	case c.a.Mask != nil:
		if !w.ReadMask(c.a.Mask.Host) {
			return false
		}
	case c.a.Blocks != nil:
		if !w.ReadBlocks(c.a.Blocks.Map.Host, bits.TrailingZeros(uint(c.a.Blocks.BlockK))) {
			return false
		}
	}
	if c.a.Bias != nil {
		w.ReadBias(c.a.Bias.Host, simdType(c.a.Bias.DType))
	}
	return true
}

// storeQuery stores the rows of dQ of a block.
func (w *cpuBackwardWorker) storeQuery(u *backwardUnit, block int) {
	c := w.c
	first, n := w.rowsOf(u, block)
	for i := range n {
		head, row := c.rowAt(u, first+i)
		batch, at := c.queryRow(u.b, row)
		w.dAt[i] = c.dQ.ByteOf(batch, head, at)
	}
	w.StoreDQ(c.args.DQ.Host, w.dAt, c.sums[(u.firstRow+first)*c.stride:], n, c.args.Accumulate, c.stored)
}

// storeKeys stores dK or dV of a block of n keys.
func (w *cpuBackwardWorker) storeKeys(u *backwardUnit, n int, view *tensors.HostRows, host []byte, store func([]byte, []int64, simd.Type)) {
	for i := range n {
		batch, at := w.c.kvRow(u.b, int(w.Keys[i]))
		w.dAt[i] = view.ByteOf(batch, u.kv, at)
	}
	store(host, w.dAt, w.c.stored)
}

// storeBiasSum adds the sums over all rows to dBias.
func (w *cpuBackwardWorker) storeBiasSum(u *backwardUnit, n int) {
	c := w.c
	for h := range w.heads {
		at := c.dBiasAt(int64(u.b), int64(u.kv*c.a.Group()+h), 0)
		for i, sum := range w.biasSum[h*simd.BackwardKeys:][:n] {
			var x [1]float32
			to := c.args.DBias.Host[(at+int64(w.Keys[i]))*int64(problem.F32.Size()):]
			half.DecodeF32(x[:], to)
			x[0] = float32(float64(x[0]) + sum)
			half.EncodeF32(to, x[:])
		}
	}
}

// backwardBytes is the memory of a call.
func backwardBytes(cfg *problem.Config, a *problem.BackwardArgs, want tensors.GradientSet) uint64 {
	const perRow = 40 + 1 // a simd.BackwardRow, and a share of a block
	rows := hostmem.Product(uint64(a.B), uint64(a.Hq), uint64(a.Sq))
	if a.Varlen != nil && a.Varlen.CuQ.Given() {
		rows = min(rows, hostmem.Product(uint64(a.Hq), uint64(a.Varlen.TotalQ)))
	}
	units := hostmem.Product(uint64(a.B), uint64(a.KVHeads()))
	tiles := hostmem.Product(units, tensors.RowKeys(&a.Args)/simd.BackwardKeys+1)
	total := hostmem.Sum(tensors.SequenceBytes(a.Shape), hostmem.Product(rows, perRow), hostmem.Product(units, 256), hostmem.Product(tiles, 12+4),
		hostmem.Product(workers(tiles), Kernels.BackwardBytes(cfg.HeadDim, cfg.ValueDim())))
	if want.Q {
		total = hostmem.Sum(total, hostmem.Product(rows, uint64(Kernels.Stride(cfg.HeadDim)), 4))
	}
	if tiles < tilesPerCPU*uint64(runtime.GOMAXPROCS(0)) && !want.Bias {
		total = hostmem.Sum(total, maxParts)
	}
	if a.SparseTokens != nil {
		total = hostmem.Sum(total, hostmem.Product(uint64(a.SparseTokens.Total), 16))
	}
	return total
}
