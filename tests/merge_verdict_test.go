package tests

import (
	"fmt"
	"math"

	"vkattn/attention"
)

// exact computes the merge of the stored numbers in float64.
func (p *mergeProblem) exact() (o, lse []float64) {
	o, lse = make([]float64, p.rows()*p.dim), make([]float64, p.rows())
	for r := range lse {
		most := math.Inf(-1)
		for n := range p.lse {
			most = max(most, float64(p.lse[n][r]))
		}
		lse[r] = most
		if math.IsInf(most, -1) {
			continue
		}
		var sum float64
		for n := range p.lse {
			sum += math.Exp(float64(p.lse[n][r]) - most)
		}
		lse[r] += math.Log(sum)
		for n := range p.lse {
			weight := math.Exp(float64(p.lse[n][r])-most) / sum
			if float64(p.lse[n][r])-most < -80 {
				continue
			}
			for d := r * p.dim; d < (r+1)*p.dim; d++ {
				o[d] += weight * float64(p.o[n][d])
			}
		}
	}
	return o, lse
}

// trespass reports the first changed byte that does not belong to the result.
func (p *mergeProblem) trespass(after [mergePieces][]byte) error {
	clean := [mergePieces][]byte{}
	for i := range after {
		clean[i] = append([]byte(nil), after[i]...)
	}
	for _, i := range []int{mergeOut, mergeOutLSE} {
		if p.slots[i].count == 0 {
			continue
		}
		var before [][]byte
		p.eachRow(p.image, i, 0, func(row []byte) { before = append(before, row) })
		p.eachRow(clean, i, 0, func(row []byte) {
			copy(row, before[0])
			before = before[1:]
		})
	}
	for i := range clean {
		for j := range clean[i] {
			if clean[i][j] != p.image[i][j] {
				return fmt.Errorf("byte %d of %d of piece %d was overwritten: %#02x became %#02x", j, len(clean[i]), i, p.image[i][j], clean[i][j])
			}
		}
	}
	return nil
}

// judge compares a result with the merge in float64. O may be off by half a unit of its
// storage type and LSE by a unit of float32, plus the error of float32 weights.
func (p *mergeProblem) judge(after [mergePieces][]byte) error {
	o, lse := p.merged(after)
	wantO, wantLSE := p.exact()
	unit := map[attention.DType]float64{attention.F16: 0x1p-11, attention.BF16: 0x1p-8, attention.F32: 0x1p-24}[p.dtype]
	for r := range wantLSE {
		if lse != nil {
			if err := near(float64(lse[r]), wantLSE[r], 2e-7*(1+math.Abs(wantLSE[r]))); err != nil {
				return fmt.Errorf("LSE of row %d: %w", r, err)
			}
		}
		for d := r * p.dim; d < (r+1)*p.dim; d++ {
			var most float64
			for n := range p.o {
				if x := math.Abs(float64(p.o[n][d])); p.lse[n][r] != -inf {
					most = max(most, x)
				}
			}
			if err := near(float64(o[d]), wantO[d], unit*math.Abs(wantO[d])+0x1p-25+1e-6*most); err != nil {
				return fmt.Errorf("O of row %d, column %d: %w", r, d-r*p.dim, err)
			}
		}
	}
	return nil
}

// near accepts x within tolerance of want, and only NaN for NaN.
func near(x, want, tolerance float64) error {
	if math.IsNaN(x) && math.IsNaN(want) || x == want || math.Abs(x-want) <= tolerance {
		return nil
	}
	return fmt.Errorf("%v, want %v within %v", x, want, tolerance)
}
