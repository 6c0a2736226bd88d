package tensors

import (
	"fmt"
	"math"

	"vkattn/internal/arith"
	"vkattn/internal/errs"
	"vkattn/internal/problem"
	"vkattn/internal/quant"
	"vkattn/vk"
)

// checkOptions checks the numbers and the combination of a call's options. If it returns
// nil, the sizes of Q, K, V, O and LSE can be computed. checkOptionTensors checks memory.
func checkOptions(a *problem.Args, cfg *problem.Config) error {
	if v := a.Varlen; v != nil {
		if err := checkVarlen(v); err != nil {
			return err
		}
	}
	if p := a.Pages; p != nil {
		if a.Varlen != nil && a.Varlen.CuK.Given() {
			return &problem.ShapeError{Field: "Varlen.CuK", Got: problem.Phrase("given together with ${Pages}"), Want: problem.Phrase("${UsedK}: a paged KV cache is not packed")}
		}
		if err := checkPages(p, cfg, &a.Shape); err != nil {
			return err
		}
	}
	if k := a.SparseTokens; k != nil && (k.Total < 0 || k.Total > problem.MaxLength) {
		return &problem.ShapeError{Field: "SparseTokens.Total", Got: k.Total, Want: fmt.Sprintf("0 to %d", problem.MaxLength)}
	}
	if b := a.Blocks; b != nil {
		if err := checkBlockMap(b, &a.Shape); err != nil {
			return err
		}
	}
	if b := a.Bias; b != nil {
		if !b.DType.Valid() {
			return &problem.ShapeError{Field: "Bias.DType", Got: b.DType, Want: "f16, bf16 or f32"}
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
	if VectorBegun(&a.ALiBi) && cfg.Causal == problem.CausalNone && cfg.Align == problem.CausalNone {
		return &problem.ShapeError{Field: "Align", Got: cfg.Align, Want: problem.Phrase("top-left or bottom-right for ${ALiBi} without a causal mask")}
	}
	if err := checkKV(a, cfg); err != nil {
		return err
	}
	return checkCombination(a)
}

// checkCombination refuses, by name, the combinations that no tier computes.
func checkCombination(a *problem.Args) error {
	both := func(field, other string) error {
		return errs.Refuse(&problem.ShapeError{Field: field, Got: problem.Phrase("given together with ${" + other + "}"), Want: problem.Phrase("one of ${SparseTokens}, ${Blocks} and ${Mask}")})
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

func checkVarlen(v *problem.Varlen) error {
	if err := checkPacked("Varlen.CuQ", &v.CuQ, "Varlen.TotalQ", v.TotalQ); err != nil {
		return err
	}
	return checkPacked("Varlen.CuK", &v.CuK, "Varlen.TotalK", v.TotalK)
}

func checkPacked(field string, cu *problem.Vector, totalField string, total int) error {
	switch {
	case !cu.Given() && cu.Offset != 0:
		return &problem.ShapeError{Field: field, Got: "missing", Want: problem.Phrase("a ${Buffer} or ${Host} memory")}
	case cu.Given() && (total < 0 || total > problem.MaxLength):
		return &problem.ShapeError{Field: totalField, Got: total, Want: fmt.Sprintf("0 to %d", problem.MaxLength)}
	case !cu.Given() && total != 0:
		return &problem.ShapeError{Field: totalField, Got: total, Want: problem.Phrase("0 without ${" + field + "}")}
	}
	return nil
}

func checkPages(p *problem.Pages, cfg *problem.Config, s *problem.Shape) error {
	switch {
	case p.PageSize < 1 || p.PageSize > problem.MaxLength:
		return &problem.ShapeError{Field: "Pages.PageSize", Got: p.PageSize, Want: fmt.Sprintf("1 to %d", problem.MaxLength)}
	case p.Count < 0 || p.Count > problem.MaxLength:
		return &problem.ShapeError{Field: "Pages.Count", Got: p.Count, Want: fmt.Sprintf("0 to %d", problem.MaxLength)}
	}
	need := arith.CeilDiv(s.Sk, p.PageSize)
	if p.Stride != 0 && p.Stride < need {
		return &problem.ShapeError{Field: "Pages.Stride", Got: p.Stride, Want: fmt.Sprintf("at least %d (pages of %d keys for %d keys), or 0 for that", need, p.PageSize, s.Sk)}
	}
	if n, ok := arith.Product(s.B, TableStride(p, s)); !ok || n > problem.MaxLength {
		return &problem.ShapeError{Field: "B*Pages.Stride", Got: fmt.Sprintf("%d*%d", s.B, TableStride(p, s)), Want: fmt.Sprintf("at most %d", problem.MaxLength)}
	}
	if n, ok := arith.Product(p.Count, p.PageSize); cfg.KV.Scaled() && (!ok || n > problem.MaxLength) {
		return &problem.ShapeError{Field: "Pages.Count*PageSize", Got: fmt.Sprintf("%d*%d", p.Count, p.PageSize),
			Want: fmt.Sprintf("at most %d with %v", problem.MaxLength, cfg.KV)}
	}
	return nil
}

func checkBlockMap(b *problem.Blocks, s *problem.Shape) error {
	for _, f := range [2]struct {
		name string
		n    int
	}{{"Blocks.BlockQ", b.BlockQ}, {"Blocks.BlockK", b.BlockK}} {
		if f.n < 16 || f.n > problem.MaxLength || f.n&(f.n-1) != 0 {
			return &problem.ShapeError{Field: f.name, Got: f.n, Want: "a power of two, at least 16"}
		}
	}
	return checkBroadcast("Blocks", b.Batches, b.Heads, 0, s)
}

// checkBroadcast checks sizes that must be 0, 1 or the sizes of the problem.
func checkBroadcast(field string, batches, heads, rows int, s *problem.Shape) error {
	for _, f := range [3]struct {
		name, full string
		n, want    int
	}{{"Batches", "B", batches, s.B}, {"Heads", "Hq", heads, s.Hq}, {"Rows", "Sq", rows, s.Sq}} {
		if f.n != 0 && f.n != 1 && f.n != f.want {
			return &problem.ShapeError{Field: field + "." + f.name, Got: f.n, Want: problem.Phrase(fmt.Sprintf("1, or ${%s} (%d), or 0 for ${%s}", f.full, f.want, f.full))}
		}
	}
	return nil
}

// checkKV checks the scales against the type of K and V, and that rows of a Blocked type
// start at a block.
func checkKV(a *problem.Args, cfg *problem.Config) error {
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

func checkScale(field string, v *problem.Vector, kv problem.KVType) error {
	switch {
	case kv.Scaled() && !VectorBegun(v):
		return &problem.ShapeError{Field: field, Got: "missing", Want: fmt.Sprintf("the scales of %v", kv)}
	case !kv.Scaled() && VectorBegun(v):
		return &problem.ShapeError{Field: field, Got: "given", Want: fmt.Sprintf("none where K and V are %v", kv)}
	}
	return nil
}

func checkBlocked(field string, t *problem.Tensor, kv problem.KVType) error {
	want := func() string { return fmt.Sprintf("a multiple of 32 with %v, at least 0", kv) }
	if t.Offset < 0 || t.Offset%quant.BlockElements != 0 {
		return &problem.ShapeError{Field: field + ".Offset", Got: t.Offset, Want: want()}
	}
	for i, n := range [3]int64{t.Strides.Batch, t.Strides.Head, t.Strides.Seq} {
		if n < 0 || n%quant.BlockElements != 0 {
			return &problem.ShapeError{Field: field + ".Strides." + StrideNames[i], Got: n, Want: want()}
		}
	}
	return nil
}

// checkOptionTensors checks that the memory of every option is given, lies on the side
// of the tensors, is large enough, and does not overlap O or LSE.
func checkOptionTensors(a *problem.Args, cfg *problem.Config, tensors []Layout) error {
	var e optionTensors
	e.set(cfg, a)
	first := tensors[0].Tensor.Buffer != nil
	for i := range e.all() {
		l := &e.list[i]
		if err := l.CheckGiven(); err != nil {
			return err
		}
		if onDevice := l.Tensor.Buffer != nil; onDevice != first {
			return &problem.ShapeError{Field: l.Field, Got: side(onDevice), Want: side(first) + ", where " + tensors[0].Field + " is"}
		}
		if err := l.CheckBounds(); err != nil {
			return err
		}
		for d, step := range l.Steps {
			if l.Counts[d] > 1 && step > math.MaxUint32 {
				return &problem.ShapeError{Field: l.Field + ".Strides." + StrideNames[d], Got: step, Want: "below 2^32"}
			}
		}
		for j := FirstOutput; j < len(tensors); j++ {
			if out := &tensors[j]; out.Overlaps(l) {
				return &problem.ShapeError{Field: out.Field, Got: problem.Phrase("overlapping ${" + l.Field + "}"), Want: "memory of its own"}
			}
		}
	}
	if first {
		return nil
	}
	return CheckNumbers(a)
}

// CheckOptionsDevice refuses buffers of another device.
func CheckOptionsDevice(a *problem.Args, cfg *problem.Config, dev *vk.Device) error {
	var e optionTensors
	e.set(cfg, a)
	return CheckDevice(e.all(), dev)
}

// optionTensors are the layouts of the memory of a call's options. A vector is a layout
// of one row.
type optionTensors struct {
	list [14]Layout
	n    int
}

func (e *optionTensors) all() []Layout { return e.list[:e.n] }

// set fills in the layouts of a call that checkOptions has accepted.
func (e *optionTensors) set(cfg *problem.Config, a *problem.Args) {
	s := &a.Shape
	if a.Varlen != nil {
		e.setVarlen(a.Varlen, s.B)
	}
	if p := a.Pages; p != nil {
		e.vector("Pages.Table", &p.Table, 0, s.B, TableStride(p, s))
	}
	if k := a.SparseTokens; k != nil {
		e.vector("SparseTokens.Offsets", &k.Offsets, 1, s.B, s.KVHeads())
		e.vector("SparseTokens.Tokens", &k.Tokens, 0, k.Total)
	}
	if b := a.Blocks; b != nil {
		rows, words := BlocksGrid(b, s)
		e.set4("Blocks.Map", problem.Tensor{Buffer: b.Map.Buffer, Host: b.Map.Host, Offset: b.Map.Offset}, 4,
			[3]int{OrFull(b.Batches, s.B), OrFull(b.Heads, s.Hq), rows}, words)
	}
	if b := a.Bias; b != nil {
		e.set4("Bias", b.Tensor, b.DType.Size(), BiasSizes(b, s), s.Sk)
	}
	if m := a.Mask; m != nil {
		e.set4("Mask", m.Tensor, 1, maskSizes(m, s), s.Sk)
	}
	e.optional("ALiBi", &a.ALiBi, 0, s.Hq)
	e.optional("Sinks", &a.Sinks, 0, s.Hq)
	batches, keys := KVExtent(a)
	groups := ScaleGroups(cfg, keys)
	e.optional("KScale", &a.KScale, 0, batches, s.KVHeads(), groups)
	e.optional("VScale", &a.VScale, 0, batches, s.KVHeads(), groups)
}

func (e *optionTensors) setVarlen(v *problem.Varlen, sequences int) {
	e.optional("Varlen.CuQ", &v.CuQ, 1, sequences)
	e.optional("Varlen.CuK", &v.CuK, 1, sequences)
	e.optional("Varlen.UsedQ", &v.UsedQ, 0, sequences)
	e.optional("Varlen.UsedK", &v.UsedK, 0, sequences)
}

func (e *optionTensors) optional(field string, v *problem.Vector, more int64, sizes ...int) {
	if VectorBegun(v) {
		e.vector(field, v, more, sizes...)
	}
}

// vector adds a vector whose length is the product of sizes plus more. A length that
// overflows becomes MaxInt64, which CheckBounds refuses.
func (e *optionTensors) vector(field string, v *problem.Vector, more int64, sizes ...int) {
	n, ok := arith.Product(sizes...)
	if ok {
		n, ok = arith.Add(n, more)
	}
	if !ok {
		n = math.MaxInt64
	}
	e.list[e.n] = Layout{
		Field: field, Tensor: problem.Tensor{Buffer: v.Buffer, Host: v.Host, Offset: v.Offset},
		Size: 4, Dim: n, Counts: [3]int64{1, 1, 1},
	}
	e.n++
}

// set4 adds a tensor of four dimensions.
func (e *optionTensors) set4(field string, t problem.Tensor, size int, sizes [3]int, dim int) {
	e.list[e.n] = Layout{
		Field: field, Tensor: t, Size: int64(size), Dim: int64(dim),
		Counts: [3]int64{int64(sizes[0]), int64(sizes[1]), int64(sizes[2])},
		Steps:  Broadcast(t.Strides, sizes, dim),
	}
	e.n++
}
