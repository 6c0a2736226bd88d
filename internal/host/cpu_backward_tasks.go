package host

import (
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"vkattn/internal/simd"
	"vkattn/internal/tensors"
)

// How the CPU tier divides a backward call: units of a sequence and key head, blocks of rows,
// tiles of keys and folds, and how a task waits until others have passed a block of rows.

type backwardTask struct{ unit, tile, fold int32 }

// backwardFold is how many blocks of rows are summed before their sum is added to the
// total. It keeps the rounding errors of long sums small, and folds are computed by
// several CPUs.
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

// openUnits lists units, blocks of rows and tasks.
func (c *cpuBackward) openUnits() {
	heads, group := c.Args.KVHeads(), c.Args.Group()
	c.units = make([]backwardUnit, c.Args.B*heads)
	rows, blocks := 0, 0
	var tasks, tiles int
	for i := range c.units {
		u := &c.units[i]
		u.b, u.kv = i/heads, i%heads
		u.passed.L = &u.mu
		s := &c.Sequences[u.b]
		u.rows, u.keys = s.Rows*group, s.Keys
		if c.Args.SparseTokens != nil {
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
	if c.want.Bias && c.Args.SparseTokens != nil {
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
	size := simd.BackwardKeys * (c.Cfg.HeadDim + c.Cfg.ValueDim())
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
	at, end := c.SparseList(u.b, u.kv, 0)
	all := make([]int32, 0, max(end-at, 0))
	for ; at < end; at++ {
		if key := tensors.IntAt(&c.Args.SparseTokens.Tokens, at); key >= 0 && key < c.Sequences[u.b].Keys {
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
	n, heads := tensors.BiasSizes(c.Args.Bias, &c.Args.Shape), c.Args.KVHeads()
	switch {
	case n[0] == 1 && n[1] == 1, n[1] == 1 && i%heads > 0:
		i--
	case n[0] == 1:
		i -= heads
	default:
		return nil
	}
	if i < 0 {
		return nil
	}
	return &c.units[i]
}
