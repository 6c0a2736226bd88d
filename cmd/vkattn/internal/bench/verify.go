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
	"vkattn/internal/oracle"
)

// truth is the float64 reference of a problem's sampled rows, with the result of plain
// attention in the storage type, whose error sets the limit of a row's.
type truth struct {
	problem Problem
	sample  []attention.Rows // of every (sequence, query head) that has rows
	o, lse  expected
}

// expected is the part of a truth that judges O or LSE: the sampled rows, packed.
type expected struct {
	ref   []float64
	low   []float32
	noise []float64
}

// newTruth computes the truth of a problem. All its rows share it.
func newTruth(d *data, seed uint64) (*truth, error) {
	p := d.problem
	t := &truth{problem: p}
	t.sample = d.sample(verifyBudget, rand.New(rand.NewPCG(seed, 1)))
	var err error
	if t.o.ref, t.lse.ref, err = attention.ReferenceSample(p.Config, d.args, t.sample); err != nil {
		return nil, err
	}
	if t.o.low, t.lse.low, err = oracle.Low(p.Config, d.args, t.sample); err != nil {
		return nil, err
	}
	t.o.noise, t.lse.noise, err = oracle.Noise(p.Config, d.args, t.sample)
	return t, err
}

// judge compares O, in the storage type and layout of d, with the truth, and LSE unless it
// is nil. The error says which limits they exceed.
func (t *truth) judge(d *data, o, lse []byte) (Checked, error) {
	c := t.problem.Config
	place := d.args.O
	place.Host = o
	report, err := t.o.judge(t, d, place, c.DType, c.ValueDim(), accuracy.Forward(c.DType))
	if err != nil {
		return Checked{}, err
	}
	w := &report.Whole
	checked := Checked{Rows: attention.CountRows(t.sample), Of: t.problem.rows(), MaxError: Number(w.Max), NMSE: Number(w.NMSE)}
	pass, why := report.Pass(), report.Reasons()
	if lse != nil {
		place = d.args.LSE
		place.Host = lse
		if report, err = t.lse.judge(t, d, place, attention.F32, 1, accuracy.ForwardLSE(c.DType)); err != nil {
			return Checked{}, err
		}
		pass, checked.LSEError = pass && report.Pass(), Number(report.Whole.Max)
		for _, reason := range report.Reasons() {
			why = append(why, "LSE: "+reason)
		}
	}
	if pass {
		return checked, nil
	}
	return checked, errors.New(strings.Join(why, "; "))
}

// judge compares the sampled rows of a tensor of d, of a width, with what is expected.
func (e *expected) judge(t *truth, d *data, place attention.Tensor, dtype attention.DType, width int, limits accuracy.Limits) (accuracy.Report, error) {
	_, rows := d.queryExtent()
	view, err := attention.ViewHost(place, dtype, t.problem.Shape.Hq, rows, width)
	if err != nil {
		return accuracy.Report{}, err
	}
	got := make([]float32, len(e.ref))
	at := 0
	for _, rows := range t.sample {
		for _, row := range rows.Rows {
			batch, r := d.queryRow(rows.B, row)
			view.ReadRow(got[at:at+width], batch, rows.H, r)
			at += width
		}
	}
	limits.Noise = e.noise
	return accuracy.Judge(limits, width, got, e.ref, e.low), nil
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
