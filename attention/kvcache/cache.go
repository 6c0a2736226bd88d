package kvcache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"

	"vkattn/attention"
	"vkattn/internal/arith"
	"vkattn/internal/errs"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// Config says what a Cache holds.
type Config struct {
	DType    attention.DType  // storage type of new rows, and of the cache if KV is KVSame
	KV       attention.KVType // how the cache stores K and V; zero value: as DType
	HeadDim  int              // elements per row of K
	HeadDimV int              // elements per row of V; 0: HeadDim
	HeadsKV  int              // heads of K and V
	Layers   int              // of the model: each has K and V of its own for every token; 0: 1
	PageSize int              // tokens per page; 0: 16
	Pages    int              // pages of each layer

	// Rotary turns K, and Q of the same rows, before it is stored; zero value: not at all. The
	// angle of pair i at position p is p * RotaryBase^(-2i/Rotary.Dim).
	Rotary     Rotary
	RotaryBase float64 // 0: 10000
	Positions  int     // with Rotary, the longest sequence; 0: all pages
}

// Cache owns the K and V of many sequences: their pages, block tables and lengths. Sequences that were forked
// share pages until one of them appends to the last one, which is then copied.
//
// A step of a model is one Begin, which takes the pages of its new rows, then for each layer Append of the new K and
// V, and Forward with Args. All calls run on the default stream of the device.
//
// Methods of a Cache, its Sequences and Steps are safe for concurrent use, but steps come one after another: Begin ends
// the step before.
type Cache struct {
	dev    *attention.Device
	cfg    Config
	append *Append
	layers []layer
	cos    attention.Vector
	sin    attention.Vector

	mu     sync.Mutex
	closed bool
	refs   []int32 // sequences that have a page
	free   []int32 // pages that none has
	live   map[*Sequence]struct{}
	step   *Step // the last that Begin returned

	numbers attention.Vector // table and lengths of the step
	room    int              // of numbers
}

// layer has the pages of one layer: pools [Pages, HeadsKV, PageSize, dim], and scales [Pages, HeadsKV, PageSize].
type layer struct {
	k, v           attention.Tensor
	kScale, vScale attention.Vector
}

// ErrFull matches the error of Begin where the cache has too few free pages. Free or Truncate sequences, then try again:
// nothing has changed.
var ErrFull = errs.Sentinel("attention: the cache is full", problem.ErrUnsupported)

// New makes an empty cache. A nil device is the CPU. The device stays the caller's and must outlive it.
func New(dev *attention.Device, cfg Config) (*Cache, error) {
	if dev == nil {
		dev = attention.On(nil)
	}
	if cfg.Layers == 0 {
		cfg.Layers = 1
	}
	if cfg.PageSize == 0 {
		cfg.PageSize = 16
	}
	if cfg.HeadDimV == 0 {
		cfg.HeadDimV = cfg.HeadDim
	}
	for _, x := range []struct {
		field string
		value int
	}{{"HeadsKV", cfg.HeadsKV}, {"Layers", cfg.Layers}, {"PageSize", cfg.PageSize}, {"Pages", cfg.Pages}} {
		if x.value < 1 || x.value > math.MaxInt32 {
			return nil, &attention.ShapeError{Field: x.field, Got: x.value, Want: "1 to 2^31-1"}
		}
	}
	if cfg.Positions == 0 {
		cfg.Positions = min(cfg.Pages*cfg.PageSize, attention.MaxLength)
	}
	if cfg.RotaryBase == 0 {
		cfg.RotaryBase = 10000
	}
	if cfg.Rotary.Dim > 0 && !(cfg.RotaryBase > 0) {
		return nil, &attention.ShapeError{Field: "RotaryBase", Got: cfg.RotaryBase, Want: "above 0"}
	}
	a, err := NewAppend(dev, AppendConfig{DType: cfg.DType, HeadDim: cfg.HeadDim, HeadDimV: cfg.HeadDimV, KV: cfg.KV, Rotary: cfg.Rotary})
	if err != nil {
		return nil, err
	}
	c := &Cache{dev: dev, cfg: cfg, append: a, live: map[*Sequence]struct{}{}}
	if err := c.allocate(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	c.refs = make([]int32, cfg.Pages)
	for p := cfg.Pages - 1; p >= 0; p-- {
		c.free = append(c.free, int32(p))
	}
	return c, nil
}

// allocate makes the pools and the tables of angles.
func (c *Cache) allocate() (err error) {
	rows, ok := arith.Product(int64(c.cfg.Pages), int64(c.cfg.HeadsKV), int64(c.cfg.PageSize))
	var all int64
	if ok {
		all, ok = arith.Product(rows, int64(c.cfg.Layers), int64(c.rowBytes(c.cfg.HeadDim)+c.rowBytes(c.cfg.HeadDimV)+8))
	}
	if !ok {
		return &attention.ShapeError{Field: "Pages", Got: c.cfg.Pages, Want: "fewer: the cache has 2^63 bytes and more"}
	}
	host := 8*uint64(c.cfg.Pages) + 8*uint64(c.cfg.Positions)*uint64(c.cfg.Rotary.Dim) // pages, and angles twice
	if c.dev.Vulkan() == nil {
		host += uint64(all)
	}
	if err := vk.CheckHostMemory("kvcache.New", host); err != nil {
		return err
	}
	for range c.cfg.Layers {
		c.layers = append(c.layers, layer{})
		l := &c.layers[len(c.layers)-1]
		if l.k, err = c.memory(rows * int64(c.rowBytes(c.cfg.HeadDim))); err != nil {
			return err
		}
		if l.v, err = c.memory(rows * int64(c.rowBytes(c.cfg.HeadDimV))); err != nil {
			return err
		}
		for _, scales := range []*attention.Vector{&l.kScale, &l.vScale} {
			if !c.cfg.KV.Scaled() {
				continue
			}
			m, err := c.memory(4 * rows)
			if err != nil {
				return err
			}
			*scales = attention.Vector{Buffer: m.Buffer, Host: m.Host}
		}
	}
	if c.cfg.Rotary.Dim == 0 {
		return nil
	}
	cos, sin := c.cfg.Rotary.Tables(c.cfg.Positions, c.cfg.RotaryBase)
	if c.cos, err = c.dev.Floats(cos...); err != nil {
		return err
	}
	c.sin, err = c.dev.Floats(sin...)
	return err
}

// rowBytes is the size of a row of dim elements in the pools.
func (c *Cache) rowBytes(dim int) int { return c.cfg.KV.RowBytes(c.cfg.DType, dim) }

// memory returns memory where the cache is. What no row was written to is never read.
func (c *Cache) memory(bytes int64) (attention.Tensor, error) {
	dev := c.dev.Vulkan()
	if dev == nil {
		return attention.Tensor{Host: make([]byte, bytes)}, nil
	}
	b, err := dev.NewBuffer(uint64(max(bytes, 4)), vk.BufferOptions{})
	return attention.Tensor{Buffer: b}, err
}

// Close frees the cache, on a device when no work in flight holds it. Its sequences cannot be used any more.
func (c *Cache) Close() error {
	if c == nil || c.append == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	all := []error{c.append.Close(), c.cos.Buffer.Close(), c.sin.Buffer.Close(), c.numbers.Buffer.Close()}
	for _, l := range c.layers {
		all = append(all, l.k.Buffer.Close(), l.v.Buffer.Close(), l.kScale.Buffer.Close(), l.vScale.Buffer.Close())
	}
	return errors.Join(all...)
}

// Stats are numbers of a Cache.
type Stats struct {
	Pages     int // of each layer
	Free      int // pages that no sequence has
	Shared    int // pages that several sequences have
	Sequences int
	Tokens    int // of all sequences; those of shared pages count for each
}

// Stats returns the numbers of the cache.
func (c *Cache) Stats() Stats {
	if c == nil {
		return Stats{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Stats{Pages: c.cfg.Pages, Free: len(c.free), Sequences: len(c.live)}
	for _, n := range c.refs {
		if n > 1 {
			s.Shared++
		}
	}
	for x := range c.live {
		s.Tokens += x.len
	}
	return s
}

// Sequence is a sequence of a Cache.
type Sequence struct {
	cache *Cache
	pages []int32
	len   int
}

// Sequence starts an empty sequence. It takes no page until rows are appended.
func (c *Cache) Sequence() *Sequence {
	if c == nil || c.append == nil {
		return &Sequence{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &Sequence{cache: c}
	c.live[s] = struct{}{}
	return s
}

// Len is the number of tokens of a sequence, those of the last Begin included.
func (s *Sequence) Len() int {
	if s == nil || s.cache == nil {
		return 0
	}
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	return s.len
}

// Fork returns a sequence of the same tokens, which shares all pages with s.
func (s *Sequence) Fork() (*Sequence, error) {
	if s == nil || s.cache == nil {
		return nil, errNoSequence
	}
	c := s.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.has(s); err != nil {
		return nil, err
	}
	f := &Sequence{cache: c, pages: append([]int32(nil), s.pages...), len: s.len}
	for _, p := range f.pages {
		c.refs[p]++
	}
	c.live[f] = struct{}{}
	return f, nil
}

// Truncate keeps the first n tokens of a sequence, for example those that were not rejected.
func (s *Sequence) Truncate(n int) error {
	if s == nil || s.cache == nil {
		return errNoSequence
	}
	c := s.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.has(s); err != nil {
		return err
	}
	if n < 0 || n > s.len {
		return &attention.ShapeError{Field: "Truncate", Got: n, Want: fmt.Sprintf("0 to %d", s.len)}
	}
	c.drop(s, (n+c.cfg.PageSize-1)/c.cfg.PageSize)
	s.len = n
	return nil
}

// Free gives the pages of a sequence back. It is idempotent.
func (s *Sequence) Free() {
	if s == nil || s.cache == nil {
		return
	}
	c := s.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.has(s) != nil {
		return
	}
	c.drop(s, 0)
	s.len = 0
	delete(c.live, s)
}

var (
	errNoSequence = errs.Invalid("the sequence is nil, or was not made by a Cache")
	errNoStep     = errs.Invalid("the step is nil, or was not made by Begin")
)

// has reports why a sequence cannot be used. The caller holds mu, as of all below.
func (c *Cache) has(s *Sequence) error {
	switch _, live := c.live[s]; {
	case c.closed:
		return errs.Closed("the cache")
	case !live:
		return errs.Invalid("the sequence was freed, or is of another cache")
	}
	return nil
}

// drop takes the pages of a sequence from number n on from it.
func (c *Cache) drop(s *Sequence, n int) {
	for _, p := range s.pages[n:] {
		if c.refs[p]--; c.refs[p] == 0 {
			c.free = append(c.free, p)
		}
	}
	s.pages = s.pages[:n]
}

// NewRows are the new rows of a sequence in a step.
type NewRows struct {
	Sequence *Sequence
	Rows     int // 0: none, but its old ones are attended to
}

// Step is one step of a model over some sequences: their new rows, packed in the order of Begin.
type Step struct {
	cache                  *Cache
	sequences, rows        int // rows: of all
	mostRows, keys         int // rows of a sequence; what Shape.Sk says
	table, used, after, cu attention.Vector
	stride                 int
}

// Begin starts a step: it takes the pages that the new rows need and copies a last page that other sequences
// share. Each sequence is then longer by its rows. If there are too few pages the error matches ErrFull and nothing has
// changed.
func (c *Cache) Begin(list ...NewRows) (*Step, error) {
	if c == nil || c.append == nil {
		return nil, errs.Unmade("New")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errs.Closed("the cache")
	}
	st := &Step{cache: c, sequences: len(list)}
	taken := map[*Sequence]bool{}
	copied := make([]bool, len(list)) // sequences whose last page is copied
	left := map[int32]int32{}         // pages that are copied: sequences that keep them
	need := 0                         // free pages
	for i, x := range list {
		if x.Sequence == nil {
			return nil, &attention.ShapeError{Field: fmt.Sprintf("Begin: sequence %d", i), Got: "nil", Want: "one of the cache"}
		}
		if err := c.has(x.Sequence); err != nil {
			return nil, err
		}
		if taken[x.Sequence] {
			return nil, &attention.ShapeError{Field: fmt.Sprintf("Begin: sequence %d", i), Got: "given twice", Want: "each once"}
		}
		taken[x.Sequence] = true
		keys := x.Sequence.len + x.Rows
		if x.Rows < 0 || keys > attention.MaxLength || c.cfg.Rotary.Dim > 0 && keys > c.cfg.Positions {
			return nil, &attention.ShapeError{Field: fmt.Sprintf("Begin: rows of sequence %d", i), Got: x.Rows,
				Want: fmt.Sprintf("at least 0, and at most %d with the %d before", min(attention.MaxLength, c.cfg.Positions), x.Sequence.len)}
		}
		s := x.Sequence
		need += max(0, (keys+c.cfg.PageSize-1)/c.cfg.PageSize-len(s.pages))
		if x.Rows > 0 && s.len%c.cfg.PageSize != 0 { // rows go to the last page
			last := s.pages[len(s.pages)-1]
			if _, ok := left[last]; !ok {
				left[last] = c.refs[last]
			}
			if copied[i] = left[last] > 1; copied[i] {
				left[last]--
				need++
			}
		}
		st.rows += x.Rows
		st.mostRows, st.keys = max(st.mostRows, x.Rows), max(st.keys, keys)
	}
	if need > len(c.free) {
		return nil, fmt.Errorf("%w: %d pages are needed and %d of %d are free", ErrFull, need, len(c.free), c.cfg.Pages)
	}
	next := len(c.free)
	take := func() int32 {
		next--
		return c.free[next]
	}
	tables := make([][]int32, len(list))
	var copies [][2]int32 // from, to
	for i, x := range list {
		s := x.Sequence
		tables[i] = append([]int32(nil), s.pages...)
		if copied[i] {
			last := len(s.pages) - 1
			tables[i][last] = take()
			copies = append(copies, [2]int32{s.pages[last], tables[i][last]})
		}
		for len(tables[i])*c.cfg.PageSize < s.len+x.Rows {
			tables[i] = append(tables[i], take())
		}
	}
	if err := st.send(list, tables, copies); err != nil {
		return nil, err
	}
	c.free = c.free[:next]
	for i, x := range list {
		s := x.Sequence
		if copied[i] {
			c.refs[s.pages[len(s.pages)-1]]--
			c.refs[tables[i][len(s.pages)-1]] = 1
		}
		for _, p := range tables[i][len(s.pages):] {
			c.refs[p] = 1
		}
		s.pages, s.len = tables[i], s.len+x.Rows
	}
	c.step = st
	return st, nil
}

// send copies pages, and uploads the block table and the lengths of a step.
func (st *Step) send(list []NewRows, tables [][]int32, copies [][2]int32) error {
	c := st.cache
	st.keys = (max(1, st.keys) + keyRounding - 1) / keyRounding * keyRounding
	st.stride = (st.keys + c.cfg.PageSize - 1) / c.cfg.PageSize
	n := len(list)
	numbers := make([]int32, n*st.stride+3*n+1)
	used, after, cu := numbers[n*st.stride:][:n], numbers[n*st.stride+n:][:n], numbers[n*st.stride+2*n:]
	for i, x := range list {
		copy(numbers[i*st.stride:], tables[i])
		used[i], after[i], cu[i+1] = int32(x.Sequence.len), int32(x.Sequence.len+x.Rows), cu[i]+int32(x.Rows)
	}
	b := make([]byte, 4*len(numbers))
	for i, x := range numbers {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(x))
	}
	v := attention.Vector{Host: b}
	if c.dev.Vulkan() == nil {
		for _, x := range copies {
			for i := range c.layers {
				for _, p := range c.pools(i) {
					copy(p.t.Host[int64(x[1])*p.page:][:p.page], p.t.Host[int64(x[0])*p.page:])
				}
			}
		}
	} else {
		if len(numbers) > c.room {
			m, err := c.memory(int64(8 * len(numbers)))
			if err != nil {
				return err
			}
			if err := c.numbers.Buffer.Close(); err != nil {
				return err
			}
			c.numbers, c.room = attention.Vector{Buffer: m.Buffer}, 2*len(numbers)
		}
		v = c.numbers
		err := c.dev.Do(func(s *vk.Stream) error {
			for _, x := range copies {
				for i := range c.layers {
					for _, p := range c.pools(i) {
						to := vk.BufferRange{Buffer: p.t.Buffer, Offset: uint64(int64(x[1]) * p.page), Size: uint64(p.page)}
						from := to
						from.Offset = uint64(int64(x[0]) * p.page)
						if err := s.Copy(to, from); err != nil {
							return err
						}
					}
				}
			}
			return s.Upload(v.Buffer, 0, b)
		})
		if err != nil {
			return err
		}
	}
	at := func(i int) attention.Vector {
		return attention.Vector{Buffer: v.Buffer, Host: v.Host, Offset: int64(i)}
	}
	st.table, st.used, st.after, st.cu = at(0), at(n*st.stride), at(n*st.stride+n), at(n*st.stride+2*n)
	return nil
}

// pool is memory of a layer, in pages of so many bytes.
type pool struct {
	t    attention.Tensor
	page int64
}

func (c *Cache) pools(i int) []pool {
	l, rows := &c.layers[i], int64(c.cfg.HeadsKV)*int64(c.cfg.PageSize)
	list := []pool{{l.k, rows * int64(c.rowBytes(c.cfg.HeadDim))}, {l.v, rows * int64(c.rowBytes(c.cfg.HeadDimV))}}
	if c.cfg.KV.Scaled() {
		for _, x := range []attention.Vector{l.kScale, l.vScale} {
			list = append(list, pool{attention.Tensor{Buffer: x.Buffer, Host: x.Host}, 4 * rows})
		}
	}
	return list
}

// Rows is the number of new rows of all sequences.
func (st *Step) Rows() int {
	if st == nil {
		return 0
	}
	return st.rows
}

// usable reports why a step cannot be used for a layer.
func (st *Step) usable(i int) error {
	c := st.cache
	switch {
	case c.closed:
		return errs.Closed("the cache")
	case c.step != st:
		return errs.Invalid("the step is over: another has begun")
	case i < 0 || i >= len(c.layers):
		return &attention.ShapeError{Field: "layer", Got: i, Want: fmt.Sprintf("0 to %d", len(c.layers)-1)}
	}
	return nil
}

// LayerRows are the new rows of a layer, packed: K [1, HeadsKV, Rows, HeadDim] and V. With a rotary embedding Q
// [1, Hq, Rows, HeadDim] is turned like K and written to QOut, which may be Q; Heads is Hq.
type LayerRows struct {
	K, V, Q, QOut attention.Tensor
	Heads         int // of Q; 0: as Q's Device made it
}

// Append stores the new K and V of a layer.
func (st *Step) Append(layer int, r LayerRows) error {
	if st == nil || st.cache == nil {
		return errNoStep
	}
	c := st.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := st.usable(layer); err != nil {
		return err
	}
	l := &c.layers[layer]
	return c.append.Forward(nil, AppendArgs{
		B: st.sequences, Hkv: c.cfg.HeadsKV, Hq: headsOf(r.Q, r.Heads), K: r.K, V: r.V, CuNew: st.cu, TotalNew: st.rows,
		KCache: l.k, VCache: l.v, Pages: st.pages(), Used: st.used, KScale: l.kScale, VScale: l.vScale,
		Cos: c.cos, Sin: c.sin, Positions: c.positions(), Q: r.Q, QOut: r.QOut,
	})
}

func (c *Cache) positions() int {
	if c.cfg.Rotary.Dim == 0 {
		return 0
	}
	return c.cfg.Positions
}

func (st *Step) pages() *attention.Pages {
	return &attention.Pages{Table: st.table, Stride: st.stride, PageSize: st.cache.cfg.PageSize, Count: st.cache.cfg.Pages}
}

func headsOf(q attention.Tensor, heads int) int {
	if shape := q.Shape(); heads == 0 && len(shape) == 4 {
		return shape[1]
	}
	return heads
}

// keyRounding is what Shape.Sk of a step is rounded up to: plans are made for a Shape, and a longer sequence should not
// need another one in every step. The lengths in use are exact.
const keyRounding = 256

// Args are the tensors of Forward for a layer: the rows of Q, packed as those of K, attend to all tokens of their sequence.
// The Op has the HeadDim, KV and DType of the cache, and Causal BottomRight lets each new row see those before
// it. Add options, such as LSE, to the result. heads is 0 where Q's Device made it.
func (st *Step) Args(layer int, q, o attention.Tensor, heads int) (attention.Args, error) {
	if st == nil || st.cache == nil {
		return attention.Args{}, errNoStep
	}
	c := st.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := st.usable(layer); err != nil {
		return attention.Args{}, err
	}
	l := &c.layers[layer]
	return attention.Args{
		Shape: attention.Shape{B: st.sequences, Hq: headsOf(q, heads), Hkv: c.cfg.HeadsKV, Sq: max(1, st.mostRows), Sk: st.keys},
		Q:     q, K: l.k, V: l.v, O: o, KScale: l.kScale, VScale: l.vScale, Pages: st.pages(),
		Varlen: &attention.Varlen{CuQ: st.cu, TotalQ: st.rows, UsedK: st.after},
	}, nil
}
