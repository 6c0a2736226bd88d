package tensors

import (
	"fmt"

	"vkattn/internal/problem"
)

// CheckNumber refuses element i of a vector that is out of its range.
func CheckNumber(field string, i, got, least, most int) error {
	if got < least || got > most {
		return &problem.ShapeError{Field: fmt.Sprintf("%s[%d]", field, i), Got: got, Want: fmt.Sprintf("%d to %d", least, most)}
	}
	return nil
}

// CheckNumbers checks the numbers in the int32 vectors of a call in host memory. Kernels, which find
// them in device memory, take others in their place. A token that is no key of its sequence has weight
// 0 everywhere.
func CheckNumbers(a *problem.Args) error {
	// ascending checks n cumulative lengths, each at most a number, and visits them.
	ascending := func(field string, v problem.Vector, n, total, most int, visit func(i, length int) error) error {
		from := 0
		for i := range n + 1 {
			to, end := IntAt(&v, i), total
			if i > 0 {
				end = min(end, from+most)
			}
			if err := CheckNumber(field, i, to, from, end); err != nil {
				return err
			}
			if i > 0 && visit != nil {
				if err := visit(i-1, to-from); err != nil {
					return err
				}
			}
			from = to
		}
		return nil
	}
	if v := a.Varlen; v != nil {
		for _, x := range []struct {
			cuField, usedField string
			cu, used           problem.Vector
			total, most        int
		}{{"CuQ", "UsedQ", v.CuQ, v.UsedQ, v.TotalQ, a.Sq}, {"CuK", "UsedK", v.CuK, v.UsedK, v.TotalK, a.Sk}} {
			used := func(b, length int) error {
				return CheckNumber(x.usedField, b, IntAt(&x.used, b), 0, min(length, x.most))
			}
			longest := x.total // a range may be longer than the bound of lengths in use
			if !x.used.Given() {
				used, longest = nil, x.most
			}
			if x.cu.Given() {
				if err := ascending(x.cuField, x.cu, a.B, x.total, longest, used); err != nil {
					return err
				}
				continue
			}
			for b := 0; b < a.B && used != nil; b++ {
				if err := used(b, x.most); err != nil {
					return err
				}
			}
		}
	}
	if p := a.Pages; p != nil {
		stride := TableStride(p, &a.Shape)
		for b := 0; b < a.B && p.Count > 0; b++ {
			keys := a.Sk
			if v := a.Varlen; v != nil {
				_, keys = sequenceRange(v.CuK, v.UsedK, v.TotalK, a.Sk, b)
			}
			for i := range (keys + p.PageSize - 1) / p.PageSize {
				at := b*stride + i
				if err := CheckNumber("Pages.Table", at, IntAt(&p.Table, at), 0, p.Count-1); err != nil {
					return err
				}
			}
		}
	}
	if k := a.SparseTokens; k != nil && k.TopK == 0 {
		return ascending("SparseTokens.Offsets", k.Offsets, int(sparseLists(a)), k.Total, k.Total, nil)
	}
	return nil
}

// CheckDeviceNumbers is CheckNumbers for vectors in device memory, of which read returns the first n elements as bytes.
func CheckDeviceNumbers(a problem.Args, read func(v problem.Vector, n int) ([]byte, error)) error {
	var err error
	host := func(v problem.Vector, n int) problem.Vector {
		if !v.Given() || err != nil {
			return v
		}
		var b []byte
		b, err = read(v, n)
		return problem.Vector{Host: b}
	}
	if v := a.Varlen; v != nil {
		a.Varlen = &problem.Varlen{TotalQ: v.TotalQ, TotalK: v.TotalK, CuQ: host(v.CuQ, a.B+1), CuK: host(v.CuK, a.B+1),
			UsedQ: host(v.UsedQ, a.B), UsedK: host(v.UsedK, a.B)}
	}
	if p := a.Pages; p != nil {
		pages := *p
		pages.Table = host(p.Table, a.B*TableStride(p, &a.Shape))
		a.Pages = &pages
	}
	if k := a.SparseTokens; k != nil {
		tokens := *k
		tokens.Offsets = host(k.Offsets, int(sparseLists(&a))+1)
		a.SparseTokens = &tokens
	}
	if err != nil {
		return err
	}
	return CheckNumbers(&a)
}
