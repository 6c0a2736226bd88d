package host

import (
	"math"
	"math/bits"
	"runtime"
	"slices"
	"sort"
	"sync"

	"vkattn/internal/arith"
	"vkattn/internal/dropout"
	"vkattn/internal/half"
	"vkattn/internal/hostcall"
	"vkattn/internal/par"
	"vkattn/internal/problem"
	"vkattn/internal/simd"
	"vkattn/internal/tensors"
)

// The CPU tier: workers take blocks of query rows and run the kernels of package simd on
// KV tiles.

// Kernels are compiled for the best instruction set of this CPU. Tests replace them.
var Kernels = simd.Sets()[0]

// cpuRows is the most query rows of a block. The rows of a block share the conversion of
// K and V to float32. The number changes no bit; in f16, 64 is 8 % slower on an Ice Lake
// server.
const cpuRows = 128

// Forward computes a call in host memory. CheckArgs has accepted a.
//
// The unit of work is a block of query rows of one sequence and key head: all query
// heads of the group together, so that grouped queries widen K and V once.
func Forward(cfg problem.Config, a problem.Args) error {
	if err := tensors.CheckHost("Forward", tensors.SequenceBytes(a.Shape)); err != nil {
		return err
	}
	var call cpuCall
	if err := call.open(&cfg, &a); err != nil {
		return err
	}
	var rows, most int64 // rows of all sequences, and of the longest
	for _, s := range call.Sequences {
		rows += int64(s.Rows)
		most = max(most, int64(s.Rows))
	}
	group, heads := int64(a.Group()), int64(a.KVHeads())
	block := cpuBlockRows(rows*group*heads, most*group)
	ends := make([]int64, a.B) // units up to and including each sequence
	var units int64
	for b, s := range call.Sequences {
		units += blocksOf(int64(s.Rows)*group, block) * heads
		ends[b] = units
	}
	par.Each(units, func() func(int64) {
		w := newCPUWorker(&call, int(block))
		return func(unit int64) {
			b := sort.Search(len(ends), func(i int) bool { return ends[i] > unit })
			rows := int64(call.Sequences[b].Rows) * group
			blocks := blocksOf(rows, block)
			// Take the blocks of one key head in turn, so that its K and V stay in cache.
			// Start with the last rows, which take longest under a causal mask.
			at := ends[b] - 1 - unit
			first := at % blocks * block
			w.run(b, int(heads-1-at/blocks), first, min(block, rows-first))
		}
	})
	if call.tops.of != nil {
		half.EncodeF32(a.MaxLogits.Host[4*a.MaxLogits.Offset:], call.tops.of)
	}
	return nil
}

// ForwardGroup is Forward for the query heads of one sequence and KV head alone. O and LSE are packed [group, rows].
func ForwardGroup(cfg problem.Config, a problem.Args, b, kv int) error {
	_, extent := tensors.QueryExtent(&a)
	a.O.Strides, a.MaxLogits = problem.BHSD(a.Hq, extent, cfg.ValueDim()), problem.Vector{}
	var call cpuCall
	if err := call.open(&cfg, &a); err != nil {
		return err
	}
	batch, _ := call.QueryRow(b, 0)
	call.before = int64(batch*a.Hq+kv*a.Group()) * int64(extent)
	rows := int64(call.Sequences[b].Rows) * int64(a.Group())
	block := cpuBlockRows(rows, rows)
	par.Each(blocksOf(rows, block), func() func(int64) {
		w := newCPUWorker(&call, int(block))
		return func(unit int64) { w.run(b, kv, unit*block, min(block, rows-unit*block)) }
	})
	return nil
}

// cpuBlockRows returns the largest block that leaves several blocks for every CPU, but at
// least one vector of the kernels, since lanes without a row compute for nothing.
func cpuBlockRows(rows, most int64) int64 {
	const perCPU = 4
	block := rows / (int64(runtime.GOMAXPROCS(0)) * perCPU)
	vector := int64(Kernels.Vector)
	block = min(max(block/vector*vector, vector), cpuRows)
	return max(min(block, most), 1)
}

// workers is the number of CPUs that units of work run on.
func workers(units uint64) uint64 { return min(uint64(runtime.GOMAXPROCS(0)), units) }

// simdDropout is the dropout mask of a call for the kernels.
func simdDropout(c *hostcall.Call) simd.Dropout {
	m := &c.Dropout
	return simd.Dropout{Seed: m.Seed, Offset: m.Offset, Threshold: m.Threshold, Scale: float32(dropout.Scale(c.Cfg.Dropout))}
}

// blocksOf is the number of blocks of a number of rows.
func blocksOf(rows, block int64) int64 { return (rows + block - 1) / block }

// cpuCall is a call with its tensors as bytes.
type cpuCall struct {
	hostcall.Call
	o       tensors.HostRows
	lse     []byte // from element 0 on; nil: not asked for
	lseRows int    // rows per head
	before  int64  // rows of the call before the first one of O and LSE
	softcap float32
	scale   float32
	stored  simd.Type // Q
	storedO simd.Type
	kType   simd.Type // K
	vType   simd.Type // V
	qPacked simd.Type // Q, K and V as the kernels read them: bfloat16 may lie in pairs
	kPacked simd.Type
	vPacked simd.Type
	roundP  bool
	tops    struct { // the largest score of each query head; nil: not asked for
		sync.Mutex
		of []float32
	}
}

func (c *cpuCall) open(cfg *problem.Config, a *problem.Args) (err error) {
	if err := c.Call.Open(cfg, a); err != nil {
		return err
	}
	_, c.lseRows = tensors.QueryExtent(a)
	if c.o, err = tensors.ViewRows(a.O, cfg.OType(), a.Hq, c.lseRows, cfg.ValueDim()); err != nil {
		return err
	}
	if tensors.HasLSE(a) {
		c.lse = a.LSE.Host[a.LSE.Offset*int64(problem.F32.Size()):]
	}
	if a.MaxLogits.Given() {
		c.tops.of = slices.Repeat([]float32{float32(math.Inf(-1))}, a.Hq)
	}
	c.scale, c.softcap = cfg.ScaleValue(), cfg.Softcap
	c.stored, c.storedO = simdType(cfg.DType), simdType(cfg.OType())
	c.kType, c.vType = c.simdKVType(cfg.KeyType), c.simdKVType(cfg.ValueType)
	c.pack()
	return nil
}

// pack chooses how the kernels read Q, K and V. Pairs of Q and K change no bit. P is rounded to bfloat16 where V and O are
// bfloat16, by all kernels, so that those with pairs give the bits of the others.
func (c *cpuCall) pack() {
	c.qPacked, c.kPacked, c.vPacked = c.stored, c.kType, c.vType
	c.roundP = c.vType == simd.BF16 && c.storedO == simd.BF16
	if !Kernels.Pairs {
		return
	}
	if c.stored == simd.BF16 && c.kType == simd.BF16 {
		c.qPacked, c.kPacked = simd.Pairs, simd.Pairs
	}
	if c.roundP {
		c.vPacked = simd.RowPairs
	}
}

// simdKVType is the type of K or V in the order of quant.Formats.
func (c *cpuCall) simdKVType(t problem.KVType) simd.Type {
	if t == problem.KVSame {
		return c.stored
	}
	return simd.Quantized + simd.Type(t-problem.KVInt8)
}

func simdType(t problem.DType) simd.Type {
	switch t {
	case problem.F16:
		return simd.F16
	case problem.BF16:
		return simd.BF16
	}
	return simd.F32
}

// cpuWorker computes blocks of query rows in its own scratch memory.
type cpuWorker struct {
	call   *cpuCall
	groups []cpuGroup
	tile   cpuTile
	scores []float32
	bias   []float32
	mask   []int32
	modifiers
}

// cpuGroup is a group of rows of a block and the limits of their key spans.
type cpuGroup struct {
	*simd.Group
	rows         int
	lo, hi       int // keys [lo, hi) cover the spans of all rows
	mostLo, leHi int // keys [mostLo, leHi) are in the span of every row
	lseAt        []int64
	head         []int
}

func newCPUWorker(call *cpuCall, rows int) *cpuWorker {
	w := &cpuWorker{call: call, groups: make([]cpuGroup, arith.CeilDiv(rows, Kernels.Lanes))}
	for i := range w.groups {
		w.groups[i].Group = Kernels.NewGroup(call.Cfg.HeadDim, call.Cfg.ValueDim())
		w.groups[i].lseAt, w.groups[i].head = make([]int64, Kernels.Lanes), make([]int, Kernels.Lanes)
	}
	keys := min(simd.Keys, call.Args.Sk)
	if call.Args.SparseTokens != nil { // a list may name a key several times
		keys = min(simd.Keys, tensors.SparseTotal(call.Args))
	}
	w.tile.init(call, keys)
	w.scores = make([]float32, simd.Keys*Kernels.Lanes)
	if call.Args.Bias != nil {
		w.bias = make([]float32, len(w.scores))
	}
	w.modifiers.init(&call.Call)
	if call.Args.Mask != nil || call.Args.Blocks != nil || call.Cfg.MaskMod.Given() {
		w.mask = make([]int32, len(w.scores))
	}
	return w
}

// run computes rows [first, first+n) of a sequence and key head. The heads of a group are
// the fastest index, so that a block spans few positions and the mask wastes little work. With a list of sparse tokens
// for each query row it computes one query row after the other.
func (w *cpuWorker) run(b, kv int, first, n int64) {
	if k := w.call.Args.SparseTokens; k == nil || !k.PerRow {
		w.runBlock(b, kv, first, n)
		return
	}
	for group, end := int64(w.call.Args.Group()), first+n; first < end; {
		most := min((first/group+1)*group, end)
		w.runBlock(b, kv, first, most-first)
		first = most
	}
}

// runBlock is run for rows with the same list of sparse tokens, if there are lists.
func (w *cpuWorker) runBlock(b, kv int, first, n int64) {
	row := int(first / int64(w.call.Args.Group()))
	lanes := int64(Kernels.Lanes)
	groups := w.groups[:blocksOf(n, lanes)]
	lo, hi := math.MaxInt, 0
	for i := range groups {
		g := &groups[i]
		w.begin(g, b, kv, first, min(lanes, n))
		first, n = first+lanes, n-lanes
		lo, hi = min(lo, g.lo), max(hi, g.hi)
	}
	w.tile.begin(b, kv, row, lo, hi)
	for w.tile.next() {
		for i := range groups {
			w.attend(&groups[i], b, kv)
		}
	}
	for i := range groups {
		w.finish(&groups[i])
	}
}

// begin sets up a group for rows [first, first+n).
func (w *cpuWorker) begin(g *cpuGroup, b, kv int, first, n int64) {
	c := w.call
	group := int64(c.Args.Group())
	g.rows, g.lo, g.hi, g.mostLo, g.leHi = int(n), math.MaxInt, 0, 0, math.MaxInt
	for i := range g.Rows(int(n)) {
		r := first + min(int64(i), n-1)
		head, row := kv*int(group)+int(r%group), int(r/group)
		g.head[i] = head
		batch, at := c.QueryRow(b, row)
		g.QAt[i] = c.Q.ByteOf(batch, head, at)
		g.OAt[i] = c.o.ByteOf(batch, head, at) - c.before*int64(c.Cfg.ValueDim()*c.Cfg.OType().Size())
		g.lseAt[i] = ((int64(batch)*int64(c.Args.Hq)+int64(head))*int64(c.lseRows) + int64(at) - c.before) * int64(problem.F32.Size())
		lo, hi := c.Span(b, row)
		g.Span[i], g.Span[Kernels.Lanes+i] = int32(lo), int32(hi)
		if lo < hi {
			g.lo, g.hi = min(g.lo, lo), max(g.hi, hi)
		}
		g.mostLo, g.leHi = max(g.mostLo, lo), min(g.leHi, hi)
		g.Position[i], g.Slope[i] = float64(c.Position(b, row)), c.Slope(b, head)
		g.Slots[i], g.Slots[Kernels.Lanes+i] = uint32(row), c.DropoutHead(b, head)
		g.Sink[i] = float32(math.Inf(-1))
		if x, ok := c.Sink(head); ok {
			g.Sink[i] = x
		}
		if c.Args.Bias != nil {
			g.BiasAt[i] = c.BiasAt(b, head, row)
		}
		switch {
		case c.Args.Blocks != nil:
			g.MaskAt[i] = c.BlocksAt(b, head, row)
		case c.Args.Mask != nil:
			g.MaskAt[i] = c.MaskAt(b, head, row)
		}
	}
	g.Begin(c.Args.Q.Host, c.qPacked)
}

// attend adds the worker's KV tile to a group.
func (w *cpuWorker) attend(g *cpuGroup, b, kv int) {
	c, t := w.call, &w.tile
	job := simd.Tile{Keys: t.keys, Scale: c.scale, Softcap: c.softcap, ALiBi: c.Args.ALiBi.Given(), Dropout: simdDropout(&c.Call),
		RoundP: c.roundP, VPairs: c.vPacked == simd.RowPairs}
	if !t.cut(&job, g) {
		return
	}
	switch {
	case c.Args.Blocks != nil:
		job.Mask = w.mask
		if !g.ReadBlocks(w.mask, c.Args.Blocks.Map.Host, t.keys, bits.TrailingZeros(uint(c.Args.Blocks.BlockK))) {
			return
		}
	case c.Args.Mask != nil:
		job.Mask = w.mask
		if !g.ReadMask(w.mask, c.Args.Mask.Host, t.keys) {
			return
		}
	}
	if (c.Cfg.MaskMod.Given() || c.Args.Blocks != nil && c.Args.Mask != nil) && !w.maskTile(&job, g, b) {
		return
	}
	if job.Mask != nil {
		job.FullFrom, job.FullTo = 0, 0
	}
	if c.Args.Bias != nil {
		job.Bias = w.bias
		g.ReadBias(w.bias, c.Args.Bias.Host, t.keys, simdType(c.Args.Bias.DType))
	}
	t.load()
	job.K, job.KStride, job.KLeast = t.k.rows, t.k.stride, t.k.least
	job.V, job.VStride, job.VLeast = t.v.rows, t.v.stride, t.v.least
	if w.score != nil {
		job.Stage = simd.StageScores
		g.Attend(&job, w.scores)
		w.modifyTile(&job, g, b)
		job.Stage = simd.StageRest
	}
	g.Attend(&job, w.scores)
}

// finish stores the rows of a group.
func (w *cpuWorker) finish(g *cpuGroup) {
	g.Finish(w.call.Args.O.Host, w.call.storedO, g.rows, float32(1-float64(w.call.Cfg.Dropout)))
	if tops := &w.call.tops; tops.of != nil {
		tops.Lock()
		for i := range g.rows {
			tops.of[g.head[i]] = max(tops.of[g.head[i]], g.Max[i])
		}
		tops.Unlock()
	}
	if w.call.lse == nil {
		return
	}
	for i := range g.rows {
		half.EncodeF32(w.call.lse[g.lseAt[i]:], g.LSE[i:i+1])
	}
}
