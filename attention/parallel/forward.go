package parallel

import (
	"context"
	"slices"

	"vkattn/attention"
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

// operands are the tensors of a call as views.
type operands struct{ q, k, v, o, lse view }

// view resolves this rank's tensors.
func (l *layout) view(rank int, a *Args) (t operands) {
	cfg := &l.cfg
	rows, keys, batch := l.rows.Count(rank), l.keys.Count(rank), l.batch()
	t.q = viewOf(a.Q, cfg.DType, batch, l.Hq, rows, cfg.HeadDim)
	t.k = viewOf(a.K, cfg.DType, batch, l.KVHeads(), keys, cfg.HeadDim)
	t.v = viewOf(a.V, cfg.DType, batch, l.KVHeads(), keys, cfg.ValueDim())
	t.o = viewOf(a.O, cfg.DType, batch, l.Hq, rows, cfg.ValueDim())
	t.lse = viewOf(a.LSE, attention.F32, batch, l.Hq, rows, 1)
	return t
}

// checkable returns this rank's arguments as those of a call on one device. What a rank without
// rows or keys leaves out is replaced, by tensors of m.
func (l *layout) checkable(m *side, rank int, a *Args) (attention.Config, attention.Args) {
	cfg := l.cfg
	cfg.Causal, cfg.Align, cfg.Window = attention.CausalNone, attention.CausalNone, attention.Window{}
	b := attention.Args{Q: a.Q, K: a.K, V: a.V, O: a.O, LSE: a.LSE}
	b.Shape = attention.Shape{B: l.batch(), Hq: l.Hq, Hkv: l.KVHeads(), Sq: max(1, l.rows.Count(rank)), Sk: max(1, l.keys.Count(rank))}
	if l.rows.Count(rank) == 0 {
		b.Q, b.O = m.new(cfg.DType, b.B, b.Hq, 1, cfg.HeadDim).Tensor, m.new(cfg.DType, b.B, b.Hq, 1, cfg.ValueDim()).Tensor
		b.LSE = attention.Tensor{}
	}
	if l.keys.Count(rank) == 0 {
		b.K, b.V = m.new(cfg.DType, b.B, b.Hkv, 1, cfg.HeadDim).Tensor, m.new(cfg.DType, b.B, b.Hkv, 1, cfg.ValueDim()).Tensor
	}
	return cfg, b
}

// Forward computes O, and LSE if a has one, of this rank's rows. All ranks call it with the
// same Problem. Each may have LSE or leave it out. Tensors lie in host memory on the CPU tier, where the stream is nil, and in
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
func (op *Op) Forward(ctx context.Context, s *vk.Stream, a Args) error {
	if err := op.usable(); err != nil {
		return err
	}
	x, err := op.plan(a.Problem, op.reach(a.Q, a.K, a.V, a.O, a.LSE))
	rank := op.group.Rank()
	if err == nil {
		err = op.checkForward(s, x.layout, rank, &a)
	}
	return op.run(ctx, s, callForward, x, a.LSE.Given(), err, func(c *call) error { return c.forwardAll(x.view(rank, &a)) })
}

// checkForward checks this rank's tensors and memory.
func (op *Op) checkForward(s *vk.Stream, l *layout, rank int, a *Args) error {
	if err := op.checkStream(s); err != nil {
		return err
	}
	m := op.newSide(s)
	defer m.close()
	cfg, b := l.checkable(&m, rank, a)
	if m.err != nil {
		return m.err
	}
	if err := attention.CheckArgs(cfg, b); err != nil {
		return err
	}
	if err := op.checkSide(b.Q, b.K, b.V, b.O, b.LSE); err != nil {
		return err
	}
	if err := op.checkTier(l, rank); err != nil {
		return err
	}
	if err := l.checkForwardReach(rank, a); err != nil {
		return err
	}
	// Other ranks may ask for LSE where this one does not.
	return op.checkMemory("parallel.Forward", max(l.forwardScratch(rank, a.LSE.Given()), l.forwardScratch(rank, true)))
}

// checkForwardReach reports tensors of this rank that kernels take where they lie and do not reach.
func (l *layout) checkForwardReach(rank int, a *Args) error {
	t := l.view(rank, a)
	_, heads := l.heads(rank % l.inner)
	switch {
	case l.inner > 1 && !l.members: // copied
		return nil
	case l.outer > 1:
		heads = l.queryHeads(l.forwardHeads)
	}
	if err := l.checkReach("Q", t.q, heads, false); err != nil {
		return err
	}
	return l.checkReach("O", t.o, heads, false)
}

// checkTier reports that no kernel of this rank's tier computes its calls, before the ranks agree
// on the call. The states of a ring need a float32 O, which not all tiers store.
func (op *Op) checkTier(l *layout, rank int) error {
	cfg := l.cfg
	cfg.F32O = l.outer > 1 && !l.gathers
	return op.checkCall(l, rank, cfg, func(local *attention.Op, s attention.Shape) error {
		_, err := local.Plan(s)
		return err
	})
}

// checkCall plans a call of this rank with a Config.
func (op *Op) checkCall(l *layout, rank int, cfg attention.Config, plan func(*attention.Op, attention.Shape) error) error {
	local, err := op.of(cfg)
	if err != nil {
		return err
	}
	if shape, ok := l.rankShape(rank); ok {
		return plan(local, shape)
	}
	return nil
}

// rankShape is the shape of a call of this rank with all keys of its group, and of the longest
// sequence that packed tensors may have; ok is false for a rank without rows or keys.
func (l *layout) rankShape(rank int) (s attention.Shape, ok bool) {
	rows, keys := countOf(l.groupRows[rank/l.inner]), countOf(l.groupKeys[rank/l.inner])
	_, hq := l.heads(rank % l.inner)
	_, hkv := l.kvHeads(rank % l.inner)
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
		return c.forwardGroup(t.q, t.k, t.v, t.o, t.lse)
	case c.members:
		return c.forwardMembers(t)
	}
	heads, err := c.toHeads(exchanged{view: t.q}, exchanged{view: t.k, kv: true}, exchanged{view: t.v, kv: true})
	if err != nil {
		return err
	}
	q := heads[0]
	o := c.new(t.o.dtype, q.batch, q.heads, q.rows, t.o.dim)
	from, to := []view{o}, []exchanged{{view: t.o}}
	var lse view
	if asked := c.askedLSE(); slices.Contains(asked, true) {
		lse = c.new(attention.F32, q.batch, q.heads, q.rows, 1)
		from, to = append(from, lse), append(to, exchanged{view: t.lse, only: asked})
	}
	if err := c.forwardGroup(q, heads[1], heads[2], o, lse); err != nil {
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
			if x.lse = c.headsOf(lse.view, false, u); u != c.u || !c.reaches(x.lse) {
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
func (c *call) forwardGroup(q, k, v, o, lse view) error {
	switch {
	case c.outer == 1:
		op, err := c.op.of(c.cfg)
		if err != nil {
			return err
		}
		a := c.whole(q, k, v, o, lse)
		if !c.ordered() {
			return c.err
		}
		return op.Forward(c.s, a)
	case c.gathers:
		return c.gatherForward(q, k, v, o, lse)
	}
	return c.ringForward(q, k, v, o, lse)
}
