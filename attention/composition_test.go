package attention_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"vkattn/attention"
)

// sparsity is how a composition says which keys count.
type sparsity uint8

const (
	dense      sparsity = iota
	keptTokens          // lists of tokens, in any order, some twice, some that do not exist
	sortedKept          // lists of tokens in order, each once
	maskBytes           // a mask
	blockBits           // a bitmap of blocks
)

func (s sparsity) String() string {
	return [...]string{"dense", "kept", "kept-sorted", "mask", "blocks"}[s]
}

// broadcastKind says which sizes of a bias, mask or bitmap are 1.
type broadcastKind struct{ Batches, Heads, Rows bool }

// composition is a call with features, apart from the storage of its outputs: what
// is computed and how it lies in memory. The numbers follow from Seed and from what
// they belong to (the sequence, head, row or key), so that two compositions that
// differ in how things lie have the same ones.
type composition struct {
	DType  attention.DType
	D, Dv  int
	Shape  attention.Shape // Sq and Sk bound the lengths
	LSE    bool
	Seed   uint64
	Layout layoutChoice

	// Lengths of sequences; nil: Sq and Sk. How they are given: packed, in use or both.
	Rows, Keys           []int
	PackQ, PackK         bool
	GiveUsedQ, GiveUsedK bool

	PageSize   int // 0: not paged
	SharedKeys int // so many leading keys of every sequence are the same; pages full of them are shared

	Sparse   sparsity
	Kept     float64       // share of keys, slots or blocks that count
	SparseAt broadcastKind // of mask and blocks
	BlockQ   int
	BlockK   int

	Bias     bool
	BiasType attention.DType
	BiasAt   broadcastKind
	ALiBi    bool
	Sinks    bool

	Causal, Align attention.Causal
	Window        attention.Window
	Softcap       float32
	Scale         attention.Scale
	KV            attention.KVType
	KVBlock       int
	FixedSplit    int
}

// layoutChoice is how Q, K, V and O lie: BHSD, BSHD, or BHSD with gaps.
type layoutChoice uint8

// Config is the Config of the composition on a tier.
func (c *composition) Config(tier attention.Tier) attention.Config {
	return attention.Config{
		DType: c.DType, HeadDim: c.D, HeadDimV: c.Dv, Causal: c.Causal, Scale: c.Scale, Tier: tier,
		Tuning: attention.TuningOff, Window: c.Window, Align: c.Align, Softcap: c.Softcap,
		KV: c.KV, KVBlock: c.KVBlock, FixedSplit: c.FixedSplit,
	}
}

// RowsOf and KeysOf are the lengths of sequence b.
func (c *composition) RowsOf(b int) int { return lengthOf(c.Rows, c.Shape.Sq, b) }
func (c *composition) KeysOf(b int) int { return lengthOf(c.Keys, c.Shape.Sk, b) }

func lengthOf(list []int, full, b int) int {
	if list == nil {
		return full
	}
	return list[b]
}

// String names what is in it; with the seed it is enough to find a failure again.
func (c *composition) String() string {
	s := []string{c.Config(attention.TierAuto).String(), c.Shape.String(), fmt.Sprintf("seed %d layout %d", c.Seed, c.Layout)}
	add := func(is bool, format string, args ...any) {
		if is {
			s = append(s, fmt.Sprintf(format, args...))
		}
	}
	add(c.Rows != nil, "rows %v", c.Rows)
	add(c.Keys != nil, "keys %v", c.Keys)
	add(c.PackQ, "packed q")
	add(c.PackK, "packed k")
	add(c.GiveUsedQ, "used q")
	add(c.GiveUsedK, "used k")
	add(c.PageSize > 0, "pages of %d", c.PageSize)
	add(c.SharedKeys > 0, "%d keys shared", c.SharedKeys)
	add(c.Sparse != dense, "%v %.2f", c.Sparse, c.Kept)
	add(c.Sparse == maskBytes || c.Sparse == blockBits, "for %+v", c.SparseAt)
	add(c.Sparse == blockBits, "%dx%d", c.BlockQ, c.BlockK)
	add(c.Bias, "bias %v for %+v", c.BiasType, c.BiasAt)
	add(c.ALiBi, "alibi")
	add(c.Sinks, "sinks")
	add(c.LSE, "lse")
	return strings.Join(s, ", ")
}

// drawComposition is a random composition of features on a small problem: lengths to sq and sk.
func drawComposition(seed uint64, sq, sk int) composition {
	r := rand.New(rand.NewPCG(seed, 0x5eed))
	maybe := func(percent int) bool { return r.IntN(100) < percent }
	kv := 1 + r.IntN(3)
	c := composition{
		DType: pick(r, attention.DTypes()), D: pick(r, []int{1, 7, 16, 32, 33, 64, 96, 128}),
		Shape: attention.Shape{B: 1 + r.IntN(3), Hkv: kv, Hq: kv * (1 + r.IntN(4)), Sq: 1 + r.IntN(sq), Sk: 1 + r.IntN(sk)},
		LSE:   maybe(80), Seed: seed, Layout: layoutChoice(r.IntN(3)),
	}
	c.Dv = c.D
	if maybe(30) {
		c.Dv = pick(r, []int{1, 8, 32, 64, 80})
	}
	if maybe(40) {
		c.KV = pick(r, attention.KVTypes())
		if c.KV.Blocked() {
			c.D, c.Dv = pick(r, []int{32, 64, 128}), pick(r, []int{32, 64, 96})
		}
		if c.KV.Scaled() && maybe(50) {
			c.KVBlock = 1 + r.IntN(20)
		}
	}
	c.Causal = pick(r, []attention.Causal{attention.CausalNone, attention.TopLeft, attention.BottomRight})
	c.Align = c.Causal
	if c.Causal == attention.CausalNone {
		c.Align = pick(r, []attention.Causal{attention.TopLeft, attention.BottomRight})
	}
	if maybe(30) {
		c.Window = attention.WindowOf(r.IntN(c.Shape.Sk+2)-1, r.IntN(c.Shape.Sk+2)-1)
	}
	c.ALiBi = maybe(25)
	if !c.Window.Given() && !c.ALiBi && maybe(50) {
		c.Align = attention.CausalNone
	}
	if maybe(25) {
		c.Softcap = pick(r, []float32{0.5, 3, 50})
	}
	if maybe(20) {
		c.Scale = attention.ScaleOf(pick(r, []float32{0, 1, -0.5, 0.1}))
	}
	c.Sinks = maybe(25)
	if maybe(30) {
		c.Bias, c.BiasType = true, pick(r, attention.DTypes())
		c.BiasAt = broadcastKind{maybe(40), maybe(40), maybe(40)}
	}
	if maybe(50) {
		c.GiveUsedQ, c.PackQ = maybe(50), maybe(50)
		if c.GiveUsedQ || c.PackQ {
			c.Rows = drawLengths(r, c.Shape.B, c.Shape.Sq)
		}
	}
	if maybe(35) {
		c.PageSize = pick(r, []int{1, 5, 16, 64})
		c.GiveUsedK = maybe(60)
		c.SharedKeys = r.IntN(3) * r.IntN(c.Shape.Sk)
	} else if maybe(50) {
		c.GiveUsedK, c.PackK = maybe(50), maybe(50)
	}
	if c.GiveUsedK || c.PackK {
		c.Keys = drawLengths(r, c.Shape.B, c.Shape.Sk)
	}
	if maybe(50) {
		c.Sparse = pick(r, []sparsity{keptTokens, sortedKept, maskBytes, blockBits})
		c.Kept = pick(r, []float64{0.02, 0.3, 0.7})
		c.SparseAt = broadcastKind{maybe(40), maybe(40), maybe(40)}
		c.BlockQ, c.BlockK = pick(r, []int{16, 32, 64}), pick(r, []int{16, 32, 64})
	}
	return c
}

// drawLengths are random, some of them 0 and some full.
func drawLengths(r *rand.Rand, n, most int) []int {
	list := make([]int, n)
	for i := range list {
		switch r.IntN(5) {
		case 0:
		case 1:
			list[i] = most
		default:
			list[i] = 1 + r.IntN(most)
		}
	}
	return list
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// numbers is a source for what belongs to some place of a composition.
func (c *composition) numbers(place ...int) *rand.Rand {
	h := c.Seed*0x9e3779b97f4a7c15 + 1
	for _, n := range place {
		h = (h ^ uint64(n+1)) * 0xff51afd7ed558ccd
		h ^= h >> 32
	}
	return rand.New(rand.NewPCG(h, c.Seed))
}

// Kinds of places.
const (
	ofQ = iota
	ofK
	ofV
	ofScales
	ofPages
	ofKept
	ofMask
	ofBlocks
	ofBias
	ofALiBi
	ofSinks
	ofPacking
)

func normals(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// keptList are the tokens that sequence b and key head h list.
func (c *composition) keptList(b, h int) []int32 {
	r := c.numbers(ofKept, b, h)
	var list []int32
	for key := range c.KeysOf(b) {
		if r.Float64() < c.Kept {
			list = append(list, int32(key))
		}
	}
	if c.Sparse == sortedKept {
		return list
	}
	for range len(list) / 8 {
		list = append(list, list[r.IntN(len(list))])
	}
	for _, none := range []int32{-1, int32(c.KeysOf(b)), math.MinInt32, math.MaxInt32} {
		if r.IntN(3) == 0 {
			list = append(list, none)
		}
	}
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// pages are the pages of each sequence, and how many there are in the pool: in any
// order, with some that nobody has.
func (c *composition) pages() (table [][]int, count int) {
	r := c.numbers(ofPages)
	table = make([][]int, c.Shape.B)
	for b := range table {
		for i := range (c.KeysOf(b) + c.PageSize - 1) / c.PageSize {
			if b > 0 && (i+1)*c.PageSize <= c.SharedKeys && i < len(table[0]) {
				table[b] = append(table[b], table[0][i])
				continue
			}
			table[b] = append(table[b], count)
			count++
		}
	}
	order := r.Perm(count + 1 + r.IntN(4))
	for b := range table {
		for i, page := range table[b] {
			table[b][i] = order[page]
		}
	}
	return table, len(order)
}

// owner is the sequence whose numbers a key of sequence b has.
func (c *composition) owner(b, key int) int {
	if key < c.SharedKeys {
		return 0
	}
	return b
}

// at is an index where sizes are 1.
func (k broadcastKind) at(b, h, row int) (int, int, int) {
	if k.Batches {
		b = 0
	}
	if k.Heads {
		h = 0
	}
	if k.Rows {
		row = 0
	}
	return b, h, row
}

// maskRow says which keys the mask lets count.
func (c *composition) maskRow(b, h, row int) []bool {
	b, h, row = c.SparseAt.at(b, h, row)
	r := c.numbers(ofMask, b, h, row)
	bits := make([]bool, c.Shape.Sk)
	for i := range bits {
		bits[i] = r.Float64() < c.Kept
	}
	return bits
}

// blockRow says which blocks of keys count for a row of blocks.
func (c *composition) blockRow(b, h, blockRow int) []bool {
	at := c.SparseAt
	at.Rows = false // of blocks there are all rows
	b, h, blockRow = at.at(b, h, blockRow)
	r := c.numbers(ofBlocks, b, h, blockRow)
	bits := make([]bool, (c.Shape.Sk+c.BlockK-1)/c.BlockK)
	for i := range bits {
		bits[i] = r.Float64() < c.Kept
	}
	return bits
}

// biasRow is as it is stored; one in sixteen is -Inf, though not all of a row.
func (c *composition) biasRow(b, h, row int) []float32 {
	b, h, row = c.BiasAt.at(b, h, row)
	r := c.numbers(ofBias, b, h, row)
	x := normals(r, c.Shape.Sk)
	for i := range x {
		if r.IntN(16) == 0 {
			x[i] = float32(math.Inf(-1))
		}
	}
	return stored(c.BiasType, x)
}

func (c *composition) slopes() []float32 {
	x := normals(c.numbers(ofALiBi), c.Shape.Hq)
	for i := range x {
		x[i] = float32(math.Abs(float64(x[i]))) / 8
	}
	return x
}

// sinks are about as large as scores; one in eight is -Inf, none.
func (c *composition) sinks() []float32 {
	r := c.numbers(ofSinks)
	x := normals(r, c.Shape.Hq)
	for i := range x {
		if r.IntN(8) == 0 {
			x[i] = float32(math.Inf(-1))
		}
	}
	return x
}

// qRow is as it is stored.
func (c *composition) qRow(b, h, row int) []float32 {
	return stored(c.DType, normals(c.numbers(ofQ, b, h, row), c.D))
}

// packing is where packed sequences begin and how many rows there are: each with
// room for its length, and more where the lengths in use are given besides.
func (c *composition) packing(kind int, lengthOf func(int) int, slack bool) (cu []int32, total int) {
	r := c.numbers(ofPacking, kind)
	at := r.IntN(3)
	for b := range c.Shape.B {
		cu = append(cu, int32(at))
		at += lengthOf(b)
		if slack {
			at += r.IntN(4)
		}
	}
	return append(cu, int32(at)), max(1, at+r.IntN(3))
}

// Contiguous is the same call with keys in place instead of in pages.
func (c *composition) Contiguous() composition {
	p := *c
	p.PageSize = 0
	return p
}
