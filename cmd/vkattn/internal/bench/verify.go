package bench

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// truth is what sampled rows of a problem, of every (sequence, query head) that has rows, are judged by.
type truth struct {
	accuracy.Expected
	problem Problem
}

// newTruth computes the truth of a problem. All its rows share it.
func newTruth(d *data, seed uint64) (*truth, error) {
	t := &truth{problem: d.problem}
	t.Sample = d.sample(verifyBudget, rand.New(rand.NewPCG(seed, 1)))
	return t, t.Expect(problem.Config(d.problem.Config), d.args)
}

// judge compares O, in the storage type and layout of d, with the truth, and LSE unless it
// is nil. The error says which limits they exceed.
func (t *truth) judge(d *data, o, lse []byte) (Checked, error) {
	c := t.problem.Config
	gotO, err := t.read(d, d.args.O, o, c.DType, c.ValueDim())
	var gotLSE []float32
	if err == nil && lse != nil {
		gotLSE, err = t.read(d, d.args.LSE, lse, attention.F32, 1)
	}
	if err != nil {
		return Checked{}, err
	}
	v := t.Judge(gotO, gotLSE)
	w := &v.Tensors[0].Whole
	checked := Checked{Rows: v.Rows, Of: t.problem.rows(), MaxError: Number(w.Max), NMSE: Number(w.NMSE)}
	if lse != nil {
		checked.LSEError = Number(v.Tensors[1].Whole.Max)
	}
	if v.Pass() {
		return checked, nil
	}
	return checked, errors.New(strings.ReplaceAll(strings.TrimPrefix(v.String(), "FAIL: "), "\n", "; "))
}

// read reads the sampled rows of a tensor of d, whose rows have a width.
func (t *truth) read(d *data, place attention.Tensor, host []byte, dtype attention.DType, width int) ([]float32, error) {
	place.Host = host
	_, rows := d.queryExtent()
	view, err := attention.ViewHost(place, dtype, t.problem.Shape.Hq, rows, width)
	if err != nil {
		return nil, err
	}
	got := make([]float32, tensors.CountRows(t.Sample)*width)
	at := got
	for _, rows := range t.Sample {
		for _, row := range rows.Rows {
			batch, r := d.queryRow(rows.B, row)
			view.ReadRow(at[:width], batch, rows.H, r)
			at = at[width:]
		}
	}
	return got, nil
}

// verifyBudget bounds the multiply-adds of one verification, for the reference and for
// low-precision attention each: about a second on two cores, several seconds with options.
const verifyBudget = 1 << 30

// edge divides every tile size: a tile ends at a multiple of it.
const edge = 16

// rowsPerHead is the number of rows of each (batch, query head) that fit the budget, at
// least 1.
func rowsPerHead(p Problem, budget uint64) int {
	s, c := p.Shape, p.Config
	n := budget / hostmem.Product(s.Sk, c.HeadDim+c.ValueDim(), s.B, s.Hq)
	return int(min(max(n, 1), uint64(s.Sq)))
}

// sampleRows picks at most n of sq rows for one head, ascending: all if n is sq, else the
// first and the last row, the rows on both sides of an edge, and random rows. turn is the
// number of the head: if n is too small for the special rows, the next head takes others.
func sampleRows(sq, n, turn int, r *rand.Rand) []int {
	if n >= sq {
		all := make([]int, sq)
		for i := range all {
			all[i] = i
		}
		return all
	}
	special := []int{0, sq - 1, r.IntN(sq)}
	if at := edge * (1 + r.IntN(max(sq/edge, 1))); at < sq {
		special = append(special, at-1, at)
	}
	var rows []int
	for i := range special {
		rows = append(rows, special[(turn+i)%len(special)])
	}
	rows = rows[:min(n, len(rows))]
	for len(rows) < n {
		rows = append(rows, r.IntN(sq))
	}
	slices.Sort(rows)
	return slices.Compact(rows)
}

// sample picks rows of every head of every sequence. If the budget does not hold a row of
// each head, it picks a row of one random head of every sequence, and then rows of other
// random heads while the budget lasts.
func (d *data) sample(budget uint64, r *rand.Rand) (list []attention.Rows) {
	p := d.problem
	each := rowsPerHead(p, budget)
	add := func(b, h int) {
		list = append(list, attention.Rows{B: b, H: h, Rows: sampleRows(d.rows[b], min(each, d.rows[b]), b*p.Shape.Hq+h, r)})
	}
	cost := func(b int) uint64 { return uint64(d.keys[b]) * uint64(p.Config.HeadDim+p.Config.ValueDim()) }
	var total uint64
	for b, n := range d.rows {
		if n > 0 {
			total = hostmem.Sum(total, hostmem.Product(cost(b), uint64(p.Shape.Hq)))
		}
	}
	if total <= budget {
		for b, n := range d.rows {
			for h := range p.Shape.Hq {
				if n > 0 {
					add(b, h)
				}
			}
		}
		return list
	}
	var spent uint64
	var others [][2]int
	for b, n := range d.rows {
		if n == 0 {
			continue
		}
		first := r.IntN(p.Shape.Hq)
		add(b, first)
		spent += cost(b)
		for h := range p.Shape.Hq {
			if h != first {
				others = append(others, [2]int{b, h})
			}
		}
	}
	r.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	for _, o := range others {
		if spent += cost(o[0]); spent > budget {
			break
		}
		add(o[0], o[1])
	}
	slices.SortFunc(list, func(a, b attention.Rows) int { return cmp.Or(cmp.Compare(a.B, b.B), cmp.Compare(a.H, b.H)) })
	return list
}
