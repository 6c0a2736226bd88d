package kvcache

import (
	"encoding/binary"
	"fmt"

	"vkattn/attention"
	"vkattn/internal/backend"
	"vkattn/internal/errs"
)

// NewRows are the new rows of a sequence in a step.
type NewRows struct {
	Sequence *Sequence
	Rows     int // 0: none, but its old ones are attended to
}

// Step is one step of a model over some sequences: their new rows, packed in the order of Begin.
type Step struct {
	cache       *Cache
	rows        int // of all sequences
	all         part
	prefix, own part // of a cascade
	saved       int  // keys that the cascade saves; 0: there is none
	numbers     backend.Memory
	used        int // lengths before the step begin there in numbers
}

// part is the rows of a step with keys that they attend to. Of a sequence after the other it has the rows, the keys and
// the pages of the keys.
type part struct {
	cu, lengths []int32
	tables      [][]int32

	mostRows, mostKeys       int
	keys, stride             int // what Shape.Sk says, and pages of a row of the block table
	cuAt, lengthsAt, tableAt int // in the numbers of the step
}

func (p *part) add(rows, keys int, table []int32) {
	if p.cu == nil {
		p.cu = []int32{0}
	}
	p.cu = append(p.cu, p.cu[len(p.cu)-1]+int32(rows))
	p.lengths = append(p.lengths, int32(keys))
	p.tables = append(p.tables, table)
	p.mostRows, p.mostKeys = max(p.mostRows, rows), max(p.mostKeys, keys)
}

// put appends the numbers of a part that kernels read, and forgets them.
func (p *part) put(numbers []int32, page int) []int32 {
	if p.cu == nil {
		p.cu = []int32{0}
	}
	p.keys = (max(1, p.mostKeys) + keyRounding - 1) / keyRounding * keyRounding
	p.stride = (p.keys + page - 1) / page
	p.tableAt = len(numbers)
	for _, t := range p.tables {
		numbers = append(append(numbers, t...), make([]int32, p.stride-len(t))...)
	}
	p.lengthsAt = len(numbers)
	numbers = append(numbers, p.lengths...)
	p.cuAt = len(numbers)
	numbers = append(numbers, p.cu...)
	p.tables = nil
	return numbers
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
	st := &Step{cache: c}
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
		most := attention.MaxLength
		if c.cfg.Rotary.Dim > 0 {
			most = min(most, c.cfg.Positions)
		}
		if x.Rows < 0 || x.Rows > most-x.Sequence.len || x.Rows > attention.MaxLength-st.rows {
			return nil, &attention.ShapeError{Field: fmt.Sprintf("Begin: rows of sequence %d", i), Got: x.Rows,
				Want: fmt.Sprintf("at least 0, and at most %d with the %d before, and %d of all sequences", most, x.Sequence.len, attention.MaxLength)}
		}
		s, keys := x.Sequence, x.Sequence.len+x.Rows
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
		st.all.add(x.Rows, s.len+x.Rows, tables[i])
	}
	st.prefix, st.own, st.saved = c.planCascade(list, tables)
	if err := st.send(list, copies); err != nil {
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

// send copies pages, and uploads the block tables and the lengths of a step.
func (st *Step) send(list []NewRows, copies [][2]int32) error {
	c := st.cache
	numbers := st.all.put(nil, c.cfg.PageSize)
	st.used = len(numbers)
	for _, x := range list {
		numbers = append(numbers, int32(x.Sequence.len))
	}
	if st.saved > 0 {
		numbers = st.own.put(st.prefix.put(numbers, c.cfg.PageSize), c.cfg.PageSize)
	}
	b := make([]byte, 4*len(numbers))
	for i, x := range numbers {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(x))
	}
	if len(numbers) > c.room || c.home.Backend().Shared() != nil { // there calls of the step before may still read theirs
		m, err := c.memory(int64(8 * len(numbers)))
		if err != nil {
			return err
		}
		if c.numbers != nil {
			if err := c.numbers.Close(); err != nil {
				return err
			}
		}
		c.numbers, c.room = m, 2*len(numbers)
	}
	st.numbers = c.numbers
	return backend.Do(c.home, "Begin", func(s backend.Stream) error { return c.copyPages(s, copies, b) })
}

// copyPages copies pages of all layers, and writes the numbers of a step.
func (c *Cache) copyPages(s backend.Stream, copies [][2]int32, numbers []byte) error {
	for _, x := range copies {
		for _, l := range c.layers {
			for _, p := range l.pools {
				if err := p.Copy(s, int64(x[1])*p.page, int64(x[0])*p.page, p.page); err != nil {
					return err
				}
			}
		}
	}
	return c.numbers.Write(s, 0, numbers)
}

// vector returns the numbers of a step from an element on.
func (st *Step) vector(at int) attention.Vector { return vectorOf(st.numbers, at) }

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

// LayerRows are the new rows of a layer, packed: K [1, HeadsKV, Rows, HeadDim] and V, which a cache of KVFP8DSMLA has in K. With a rotary embedding Q
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
		B: len(st.all.lengths), Hkv: c.cfg.HeadsKV, Hq: headsOf(r.Q, r.Heads), K: r.K, V: r.V, CuNew: st.vector(st.all.cuAt), TotalNew: st.rows,
		KCache: l.k, VCache: l.v, Pages: st.pages(&st.all), Used: st.vector(st.used), KScale: l.kScale, VScale: l.vScale,
		Cos: c.cos, Sin: c.sin, Positions: c.positions(), Q: r.Q, QOut: r.QOut,
	})
}

func (c *Cache) positions() int {
	if c.cfg.Rotary.Dim == 0 {
		return 0
	}
	return c.cfg.Positions
}

func (st *Step) pages(p *part) *attention.Pages {
	return &attention.Pages{Table: st.vector(p.tableAt), Stride: p.stride, PageSize: st.cache.cfg.PageSize, Count: st.cache.cfg.Pages}
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
	a := attention.Args{
		Shape: attention.Shape{Hq: headsOf(q, heads), Hkv: c.cfg.HeadsKV},
		Q:     q, K: l.k, V: l.v, O: o, KScale: l.kScale, VScale: l.vScale,
	}
	if c.cfg.KeyType.Latent() {
		a.V = a.K
	}
	st.set(&a, &st.all)
	return a, nil
}

// set makes a the call of a part of the step.
func (st *Step) set(a *attention.Args, p *part) {
	a.B, a.Sq, a.Sk, a.Pages = len(p.lengths), max(1, p.mostRows), p.keys, st.pages(p)
	a.Varlen = &attention.Varlen{CuQ: st.vector(p.cuAt), TotalQ: st.rows, UsedK: st.vector(p.lengthsAt)}
}
