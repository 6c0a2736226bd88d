package kvcache

import (
	"encoding/binary"
	"fmt"
	"math"

	"vkattn/internal/arith"
	"vkattn/internal/backend"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// The tensors of an append.
const (
	appendK = iota
	appendV
	appendQ
	appendUsed
	appendLengths // CuNew or UsedNew
	appendTable
	appendCos
	appendSin
	appendKCache // this tensor and the following ones are outputs
	appendVCache
	appendQOut
	appendKScale
	appendVScale
	appendTensors
)

// appendLayouts are the tensors and sizes of a call. They are an array so that a call
// keeps them on its stack. A tensor that is left out has no field name.
type appendLayouts struct {
	list [appendTensors]tensors.Layout

	sequences   int
	rows        int   // new rows per sequence; of all sequences if packed
	packed      bool  // new rows are packed by CuNew
	counted     bool  // UsedNew gives their number
	limit       int64 // positions from limit on are not written to the cache
	limitQ      int64 // nor from limitQ on to QOut
	rowsQ       int   // as rows, of Q
	ownRowsQ    bool  // UsedNew does not count them
	qAtUsed     bool
	paged       bool
	pageRows    int // keys per page; without pages, keys per sequence
	pages       int
	tableStride int
	readsScales bool  // the scales are given
	scaleStep   int64 // then from a head to the next: 1, or 0
}

// isOutput reports whether a call writes a tensor.
func (l *appendLayouts) isOutput(tensor int) bool {
	return tensor >= appendKCache && !(l.readsScales && tensor >= appendKScale)
}

func (l *appendLayouts) given(tensor int) bool { return l.list[tensor].Field != "" }

// call is the call for a device of another kind.
func (l *appendLayouts) call() backend.AppendCall {
	t := &l.list
	return backend.AppendCall{K: t[appendK], V: t[appendV], Q: t[appendQ], Used: t[appendUsed], Lengths: t[appendLengths], Table: t[appendTable],
		Cos: t[appendCos], Sin: t[appendSin], KCache: t[appendKCache], VCache: t[appendVCache], QOut: t[appendQOut],
		KScale: t[appendKScale], VScale: t[appendVScale], Sequences: l.sequences, Rows: l.rows, Packed: l.packed, Counted: l.counted,
		Limit: l.limit, LimitQ: l.limitQ, OwnRowsQ: l.ownRowsQ, QAtUsed: l.qAtUsed, Paged: l.paged, PageRows: l.pageRows, Pages: l.pages, TableStride: l.tableStride}
}

// check checks a call and fills l with its layouts.
func (p *Append) check(l *appendLayouts, a *AppendArgs) error {
	if err := l.setSizes(a); err != nil {
		return err
	}
	if err := l.setTensors(&p.cfg, a); err != nil {
		return err
	}
	if p.cfg.KeyType.Blocked() {
		if err := checkBlocks("KCache", &a.KCache, p.cfg.KeyType); err != nil {
			return err
		}
		if err := checkBlocks("VCache", &a.VCache, p.cfg.ValueType); err != nil {
			return err
		}
	}
	if err := tensors.CheckMemory(l.list[:], p.on); err != nil {
		return err
	}
	if err := l.checkOverlaps(); err != nil || !p.on.CPU() || a.Shard {
		return err
	}
	return l.checkNumbers()
}

// checkDeviceNumbers is checkNumbers for vectors in device memory, if the Append does that. It waits for what the stream
// has recorded.
func (p *Append) checkDeviceNumbers(s backend.Stream, a *AppendArgs) error {
	if !p.cfg.Check && !p.checks || a.Shard {
		return nil
	}
	var l appendLayouts
	if err := p.check(&l, a); err != nil {
		return err
	}
	for _, i := range []int{appendUsed, appendLengths, appendTable} {
		t := &l.list[i]
		if !l.given(i) {
			continue
		}
		b, err := backend.ReadNumbers(s, problem.Vector{Buffer: t.Tensor.Buffer, Memory: t.Tensor.Memory, Offset: t.Tensor.Offset}, int(t.Dim))
		if err != nil {
			return err
		}
		t.Tensor = problem.Tensor{Host: b}
	}
	return l.checkNumbers()
}

// checkNumbers checks the numbers in the vectors of a call in host memory: that every new row has its
// place in the cache.
func (l *appendLayouts) checkNumbers() error {
	first := 0 // new row of the sequence
	for b := range l.sequences {
		n, used := l.rows, 0
		switch {
		case l.packed:
			if b == 0 {
				first = l.integer(appendLengths, 0)
			}
			if err := tensors.CheckNumber("CuNew", b, first, 0, l.rows); err != nil {
				return err
			}
			next := l.integer(appendLengths, b+1)
			if err := tensors.CheckNumber("CuNew", b+1, next, first, l.rows); err != nil {
				return err
			}
			n, first = next-first, next
		case l.counted:
			n = l.integer(appendLengths, b)
			if err := tensors.CheckNumber("UsedNew", b, n, 0, l.rows); err != nil {
				return err
			}
		}
		if l.given(appendUsed) {
			used = l.integer(appendUsed, b)
		}
		if used < 0 || n > 0 && int64(used)+int64(n) > l.limit {
			return &problem.ShapeError{Field: fmt.Sprintf("Used[%d]", b), Got: used,
				Want: fmt.Sprintf("at least 0, and room for %d new rows in %d positions", n, l.limit)}
		}
		if q := l.positionsQ(n); int64(used)+int64(q) > l.limitQ && l.given(appendQ) {
			return &problem.ShapeError{Field: fmt.Sprintf("Used[%d]", b), Got: used, Want: problem.Phrase(fmt.Sprintf("room for %d rows of ${Q} in %d positions", q, l.limitQ))}
		}
		if !l.paged || n == 0 {
			continue
		}
		for page := used / l.pageRows; page <= (used+n-1)/l.pageRows; page++ {
			at := b*l.tableStride + page
			if err := tensors.CheckNumber("Pages.Table", at, l.integer(appendTable, at), 0, l.pages-1); err != nil {
				return err
			}
		}
	}
	return nil
}

// positionsQ is how many positions rows of Q have in a sequence of n new rows.
func (l *appendLayouts) positionsQ(n int) int {
	if l.ownRowsQ {
		n = l.rowsQ
	}
	if l.qAtUsed {
		n = min(n, 1)
	}
	return n
}

// integer returns an element of an int32 vector in host memory.
func (l *appendLayouts) integer(tensor, i int) int {
	return int(int32(binary.LittleEndian.Uint32(l.list[tensor].Element(int64(i)))))
}

func checkSize(field string, n int) error { return checkRange(field, n, 1) }

func checkRange(field string, n, least int) error {
	if n < least || n > problem.MaxLength {
		return &problem.ShapeError{Field: field, Got: n, Want: fmt.Sprintf("%d to %d", least, problem.MaxLength)}
	}
	return nil
}

// setSizes checks the sizes of the call and computes the sizes of rows and cache.
func (l *appendLayouts) setSizes(a *AppendArgs) error {
	*l = appendLayouts{sequences: a.B, rows: a.New, pageRows: a.Capacity}
	rowsField, leastRows := "New", 1
	if tensors.VectorBegun(&a.CuNew) {
		if tensors.VectorBegun(&a.UsedNew) {
			return &problem.ShapeError{Field: "UsedNew", Got: problem.Phrase("given together with ${CuNew}"), Want: "one of the two"}
		}
		l.packed, l.rows, rowsField, leastRows = true, a.TotalNew, "TotalNew", 0
	}
	l.counted = tensors.VectorBegun(&a.UsedNew)
	l.rowsQ, l.ownRowsQ, l.qAtUsed = l.rows, a.RowsQ != 0, a.QAtUsed
	if l.ownRowsQ {
		l.rowsQ = a.RowsQ
	}
	for _, s := range [3]struct {
		field    string
		n, least int
	}{{"B", a.B, 0}, {"Hkv", a.Hkv, 1}, {rowsField, l.rows, leastRows}} {
		if err := checkRange(s.field, s.n, s.least); err != nil {
			return err
		}
	}
	if tensors.TensorBegun(&a.Q) || tensors.TensorBegun(&a.QOut) {
		if err := checkSize("Hq", a.Hq); err != nil {
			return err
		}
		if a.Hq%a.Hkv != 0 {
			return &problem.ShapeError{Field: "Hkv", Got: a.Hkv, Want: problem.Phrase(fmt.Sprintf("a divisor of ${Hq} (%d)", a.Hq))}
		}
		switch {
		case l.ownRowsQ && l.packed:
			return &problem.ShapeError{Field: "RowsQ", Got: a.RowsQ, Want: problem.Phrase("0 with ${CuNew}, which packs ${Q} too")}
		case l.ownRowsQ:
			if err := checkSize("RowsQ", a.RowsQ); err != nil {
				return err
			}
		}
	} else if l.ownRowsQ || l.qAtUsed {
		return &problem.ShapeError{Field: "Q", Got: "missing", Want: problem.Phrase("${Q} and ${QOut} with ${RowsQ} or ${QAtUsed}")}
	}
	if a.Pages == nil {
		l.limit = int64(a.Capacity)
		return checkSize("Capacity", a.Capacity)
	}
	return l.setPages(a)
}

func (l *appendLayouts) setPages(a *AppendArgs) error {
	g := a.Pages
	l.paged, l.pageRows, l.pages, l.tableStride = true, g.PageSize, g.Count, g.Stride
	if err := checkSize("Pages.PageSize", g.PageSize); err != nil {
		return err
	}
	if err := checkRange("Pages.Count", g.Count, 0); err != nil {
		return err
	}
	if a.Capacity == 0 && g.Stride == 0 {
		return &problem.ShapeError{Field: "Pages.Stride", Got: 0, Want: problem.Phrase("the entries of a row of the block table, or a ${Capacity}")}
	}
	if a.Capacity != 0 {
		if err := checkSize("Capacity", a.Capacity); err != nil {
			return err
		}
		l.limit = int64(a.Capacity)
	}
	if g.Stride == 0 {
		l.tableStride = (a.Capacity-1)/g.PageSize + 1
		return nil
	}
	if err := checkSize("Pages.Stride", g.Stride); err != nil {
		return err
	}
	room := min(int64(g.Stride)*int64(g.PageSize), problem.MaxLength)
	if l.limit == 0 || l.limit > room {
		l.limit = room
	}
	return nil
}

// setTensors lays out the given tensors and refuses missing and unused ones.
func (l *appendLayouts) setTensors(cfg *AppendConfig, a *AppendArgs) error {
	batches, batchesOrPages := a.B, a.B
	if l.packed {
		batches = 1
	}
	if l.paged {
		batchesOrPages = l.pages
	}
	dtype, kv, rotary := cfg.DType, cfg.attention(), cfg.Rotary.Dim > 0
	l.list[appendK].Set("K", &a.K, dtype, batches, a.Hkv, l.rows, cfg.HeadDim)
	l.list[appendKCache].SetKV("KCache", &a.KCache, kv.KeyType, dtype, batchesOrPages, a.Hkv, l.pageRows, cfg.HeadDim)
	hasV := tensors.TensorBegun(&a.V) || tensors.TensorBegun(&a.VCache)
	switch {
	case hasV && kv.KeyType.Latent():
		return &problem.ShapeError{Field: "V", Got: "given", Want: problem.Phrase(fmt.Sprintf("none with %v: it is in ${K}", kv.KeyType))}
	case hasV:
		l.list[appendV].Set("V", &a.V, dtype, batches, a.Hkv, l.rows, kv.ValueDim())
		l.list[appendVCache].SetKV("VCache", &a.VCache, kv.ValueType, dtype, batchesOrPages, a.Hkv, l.pageRows, kv.ValueDim())
	}
	if tensors.TensorBegun(&a.Q) || tensors.TensorBegun(&a.QOut) {
		if !rotary {
			return &problem.ShapeError{Field: "Q", Got: "given", Want: problem.Phrase("none without ${Rotary}: ${Q} is only rotated")}
		}
		l.list[appendQ].Set("Q", &a.Q, dtype, batches, a.Hq, l.rowsQ, cfg.HeadDim)
		l.list[appendQOut].Set("QOut", &a.QOut, dtype, batches, a.Hq, l.rowsQ, cfg.HeadDim)
	}
	scales, ok := arith.Product(batchesOrPages, a.Hkv, l.pageRows)
	switch cfg.KVBlock {
	case problem.KVBlockHead:
		scales, l.scaleStep, l.readsScales = int64(a.Hkv), 1, true
	case problem.KVBlockTensor:
		scales, l.readsScales = 1, true
	}
	if !ok {
		return &problem.ShapeError{Field: "KCache", Got: fmt.Sprintf("%d x %d x %d rows", batchesOrPages, a.Hkv, l.pageRows), Want: "fewer than 2^63"}
	}
	lengths, lengthsField, lengthsCount := a.UsedNew, "UsedNew", a.B
	if l.packed {
		lengths, lengthsField, lengthsCount = a.CuNew, "CuNew", a.B+1
	}
	var table problem.Vector
	if l.paged {
		table = a.Pages.Table
	}
	var angles int64
	if rotary {
		if err := checkSize("Positions", a.Positions); err != nil {
			return err
		}
		l.limit, l.limitQ = min(l.limit, int64(a.Positions)), int64(a.Positions)
		angles = int64(a.Positions) * int64(cfg.Rotary.Dim/2)
	}
	const with, unscaled = problem.Phrase("none without ${Rotary}"), problem.Phrase("none for a cache whose types have no scales")
	for _, v := range [...]struct {
		tensor int
		field  string
		vector problem.Vector // a value: a pointer would escape together with the strings
		count  int64
		needed bool
		barred problem.Phrase // why the vector must not be given; "": it may be
	}{
		{appendUsed, "Used", a.Used, int64(a.B), false, ""},
		{appendLengths, lengthsField, lengths, int64(lengthsCount), false, ""},
		{appendTable, "Pages.Table", table, int64(a.B) * int64(l.tableStride), l.paged, ""},
		{appendCos, "Cos", a.Cos, angles, rotary, unless(rotary, with)},
		{appendSin, "Sin", a.Sin, angles, rotary, unless(rotary, with)},
		{appendKScale, "KScale", a.KScale, scales, cfg.KeyType.Scaled(), unless(cfg.KeyType.Scaled(), unscaled)},
		{appendVScale, "VScale", a.VScale, scales, cfg.KeyType.Scaled() && hasV, unless(cfg.KeyType.Scaled(), unscaled)},
	} {
		switch {
		case !v.needed && !tensors.VectorBegun(&v.vector):
		case v.barred != "":
			return &problem.ShapeError{Field: v.field, Got: "given", Want: v.barred}
		case v.tensor == appendVScale && !hasV:
			return &problem.ShapeError{Field: v.field, Got: "given", Want: problem.Phrase("none without ${V}")}
		default:
			t, of := v.vector.Tensor(), problem.F32
			if cfg.CosSinOfDType && (v.tensor == appendCos || v.tensor == appendSin) {
				of = dtype
			}
			l.list[v.tensor].Set(v.field, &t, of, 1, 1, 1, int(v.count))
		}
	}
	return nil
}

func unless(given bool, reason problem.Phrase) problem.Phrase {
	if given {
		return ""
	}
	return reason
}

// checkBlocks refuses a Blocked cache with rows that do not start at a block.
func checkBlocks(field string, t *problem.Tensor, kv problem.KVType) error {
	for _, x := range [4]struct {
		field    string
		elements int64
	}{{".Offset", t.Offset}, {".Strides.Batch", t.Strides.Batch}, {".Strides.Head", t.Strides.Head}, {".Strides.Seq", t.Strides.Seq}} {
		if unit := int64(kv.Unit()); x.elements%unit != 0 {
			return &problem.ShapeError{Field: field + x.field, Got: x.elements, Want: fmt.Sprintf("a multiple of %d, a whole number of blocks", unit)}
		}
	}
	return nil
}

// checkOverlaps refuses outputs that overlap themselves or another tensor.
func (l *appendLayouts) checkOverlaps() error {
	for i := appendKCache; i < appendTensors; i++ {
		out := &l.list[i]
		if out.Field == "" || !l.isOutput(i) {
			continue
		}
		if !out.RowsDisjoint() {
			return &problem.ShapeError{Field: out.Field + ".Strides", Got: out.Tensor.Strides, Want: "rows that do not overlap"}
		}
		for j := range l.list {
			other := &l.list[j]
			if j >= i && l.isOutput(j) { // checked once
				continue
			}
			if other.Field == "" || !out.Overlaps(other) {
				continue
			}
			if j != appendQ || i != appendQOut {
				return &problem.ShapeError{Field: out.Field, Got: problem.Phrase("overlapping ${" + other.Field + "}"), Want: "memory of its own"}
			}
			if !out.Coincides(other) {
				return &problem.ShapeError{Field: out.Field, Got: problem.Phrase("overlapping ${Q}"), Want: problem.Phrase("memory of its own, or exactly the memory of ${Q}")}
			}
		}
	}
	return nil
}

// fits32 refuses sizes and strides that exceed the kernel's 32 bits.
func (l *appendLayouts) fits32() error {
	for _, i := range [...]int{appendK, appendV, appendQ, appendKCache, appendVCache, appendQOut} {
		t := &l.list[i]
		if t.Steps[1] > math.MaxUint32 || t.Steps[2] > math.MaxUint32 {
			return fmt.Errorf("%w: %s has a head or row stride of 2^32 elements or more", problem.ErrUnsupported, t.Field)
		}
	}
	for _, i := range [2]int{appendK, appendQ} {
		if rows := l.list[i].Counts[1] * l.list[i].Counts[2]; l.given(i) && rows > math.MaxInt32 {
			return fmt.Errorf("%w: %d new rows of %s in a dispatch, at most 2^31 - 1 are possible", problem.ErrUnsupported, rows, l.list[i].Field)
		}
	}
	if c := &l.list[appendKCache]; c.Counts[1]*c.Counts[2] > math.MaxUint32 {
		return fmt.Errorf("%w: %d rows of a page or sequence of KCache, at most 2^32 - 1 are possible", problem.ErrUnsupported, c.Counts[1]*c.Counts[2])
	}
	return nil
}
