package tensors

import (
	"fmt"

	"vkattn/internal/arith"
	"vkattn/internal/errs"
	"vkattn/internal/problem"
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
	if k := a.SparseTokens; k != nil {
		if err := checkSparse(k, sparseLists(a)); err != nil {
			return err
		}
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
	if err := checkTables(a, cfg); err != nil {
		return err
	}
	if err := checkKV(a, cfg); err != nil {
		return err
	}
	return checkCombination(a)
}

// checkCombination refuses, by name, the combinations that no tier computes.
func checkCombination(a *problem.Args) error {
	if a.SparseTokens != nil && a.Blocks != nil {
		return errs.Refuse(&problem.ShapeError{Field: "SparseTokens", Got: problem.Phrase("given together with ${Blocks}"), Want: problem.Phrase("one of ${SparseTokens} and ${Blocks}")})
	}
	return nil
}

func checkVarlen(v *problem.Varlen) error {
	if err := checkPacked("Varlen.CuQ", &v.CuQ, "Varlen.TotalQ", v.TotalQ); err != nil {
		return err
	}
	return checkPacked("Varlen.CuK", &v.CuK, "Varlen.TotalK", v.TotalK)
}

// checkSparse checks the sizes of lists of sparse tokens.
func checkSparse(k *problem.SparseTokens, lists int64) error {
	total, ok := arith.Mul(lists, int64(k.TopK))
	switch {
	case k.Total < 0 || k.Total > problem.MaxLength:
		return &problem.ShapeError{Field: "SparseTokens.Total", Got: k.Total, Want: fmt.Sprintf("0 to %d", problem.MaxLength)}
	case k.TopK == 0:
		return nil
	case k.TopK < 0 || !ok || total > problem.MaxLength:
		return &problem.ShapeError{Field: "SparseTokens.TopK", Got: k.TopK, Want: fmt.Sprintf("0 to %d of each of %d lists", problem.MaxLength/max(lists, 1), lists)}
	case VectorBegun(&k.Offsets):
		return &problem.ShapeError{Field: "SparseTokens.Offsets", Got: problem.Phrase("given together with ${SparseTokens.TopK}"), Want: "one of them"}
	case k.Total != 0 && int64(k.Total) != total:
		return &problem.ShapeError{Field: "SparseTokens.Total", Got: k.Total, Want: problem.Phrase(fmt.Sprintf("0, or %d: ${SparseTokens.TopK} %d of each of %d lists", total, k.TopK, lists))}
	}
	return nil
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
	if n, ok := arith.Product(p.Count, p.PageSize); cfg.KeyType.Scaled() && (!ok || n > problem.MaxLength) {
		return &problem.ShapeError{Field: "Pages.Count*PageSize", Got: fmt.Sprintf("%d*%d", p.Count, p.PageSize),
			Want: fmt.Sprintf("at most %d with %v", problem.MaxLength, cfg.KVName())}
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
	if err := checkScale("KScale", &a.KScale, cfg.KeyType); err != nil {
		return err
	}
	if err := checkScale("VScale", &a.VScale, cfg.ValueType); err != nil || !cfg.KeyType.Blocked() {
		return err
	}
	if err := checkBlocked("K", &a.K, cfg.KeyType); err != nil {
		return err
	}
	return checkBlocked("V", &a.V, cfg.ValueType)
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
	unit := int64(kv.Unit())
	want := func() string { return fmt.Sprintf("a multiple of %d with %v, at least 0", unit, kv) }
	if t.Offset < 0 || t.Offset%unit != 0 {
		return &problem.ShapeError{Field: field + ".Offset", Got: t.Offset, Want: want()}
	}
	for i, n := range [3]int64{t.Strides.Batch, t.Strides.Head, t.Strides.Seq} {
		if n < 0 || n%unit != 0 {
			return &problem.ShapeError{Field: field + ".Strides." + StrideNames[i], Got: n, Want: want()}
		}
	}
	return nil
}
