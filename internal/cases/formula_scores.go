package cases

import (
	"math"

	"vkattn/internal/problem"
)

// Scores and weights of a row by the formula, each with the error that a correct kernel may make of it.

type keyID struct{ b, kv, t int }

// rowScores are the scores of one row.
type rowScores struct {
	s, e       []float64 // scores of the keys that have weight, and their errors
	value      [][]float64
	scale      []float64 // of the key's row of V, by magnitude; 1 where it has none
	times      []float64 // how often each key counts
	sink       float64
	sinkE      float64
	most       float64     // of all, the sink's included
	raw        float64     // largest score before it is modified, by magnitude
	unweighted [][]float64 // values of the keys with a score of -Inf

	beyond bool // some score is more than float32 holds
	isNaN  bool // some score is NaN or +Inf
	// mayBeNaN: a score is infinite before it is modified, and the scale of its key is Inf, or may count as 0 in
	// float32. Inf times 0 is NaN, and a kernel may take NaN in place of a scale of Inf.
	mayBeNaN bool

	absorbed bool // some score was rounded away by what was added to it
}

// score computes the scores of a row.
func (f *Formula) score(b, h, row int) {
	p, r := f.p, &f.row
	kv, s := h/p.Group(), p.seq(b)
	*r = rowScores{s: r.s[:0], e: r.e[:0], value: r.value[:0], unweighted: r.unweighted[:0], scale: r.scale[:0], times: r.times[:0], sink: math.Inf(-1)}
	if p.Sinks {
		r.sink = float64(p.sinkOf(h))
	}
	r.most = r.sink
	q := p.data[b].q[(h*s.Rows+row)*p.D:][:p.D]
	from, to := p.span(b, row)
	for t := max(from, 0); t < to; t++ {
		n := p.Weight(b, h, row, t)
		if n == 0 {
			continue
		}
		score, e := f.modified(q, b, h, row, t)
		switch {
		case math.IsInf(score, -1):
			r.unweighted = append(r.unweighted, f.valueOf(b, kv, t)) // by its bias, or by Q and K
			continue
		case math.IsNaN(score) || math.IsInf(score, 1):
			r.isNaN = true
			continue
		}
		r.beyond = r.beyond || math.Abs(score) > math.MaxFloat32*(1+0x1p-25)
		r.s, r.e, r.times = append(r.s, score), append(r.e, e), append(r.times, float64(n))
		r.value = append(r.value, f.valueOf(b, kv, t))
		scale := 1.0
		if p.KeyType.Scaled() {
			_, s := p.scaleAt(b, kv, t)
			scale = math.Abs(float64(s))
		}
		r.scale = append(r.scale, scale)
		r.most = max(r.most, score)
	}
	// exp2 of Vulkan is off by 3 + 2|x| units in the last place.
	for i := range r.s {
		r.e[i] += 0x1p-23 * (3 + 3*min(r.most-r.s[i], 200))
	}
	r.sinkE = 0x1p-22*math.Abs(r.sink) + 0x1p-23*(3+3*min(r.most-r.sink, 200))
}

// leastScale is the smallest scale of K that does not count as 0, whatever Config.Scale multiplies it by.
const leastScale = 0x1p-100

// scaleMayGiveNaN reports whether an infinite product with a key of K may be NaN.
func (f *Formula) scaleMayGiveNaN(b, kv, t int) bool {
	scale, _ := f.p.scaleAt(b, kv, t)
	size := math.Abs(float64(scale))
	return math.IsInf(size, 1) || size < leastScale
}

// modified is the score of a key after softcap, bias, ALiBi and a modifier of the user, and its error. The last is an
// expression of package score, which has no other form.
func (f *Formula) modified(q []float32, b, h, row, t int) (s, e float64) {
	p := f.p
	scale := float64(p.Config(Target{DType: p.DType}).ScaleValue())
	var sum, size, converted float64
	key := f.keyOf(b, h/p.Group(), t)
	for i, x := range key {
		product := float64(q[i]) * x
		sum += product
		size += math.Abs(product)
		converted += math.Abs(float64(q[i])) * f.elementError(p.KeyType, key, i)
	}
	s, size = sum*scale, size*math.Abs(scale)
	e = size*0x1p-24*(8+float64(p.D)/4) + converted*math.Abs(scale) + 0x1p-22*math.Abs(s)
	if math.IsInf(s, 0) {
		e = 0
		f.row.mayBeNaN = f.row.mayBeNaN || p.KeyType.Scaled() && f.scaleMayGiveNaN(b, h/p.Group(), t)
	}
	if math.Abs(s) > math.Abs(f.row.raw) {
		f.row.raw = s
	}
	f.row.beyond = f.row.beyond || size > math.MaxFloat32/4 && !math.IsInf(size, 1)
	if limit := float64(p.Softcap); limit != 0 {
		capped := limit * math.Tanh(s/limit)
		e = max(limit*math.Tanh((s+e)/limit)-capped, capped-limit*math.Tanh((s-e)/limit)) + limit*0x1p-20
		s = capped
	}
	if p.Bias.On {
		s, e = f.added(s, e, float64(p.biasAt(b, h, row, t)))
	}
	if p.ALiBi {
		s, e = f.added(s, e, -float64(p.slope(b, h))*math.Abs(float64(p.position(b, row)-t)))
	}
	if p.user.Score.Given() {
		x := p.modifiedScores([]float64{s, s - e, s + e}, b, h, row, t)
		if e = max(math.Abs(x[1]-x[0]), math.Abs(x[2]-x[0])) + 0x1p-20*(math.Abs(s)+math.Abs(x[0])+8); math.IsInf(x[0], 0) || math.IsInf(s, 0) {
			e = 0
		}
		s = x[0]
	}
	return s, e
}

// added is a score with x added. Where float32 rounds one of the two away the sum is the
// other in every order of operations, and equal ones stay equal. A computation that keeps
// large biases separate from scores finds their sum as it is: see wide.
func (f *Formula) added(s, e, x float64) (sum, errorOf float64) {
	switch {
	case f.Rounded:
	case math.Abs(s)+e < 0x1p-26*math.Abs(x):
		f.row.absorbed = true
		if f.wide {
			return s + x, e
		}
		return x, 0
	case math.Abs(x) < 0x1p-26*(math.Abs(s)-e):
		return s, e
	}
	return s + x, e + 0x1p-22*max(math.Abs(s), math.Abs(x))
}

func (f *Formula) keyOf(b, kv, t int) []float64 {
	scale, _ := f.p.scaleAt(b, kv, t)
	return f.decoded(f.keys, keyID{b, kv, t}, f.p.KeyType, f.p.data[b].k, f.p.D, scale)
}

func (f *Formula) valueOf(b, kv, t int) []float64 {
	_, scale := f.p.scaleAt(b, kv, t)
	return f.decoded(f.values, keyID{b, kv, t}, f.p.valueType(), f.p.data[b].v, f.p.Dv, scale)
}

// decoded is a row of K or V, which is decoded once.
func (f *Formula) decoded(known map[keyID][]float64, id keyID, kv problem.KVType, stored [][]byte, dim int, scale float32) []float64 {
	x := known[id]
	if x == nil {
		x = DecodeRow(kv, stored[id.kv*f.p.seq(id.b).Keys+id.t], f.p.DType, dim, scale)
		known[id] = x
	}
	return x
}

// largestExponent bounds what weights may be by their errors: more is no number of float64.
const largestExponent = 600

// negligible is how far below the largest score, in natural logarithm, keys are not
// counted among those that may have weight.
const negligible = 40

// rowWeights are the weights of a row's keys relative to its largest score.
type rowWeights struct {
	p              []float64 // of each key
	off            []float64 // what it may differ by
	competes       []bool    // whether the key may have weight
	sinkOff        float64
	sinkCompetes   bool
	sum, low, high float64 // of all, and its bounds
	largest        float64 // of a weight times V's scale
	count          float64 // of keys
	mostE          float64 // largest error of a score that competes
}

func (f *Formula) weigh() (w rowWeights) {
	r := &f.row
	atLeast := r.sink - r.sinkE // the largest score is at least this, for any errors within their bounds
	for i, s := range r.s {
		atLeast = max(atLeast, s-r.e[i])
	}
	bounds := func(s, e float64) (p, low, high float64) {
		return math.Exp(s - r.most), math.Exp(s - r.most - e), math.Exp(min(s-r.most+e, largestExponent))
	}
	for i, s := range r.s {
		p, low, high := bounds(s, r.e[i])
		n := r.times[i]
		w.p, w.off = append(w.p, n*p), append(w.off, n*max(high-p, p-low))
		w.largest = max(w.largest, high*max(r.scale[i], 0x1p-30)) // scales below count as that
		w.sum, w.low, w.high = w.sum+n*p, w.low+n*low, w.high+n*high
		competes := s+r.e[i] >= atLeast-negligible
		if competes {
			w.mostE = max(w.mostE, r.e[i])
		}
		w.competes = append(w.competes, competes)
		w.count += n
	}
	if !math.IsInf(r.sink, -1) {
		p, low, high := bounds(r.sink, r.sinkE)
		w.sum, w.low, w.high = w.sum+p, w.low+low, w.high+high
		w.sinkOff = max(high-p, p-low)
		if w.sinkCompetes = r.sink+r.sinkE >= atLeast-negligible; w.sinkCompetes {
			w.mostE = max(w.mostE, r.sinkE)
		}
	}
	return w
}
