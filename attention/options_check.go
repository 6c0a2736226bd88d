package attention

import (
	"fmt"
	"math"

	"vkattn/attention/quant"
	"vkattn/vk"
)

// checkOptions checks the numbers and the combination of a call's options. If it returns
// nil, the sizes of Q, K, V, O and LSE can be computed. checkOptionTensors checks memory.
func checkOptions(a *Args, cfg *Config) error {
	if v := a.Varlen; v != nil {
		if err := checkVarlen(v); err != nil {
			return err
		}
	}
	if p := a.Pages; p != nil {
		if a.Varlen != nil && a.Varlen.CuK.Given() {
			return &ShapeError{"Varlen.CuK", "given together with Pages", "UsedK: a paged KV cache is not packed"}
		}
		if err := checkPages(p, cfg, &a.Shape); err != nil {
			return err
		}
	}
	if k := a.SparseTokens; k != nil && (k.Total < 1 || k.Total > MaxLength) {
		return &ShapeError{"SparseTokens.Total", k.Total, fmt.Sprintf("1 to %d", MaxLength)}
	}
	if b := a.Blocks; b != nil {
		if err := checkBlockMap(b, &a.Shape); err != nil {
			return err
		}
	}
	if b := a.Bias; b != nil {
		if !b.DType.Valid() {
			return &ShapeError{"Bias.DType", b.DType, "f16, bf16 or f32"}
		}
		if err := checkBroadcast("Bias", b.Batches, b.Heads, b.Rows, &a.Shape); err != nil {
			return err
		}
	}
	if m := a.Mask; m != nil {
		if err := checkBroadcast("Mask", m.Batches, m.Heads, m.Rows, &a.Shape); err != nil {
			return err
		}
	}
	if vectorBegun(&a.ALiBi) && cfg.Causal == CausalNone && cfg.Align == CausalNone {
		return &ShapeError{"Align", cfg.Align, "top-left or bottom-right for ALiBi without a causal mask"}
	}
	if err := checkKV(a, cfg); err != nil {
		return err
	}
	return checkCombination(a)
}

// checkCombination refuses, by name, the combinations that no tier computes.
func checkCombination(a *Args) error {
	both := func(field, other string) error {
		return fmt.Errorf("%w: %w", ErrUnsupported, &ShapeError{field, "given together with " + other, "one of SparseTokens, Blocks and Mask"})
	}
	switch {
	case a.SparseTokens != nil && a.Blocks != nil:
		return both("SparseTokens", "Blocks")
	case a.SparseTokens != nil && a.Mask != nil:
		return both("SparseTokens", "Mask")
	case a.Mask != nil && a.Blocks != nil:
		return both("Mask", "Blocks")
	}
	return nil
}

func checkVarlen(v *Varlen) error {
	if err := checkPacked("Varlen.CuQ", &v.CuQ, "Varlen.TotalQ", v.TotalQ); err != nil {
		return err
	}
	return checkPacked("Varlen.CuK", &v.CuK, "Varlen.TotalK", v.TotalK)
}

func checkPacked(field string, cu *Vector, totalField string, total int) error {
	switch {
	case !cu.Given() && cu.Offset != 0:
		return &ShapeError{field, "missing", "a Buffer or Host memory"}
	case cu.Given() && (total < 1 || total > MaxLength):
		return &ShapeError{totalField, total, fmt.Sprintf("1 to %d", MaxLength)}
	case !cu.Given() && total != 0:
		return &ShapeError{totalField, total, "0 without " + field}
	}
	return nil
}

func checkPages(p *Pages, cfg *Config, s *Shape) error {
	switch {
	case p.PageSize < 1 || p.PageSize > MaxLength:
		return &ShapeError{"Pages.PageSize", p.PageSize, fmt.Sprintf("1 to %d", MaxLength)}
	case p.Count < 1 || p.Count > MaxLength:
		return &ShapeError{"Pages.Count", p.Count, fmt.Sprintf("1 to %d", MaxLength)}
	}
	need := ceilDivInt(s.Sk, p.PageSize)
	if p.Stride != 0 && p.Stride < need {
		return &ShapeError{"Pages.Stride", p.Stride, fmt.Sprintf("at least %d (pages of %d keys for %d keys), or 0 for that", need, p.PageSize, s.Sk)}
	}
	if n, ok := product(s.B, tableStride(p, s)); !ok || n > MaxLength {
		return &ShapeError{"B*Pages.Stride", fmt.Sprintf("%d*%d", s.B, tableStride(p, s)), fmt.Sprintf("at most %d", MaxLength)}
	}
	if n, ok := product(p.Count, p.PageSize); cfg.KV.Scaled() && (!ok || n > MaxLength) {
		return &ShapeError{"Pages.Count*PageSize", fmt.Sprintf("%d*%d", p.Count, p.PageSize),
			fmt.Sprintf("at most %d with %v", MaxLength, cfg.KV)}
	}
	return nil
}

func checkBlockMap(b *Blocks, s *Shape) error {
	for _, f := range [2]struct {
		name string
		n    int
	}{{"Blocks.BlockQ", b.BlockQ}, {"Blocks.BlockK", b.BlockK}} {
		if f.n < 16 || f.n > MaxLength || f.n&(f.n-1) != 0 {
			return &ShapeError{f.name, f.n, "a power of two, at least 16"}
		}
	}
	return checkBroadcast("Blocks", b.Batches, b.Heads, 0, s)
}

// checkBroadcast checks sizes that must be 0, 1 or those of the problem.
func checkBroadcast(field string, batches, heads, rows int, s *Shape) error {
	for _, f := range [3]struct {
		name, full string
		n, want    int
	}{{"Batches", "B", batches, s.B}, {"Heads", "Hq", heads, s.Hq}, {"Rows", "Sq", rows, s.Sq}} {
		if f.n != 0 && f.n != 1 && f.n != f.want {
			return &ShapeError{field + "." + f.name, f.n, fmt.Sprintf("1, or %s (%d), or 0 for %s", f.full, f.want, f.full)}
		}
	}
	return nil
}

// checkKV checks the scales against the type of K and V, and that rows of a Blocked type
// start at a block.
func checkKV(a *Args, cfg *Config) error {
	if err := checkScale("KScale", &a.KScale, cfg.KV); err != nil {
		return err
	}
	if err := checkScale("VScale", &a.VScale, cfg.KV); err != nil || !cfg.KV.Blocked() {
		return err
	}
	if err := checkBlocked("K", &a.K, cfg.KV); err != nil {
		return err
	}
	return checkBlocked("V", &a.V, cfg.KV)
}

func checkScale(field string, v *Vector, kv KVType) error {
	switch {
	case kv.Scaled() && !vectorBegun(v):
		return &ShapeError{field, "missing", fmt.Sprintf("the scales of %v", kv)}
	case !kv.Scaled() && vectorBegun(v):
		return &ShapeError{field, "given", fmt.Sprintf("none where K and V are %v", kv)}
	}
	return nil
}

func checkBlocked(field string, t *Tensor, kv KVType) error {
	want := func() string { return fmt.Sprintf("a multiple of 32 with %v, at least 0", kv) }
	if t.Offset < 0 || t.Offset%quant.BlockElements != 0 {
		return &ShapeError{field + ".Offset", t.Offset, want()}
	}
	for i, n := range [3]int64{t.Strides.Batch, t.Strides.Head, t.Strides.Seq} {
		if n < 0 || n%quant.BlockElements != 0 {
			return &ShapeError{field + ".Strides." + strideNames[i], n, want()}
		}
	}
	return nil
}

// checkOptionTensors checks that the memory of every option is given, lies on the side
// of the tensors, is large enough, and does not overlap O or LSE.
func checkOptionTensors(a *Args, cfg *Config, tensors []layout) error {
	var e optionTensors
	e.set(cfg, a)
	first := tensors[0].tensor.Buffer != nil
	for i := range e.all() {
		l := &e.list[i]
		if err := l.checkGiven(); err != nil {
			return err
		}
		if onDevice := l.tensor.Buffer != nil; onDevice != first {
			return &ShapeError{l.field, side(onDevice), side(first) + ", where " + tensors[0].field + " is"}
		}
		if err := l.checkBounds(); err != nil {
			return err
		}
		for d, step := range l.steps {
			if l.counts[d] > 1 && step > math.MaxUint32 {
				return &ShapeError{l.field + ".Strides." + strideNames[d], step, "below 2^32"}
			}
		}
		for j := firstOutput; j < len(tensors); j++ {
			if out := &tensors[j]; out.overlaps(l) {
				return &ShapeError{out.field, "overlapping " + l.field, "memory of its own"}
			}
		}
	}
	return nil
}

// checkOptionsDevice refuses buffers of another device.
func checkOptionsDevice(a *Args, cfg *Config, dev *vk.Device) error {
	var e optionTensors
	e.set(cfg, a)
	return checkDevice(e.all(), dev)
}

// optionTensors are the layouts of the memory of a call's options. A vector is a layout
// of one row.
type optionTensors struct {
	list [14]layout
	n    int
}

func (e *optionTensors) all() []layout { return e.list[:e.n] }

// set fills in the layouts of a call that checkOptions has accepted.
func (e *optionTensors) set(cfg *Config, a *Args) {
	s := &a.Shape
	if a.Varlen != nil {
		e.setVarlen(a.Varlen, s.B)
	}
	if p := a.Pages; p != nil {
		e.vector("Pages.Table", &p.Table, 0, s.B, tableStride(p, s))
	}
	if k := a.SparseTokens; k != nil {
		e.vector("SparseTokens.Offsets", &k.Offsets, 1, s.B, s.KVHeads())
		e.vector("SparseTokens.Tokens", &k.Tokens, 0, k.Total)
	}
	if b := a.Blocks; b != nil {
		rows, words := blocksGrid(b, s)
		e.set4("Blocks.Map", Tensor{Buffer: b.Map.Buffer, Host: b.Map.Host, Offset: b.Map.Offset}, 4,
			[3]int{orFull(b.Batches, s.B), orFull(b.Heads, s.Hq), rows}, words)
	}
	if b := a.Bias; b != nil {
		e.set4("Bias", b.Tensor, b.DType.Size(), biasSizes(b, s), s.Sk)
	}
	if m := a.Mask; m != nil {
		e.set4("Mask", m.Tensor, 1, maskSizes(m, s), s.Sk)
	}
	e.optional("ALiBi", &a.ALiBi, 0, s.Hq)
	e.optional("Sinks", &a.Sinks, 0, s.Hq)
	batches, keys := kvExtent(a)
	groups := scaleGroups(cfg, keys)
	e.optional("KScale", &a.KScale, 0, batches, s.KVHeads(), groups)
	e.optional("VScale", &a.VScale, 0, batches, s.KVHeads(), groups)
}

func (e *optionTensors) setVarlen(v *Varlen, sequences int) {
	e.optional("Varlen.CuQ", &v.CuQ, 1, sequences)
	e.optional("Varlen.CuK", &v.CuK, 1, sequences)
	e.optional("Varlen.UsedQ", &v.UsedQ, 0, sequences)
	e.optional("Varlen.UsedK", &v.UsedK, 0, sequences)
}

func (e *optionTensors) optional(field string, v *Vector, more int64, sizes ...int) {
	if vectorBegun(v) {
		e.vector(field, v, more, sizes...)
	}
}

// vector adds a vector whose length is the product of sizes plus more. A length that
// overflows becomes MaxInt64, which checkBounds refuses.
func (e *optionTensors) vector(field string, v *Vector, more int64, sizes ...int) {
	n, ok := product(sizes...)
	if ok {
		n, ok = add(n, more)
	}
	if !ok {
		n = math.MaxInt64
	}
	e.list[e.n] = layout{
		field: field, tensor: Tensor{Buffer: v.Buffer, Host: v.Host, Offset: v.Offset},
		size: 4, dim: n, counts: [3]int64{1, 1, 1},
	}
	e.n++
}

// set4 adds a tensor of four dimensions.
func (e *optionTensors) set4(field string, t Tensor, size int, sizes [3]int, dim int) {
	e.list[e.n] = layout{
		field: field, tensor: t, size: int64(size), dim: int64(dim),
		counts: [3]int64{int64(sizes[0]), int64(sizes[1]), int64(sizes[2])},
		steps:  broadcast(t.Strides, sizes, dim),
	}
	e.n++
}
