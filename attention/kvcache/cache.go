package kvcache

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"vkattn/attention"
	"vkattn/attention/merge"
	"vkattn/internal/arith"
	"vkattn/internal/backend"
	"vkattn/internal/errs"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// Config says what a Cache holds.
type Config struct {
	DType              attention.DType  // storage type of new rows, and of the cache if KeyType is KVSame
	KeyType, ValueType attention.KVType // how the cache stores K and V, as in [attention.Config]; zero value: as DType. Latent: V is in K, and LayerRows has none
	HeadDim            int              // elements per row of K
	HeadDimV           int              // elements per row of V; 0: HeadDim
	HeadsKV            int              // heads of K and V
	Layers             int              // of the model: each has K and V of its own for every token; 0: 1
	PageSize           int              // tokens per page; 0: 16
	Pages              int              // pages of each layer

	// Rotary turns K, and Q of the same rows, before it is stored; zero value: not at all. The
	// angle of pair i at position p is p * RotaryBase^(-2i/Rotary.Dim).
	Rotary     Rotary
	RotaryBase float64 // 0: 10000
	Positions  int     // with Rotary, the longest sequence; 0: all pages

	// Cascade is the fewest keys that Step.Forward must save to compute a prefix once for the sequences that share it,
	// in place of once for each: n sequences that share p tokens save (n-1) p. Sequences share the whole pages that
	// a Fork has left them, as far as they are one after another in Begin and have new rows. The result has other bits than
	// without, and they depend on which sequences are in the step. Calls that depend on positions in the prefix, or have
	// FixedSplit, are never cascades: ALiBi, a bias, masks, lists, dropout, attention chunks, windows that leave out a key.
	Cascade int // 0: 16384, and 32 more for each new row; negative: never
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
	home   backend.Home // of dev
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

	numbers backend.Memory // tables and lengths of the step
	room    int            // of numbers

	prefixOps    map[attention.Config]*attention.Op // of cascades
	merges       map[merge.MergeConfig]*merge.Merge
	scratch      backend.Memory
	scratchBytes int64
}

// layer has the pages of one layer: pools [Pages, HeadsKV, PageSize, dim], and scales [Pages, HeadsKV, PageSize].
type layer struct {
	k, v           attention.Tensor // no v where it is in K
	kScale, vScale attention.Vector
	pools          []pool // their memory
}

// pool is memory of a layer, in pages of some bytes.
type pool struct {
	backend.Memory
	page int64
}

// ErrFull matches the error of Begin where the cache has too few free pages. Free or Truncate sequences, then try again:
// nothing has changed.
var ErrFull error = errs.Sentinel("attention: the cache is full", problem.ErrUnsupported)

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
	a, err := NewAppend(dev, AppendConfig{DType: cfg.DType, HeadDim: cfg.HeadDim, HeadDimV: cfg.HeadDimV, KeyType: cfg.KeyType, ValueType: cfg.ValueType, Rotary: cfg.Rotary})
	if err != nil {
		return nil, err
	}
	c := &Cache{dev: dev, home: backend.HomeOf(dev), cfg: cfg, append: a, live: map[*Sequence]struct{}{},
		prefixOps: map[attention.Config]*attention.Op{}, merges: map[merge.MergeConfig]*merge.Merge{}}
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
	kBytes, vBytes := c.rowBytes()
	rows, ok := arith.Product(int64(c.cfg.Pages), int64(c.cfg.HeadsKV), int64(c.cfg.PageSize))
	var all int64
	if ok {
		all, ok = arith.Product(rows, int64(c.cfg.Layers), kBytes+vBytes+8)
	}
	if !ok {
		return &attention.ShapeError{Field: "Pages", Got: c.cfg.Pages, Want: "fewer: the cache has 2^63 bytes and more"}
	}
	host := 8*uint64(c.cfg.Pages) + 8*uint64(c.cfg.Positions)*uint64(c.cfg.Rotary.Dim) // pages, and angles twice
	if c.append.on.CPU() {
		host += uint64(all)
	}
	if err := vk.CheckHostMemory("kvcache.New", host); err != nil {
		return err
	}
	for range c.cfg.Layers {
		c.layers = append(c.layers, layer{})
		l := &c.layers[len(c.layers)-1]
		bytes := []int64{kBytes, vBytes}
		if vBytes == 0 {
			bytes = bytes[:1]
		}
		if c.cfg.KeyType.Scaled() {
			bytes = append(bytes, 4, 4)
		}
		for _, n := range bytes {
			m, err := c.memory(rows * n)
			if err != nil {
				return err
			}
			l.pools = append(l.pools, pool{m, rows / int64(c.cfg.Pages) * int64(n)})
		}
		if l.k = l.pools[0].Tensor(); vBytes > 0 {
			l.v = l.pools[1].Tensor()
		}
		if c.cfg.KeyType.Scaled() {
			l.kScale, l.vScale = vectorOf(l.pools[2], 0), vectorOf(l.pools[3], 0)
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

// rowBytes are the sizes of a row of K and of V in the pools; of V 0 where it is in K.
func (c *Cache) rowBytes() (k, v int64) {
	if k = int64(c.cfg.KeyType.RowBytes(c.cfg.DType, c.cfg.HeadDim)); !c.cfg.KeyType.Latent() {
		v = int64(c.cfg.ValueType.RowBytes(c.cfg.DType, c.cfg.HeadDimV))
	}
	return k, v
}

// memory returns memory where the cache is. What no row was written to is never read.
func (c *Cache) memory(bytes int64) (backend.Memory, error) {
	return c.home.Backend().NewMemory(max(4, (bytes+3)&^3))
}

// vectorOf is the numbers in a memory from one on.
func vectorOf(m backend.Memory, at int) attention.Vector {
	t := m.Tensor()
	return attention.Vector{Buffer: t.Buffer, Host: t.Host, Memory: t.Memory, Offset: int64(at)}
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
	all := []error{c.append.Close(), c.cos.Close(), c.sin.Close()}
	for _, m := range []backend.Memory{c.numbers, c.scratch} {
		if m != nil {
			all = append(all, m.Close())
		}
	}
	for _, op := range c.prefixOps {
		all = append(all, op.Close())
	}
	for _, m := range c.merges {
		all = append(all, m.Close())
	}
	for _, l := range c.layers {
		for _, p := range l.pools {
			all = append(all, p.Close())
		}
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
