package parallel

import (
	"context"
	"slices"

	"vkattn/attention"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// Args are this rank's tensors of one call: the rows and keys of its spans, one span after
// the other, as attention.Args has them for a whole call. A rank without rows, or without
// keys, leaves out those tensors.
type Args struct {
	Problem
	Q, K, V attention.Tensor
	O       attention.Tensor
	LSE     attention.Tensor // optional; float32, packed
}

// operands are the tensors of a call as views, the gradients only of a backward call.
type operands struct{ q, k, v, o, lse, dO, dQ, dK, dV view }

// operands resolves this rank's tensors.
func (l *layout) operands(rank int, a *BackwardArgs) operands {
	dtype, batch, d, dv := l.cfg.DType, l.batch(), l.cfg.HeadDim, l.cfg.ValueDim()
	n, m := l.rows.Count(rank), l.keys.Count(rank)
	rows := func(t attention.Tensor, dim int) view { return viewOf(t, dtype, batch, l.Hq, n, dim) }
	keys := func(t attention.Tensor, dim int) view { return viewOf(t, dtype, batch, l.KVHeads(), m, dim) }
	return operands{q: rows(a.Q, d), k: keys(a.K, d), v: keys(a.V, dv), o: rows(a.O, dv),
		lse: viewOf(a.LSE, attention.F32, batch, l.Hq, n, 1), dO: rows(a.DO, dv), dQ: rows(a.DQ, d), dK: keys(a.DK, d), dV: keys(a.DV, dv)}
}

// eachGroup computes n key heads and their query heads after another.
func (c *call) eachGroup(t operands, n int, compute func(t operands) error) error {
	group := t.q.heads / t.k.heads
	for first := 0; first < t.k.heads; first += n {
		x := t
		for _, v := range [...]*view{&x.q, &x.o, &x.lse, &x.dO, &x.dQ} {
			*v = v.headsFrom(first*group, n*group)
		}
		for _, v := range [...]*view{&x.k, &x.v, &x.dK, &x.dV} {
			*v = v.headsFrom(first, n)
		}
		if c.packed() && x.lse.Given() { // batch size 1: the heads lie one after the other
			x.lse = resized(x.lse, x.lse.heads, x.lse.rows)
		}
		if err := compute(x); err != nil {
			return err
		}
	}
	return nil
}

// checkable returns this rank's arguments as those of a call on one device. What a rank without
// rows or keys leaves out is replaced, by tensors of m.
func (l *layout) checkable(kind callKind, m *side, rank int, a *BackwardArgs) (attention.Config, attention.BackwardArgs) {
	cfg := l.cfg
	cfg.Causal, cfg.Align, cfg.Window = attention.CausalNone, attention.CausalNone, attention.Window{}
	b := attention.BackwardArgs{DO: a.DO, DQ: a.DQ, DK: a.DK, DV: a.DV}
	b.Q, b.K, b.V, b.O, b.LSE = a.Q, a.K, a.V, a.O, a.LSE
	b.Shape = attention.Shape{B: l.batch(), Hq: l.Hq, Hkv: l.KVHeads(), Sq: max(1, l.rows.Count(rank)), Sk: max(1, l.keys.Count(rank))}
	lend := func(dtype attention.DType, heads, dim int, forward, gradient *attention.Tensor) {
		*forward = m.new(dtype, b.B, heads, 1, dim).Tensor
		if kind == callBackward {
			*gradient = m.new(dtype, b.B, heads, 1, dim).Tensor
		}
	}
	if l.rows.Count(rank) == 0 {
		lend(cfg.DType, b.Hq, cfg.HeadDim, &b.Q, &b.DQ)
		lend(cfg.DType, b.Hq, cfg.ValueDim(), &b.O, &b.DO)
		b.LSE = attention.Tensor{}
		if kind == callBackward {
			b.LSE = m.new(attention.F32, b.B, b.Hq, 1, 1).Tensor
		}
	}
	if l.keys.Count(rank) == 0 {
		lend(cfg.DType, b.Hkv, cfg.HeadDim, &b.K, &b.DK)
		lend(cfg.DType, b.Hkv, cfg.ValueDim(), &b.V, &b.DV)
	}
	return cfg, b
}

// Forward computes O, and LSE if a has one, of this rank's rows. All ranks call it with the
// same Problem. Each may have LSE or leave it out. Tensors lie in host memory on the CPU tier, where the stream may be nil, and in
// buffers of the device otherwise. The results are complete when Forward returns: it submits
// the stream and waits.
//
// The bits depend on the Problem, the mode, the schedule, the order, the number of ranks and, as on one device, on
// whether LSE is asked for, here by any rank; not on the run.
// ctx ends the call on all ranks.
//
// Kernels that take buffer descriptors reach a tensor up to the device's maxStorageBufferRange. Ranks then take fewer
// heads at a time. A tensor of one key head that exceeds it is refused on every rank before tensors move, by an error
// that matches [attention.ErrUnsupported] on the rank whose kernels do not reach it.
func (op *Op) Forward(ctx context.Context, s *attention.Stream, a Args) error {
	return op.start(ctx, s, callForward, &BackwardArgs{Args: a}, (*call).forwardAll)
}

// start plans a call, checks it and runs it.
func (op *Op) start(ctx context.Context, s *attention.Stream, kind callKind, a *BackwardArgs,
	compute func(c *call, t operands) error) error {
	if err := op.usable(); err != nil {
		return err
	}
	x, err := op.plan(a.Problem, op.reach(a.Q, a.K, a.V, a.O, a.LSE, a.DO, a.DQ, a.DK, a.DV))
	rank := op.group.Rank()
	if err == nil {
		err = op.check(kind, s, x.layout, rank, a)
	}
	return op.run(ctx, s, kind, x, kind == callBackward || a.LSE.Given(), err, func(c *call) error {
		return compute(c, c.operands(rank, a))
	})
}

// check checks this rank's tensors and memory.
func (op *Op) check(kind callKind, s *attention.Stream, l *layout, rank int, a *BackwardArgs) error {
	if err := op.checkStream(s); err != nil {
		return err
	}
	m := op.newSide(s)
	defer m.close()
	cfg, b := l.checkable(kind, &m, rank, a)
	if m.err != nil {
		return m.err
	}
	var err error
	var bytes uint64
	if kind == callBackward {
		err, bytes = op.checkGradients(cfg, b), l.backwardScratch(rank)
	} else {
		if err = attention.CheckArgs(cfg, b.Args); err == nil {
			err = op.checkSide(b.Q, b.K, b.V, b.O, b.LSE)
		}
		// Other ranks may ask for LSE where this one does not.
		bytes = max(l.forwardScratch(rank, a.LSE.Given()), l.forwardScratch(rank, true))
	}
	if err != nil {
		return err
	}
	if err := op.checkTier(kind, l, rank); err != nil {
		return err
	}
	if err := l.checkReaches(kind, rank, a); err != nil {
		return err
	}
	return op.checkMemory("parallel."+kind.String(), bytes)
}

// checkGradients checks the tensors of a backward call, all of which it needs.
func (op *Op) checkGradients(cfg attention.Config, a attention.BackwardArgs) error {
	for _, t := range []struct {
		field string
		attention.Tensor
	}{{"LSE", a.LSE}, {"DO", a.DO}, {"DQ", a.DQ}, {"DK", a.DK}, {"DV", a.DV}} {
		if !t.Given() {
			return &attention.ShapeError{Field: t.field, Got: "missing", Want: "a tensor"}
		}
	}
	var all tensors.BackwardTensors
	if err := all.CheckAll((*problem.Config)(&cfg), &a); err != nil {
		return err
	}
	return all.Each(func(_ int, t *tensors.Layout) error { return t.CheckDevice(tensors.Place{Vulkan: op.dev}) })
}

// checkReaches reports tensors that kernels do not reach: those that a backward call allocates, and those of this
// rank that kernels take where they lie.
func (l *layout) checkReaches(kind callKind, rank int, a *BackwardArgs) error {
	t := l.operands(rank, a)
	_, kv := l.rankHeads()
	n, taken := l.forwardHeads, l.inner == 1 || l.members // not copied
	if kind == callBackward {
		if reason := l.backwardRefusal(); reason != "" {
			return &ModeError{l.mode, reason}
		}
		n, taken = l.backwardHeads, l.inner == 1
	}
	if l.outer > 1 {
		kv = n
	}
	heads, summed := l.queryHeads(kv), taken || l.sharers() > 1
	for _, x := range []struct {
		field string
		view
		heads int
		taken bool
		all   bool // sequences of a batch at once; a forward call and a sum take one at a time
	}{{"Q", t.q, heads, taken, kind == callBackward}, {"O", t.o, heads, taken, kind == callBackward},
		{"DO", t.dO, heads, taken, true}, {"DQ", t.dQ, heads, taken, false}, {"DK", t.dK, kv, summed, false},
		{"DV", t.dV, kv, summed, false}} {
		if !x.taken || !x.Given() {
			continue
		}
		if err := l.checkReach(x.field, x.view, x.heads, x.all); err != nil {
			return err
		}
	}
	return nil
}

// checkTier reports that no kernel of this rank's tier computes its calls, before the ranks agree
// on the call. The states of a ring need a float32 O, and most calls of Backward float32 gradients,
// which not all tiers store.
func (op *Op) checkTier(kind callKind, l *layout, rank int) error {
	cfg := l.cfg
	if kind == callBackward {
		cfg.F32Gradients = (l.outer > 1 || l.sharers() > 1) && cfg.DType != attention.F32
	} else {
		cfg.F32O = l.outer > 1 && !l.gathers
	}
	local, err := op.of(cfg)
	shape, ok := l.rankShape(rank)
	switch {
	case err != nil || !ok:
	case kind == callBackward:
		_, err = local.PlanBackward(shape)
	default:
		_, err = local.Plan(shape)
	}
	return err
}

// rankShape is the shape of a call of this rank with all keys of its group, and of the longest
// sequence that packed tensors may have; ok is false for a rank without rows or keys.
func (l *layout) rankShape(rank int) (s attention.Shape, ok bool) {
	rows, keys := countOf(l.groupRows[rank/l.inner]), countOf(l.groupKeys[rank/l.inner])
	hq, hkv := l.rankHeads()
	return attention.Shape{B: l.batch(), Hq: hq, Hkv: hkv, Sq: min(rows, l.Sq), Sk: min(keys, l.Sk)}, rows > 0 && keys > 0
}

// checkMemory reports too little memory where this rank computes. It asks the driver only for more than
// the last call left: an answer takes some 100 us.
func (op *Op) checkMemory(what string, bytes uint64) error {
	if op.dev == nil {
		return vk.CheckHostMemory(what, bytes)
	}
	held := op.pool.bytes()
	if bytes <= held {
		return nil
	}
	return op.dev.CheckMemory(what, bytes-held)
}

// forwardAll computes O and LSE from this rank's tensors. LSE may be left out.
func (c *call) forwardAll(t operands) error {
	if !t.lse.Given() {
		t.lse.Tensor = attention.Tensor{}
	}
	switch {
	case c.nothing():
		c.clear(t.o)
		if t.lse.Given() {
			c.empty(t.lse)
		}
		return c.err
	case c.inner == 1:
		return c.forwardGroup(t)
	case c.members:
		return c.forwardMembers(t)
	}
	heads, err := c.toHeads(exchanged{view: t.q}, exchanged{view: t.k, kv: true}, exchanged{view: t.v, kv: true})
	if err != nil {
		return err
	}
	h := operands{q: heads[0], k: heads[1], v: heads[2]}
	h.o = c.new(t.o.dtype, h.q.batch, h.q.heads, h.q.rows, t.o.dim)
	from, to := []view{h.o}, []exchanged{{view: t.o}}
	if asked := c.askedLSE(); slices.Contains(asked, true) {
		h.lse = c.new(attention.F32, h.q.batch, h.q.heads, h.q.rows, 1)
		from, to = append(from, h.lse), append(to, exchanged{view: t.lse, only: asked})
	}
	if err := c.forwardGroup(h); err != nil {
		return err
	}
	return c.toRows(from, to)
}

// askedLSE tells which members of the group ask for LSE. The others are sent none.
func (c *call) askedLSE() []bool { return c.lse[c.group*c.inner:][:c.inner] }

// forwardMembers computes the rows of each rank for this rank's heads, in calls of their own: Q where it
// arrives, and O where it is sent from. One call for all rows would need Q and O in the order of the
// sequence, and so a copy of both.
func (c *call) forwardMembers(t operands) error {
	q := exchanged{view: t.q, members: make([]view, c.inner)}
	heads, err := c.toHeads(q, exchanged{view: t.k, kv: true}, exchanged{view: t.v, kv: true})
	if err != nil {
		return err
	}
	o, lse := exchanged{view: t.o}, exchanged{view: t.lse, only: c.askedLSE()}
	var list []ranksRows
	for u, q := range q.members {
		x := ranksRows{c.wholeRuns(c.layout.rows[u]), q, c.headsOf(o.view, false, u), view{}}
		if u == c.u && !c.reaches(x.q) {
			x.q = c.dense(x.q)
		}
		if u != c.u || !c.reaches(x.o) {
			x.o = c.new(o.dtype, q.batch, q.heads, q.rows, o.dim)
		}
		if lse.only[u] {
			x.lse = c.headsOf(lse.view, false, u)
			if u != c.u || !c.reaches(x.lse) {
				x.lse = c.new(attention.F32, q.batch, q.heads, q.rows, 1)
			}
		}
		o.members, lse.members = append(o.members, x.o), append(lse.members, x.lse)
		list = append(list, x)
	}
	if err := c.forwardRows(list, heads[1], heads[2]); err != nil {
		return err
	}
	return c.toRows(make([]view, 2), []exchanged{o, lse})
}

// forwardGroup computes the rows of this rank's group for this rank's heads.
func (c *call) forwardGroup(t operands) error {
	switch {
	case c.outer == 1:
		op, err := c.op.of(c.cfg)
		if err != nil {
			return err
		}
		a := c.whole(t)
		if !c.ordered() {
			return c.err
		}
		return op.Forward(c.stream, a)
	case c.gathers:
		return c.gatherForward(t)
	}
	return c.ringForward(t)
}
