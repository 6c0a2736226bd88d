package parallel

import (
	"math"

	"vkattn/attention"
	"vkattn/internal/hostmem"
)

// Bytes that ranks send to each other, and the time that takes.

// volume is what a rank sends in one direction of a call.
type volume struct {
	heads  float64 // all-to-all between heads and sequence, before and after
	gather float64 // K and V to all ranks of a ring, dK and dV to theirs
	ring   float64 // of all steps
	step   float64 // largest message of a ring step
	total  float64
	lse    float64 // what LSE adds to total if every rank asks for it
	groups int     // of heads, one after the other
	steps  int     // of the ring that send, of all groups
	memory float64 // bytes read and written to merge states, to add gradients of ring steps, or to copy the keys that are gathered
}

// most keeps the largest of each number.
func (v *volume) most(x volume) {
	x.total = x.heads + x.gather + x.ring
	v.lse = max(v.total+v.lse, x.total+x.lse) - max(v.total, x.total)
	v.heads, v.gather, v.ring = max(v.heads, x.heads), max(v.gather, x.gather), max(v.ring, x.ring)
	v.step, v.total, v.steps = max(v.step, x.step), max(v.total, x.total), max(v.steps, x.steps)
	v.memory, v.groups = max(v.memory, x.memory), max(v.groups, x.groups)
}

// volumes computes what the busiest ranks send. docs/parallel.md has the formulas.
func (l *layout) volumes() (forward, backward volume) {
	if l.nothing() {
		return forward, backward
	}
	for r := range l.ranks {
		f, b := l.volumesOf(r)
		forward.most(f)
		backward.most(b)
	}
	return forward, backward
}

// volumesOf computes what a rank sends.
func (l *layout) volumesOf(rank int) (forward, backward volume) {
	const f32 = 4.0
	g, inner := rank/l.inner, float64(l.inner)
	batch, size := float64(l.batch()), float64(l.cfg.DType.Size())
	d, dv := float64(l.cfg.HeadDim), float64(l.cfg.ValueDim())
	kv := float64(max(1, l.KVHeads()/l.inner)) // key heads of a rank after the exchange
	rows, keys := batch*float64(l.rows.Count(rank)), batch*float64(l.keys.Count(rank))
	groupRows, groupKeys := batch*float64(countOf(l.groupRows[g])), batch*float64(countOf(l.groupKeys[g]))
	block := func(g int) float64 { return batch * kv * float64(countOf(l.groupKeys[g])) * (d + dv) } // elements of K and V
	if l.inner > 1 {
		// Before: this rank's rows for the others' heads. After: the others' rows of its heads.
		hq := float64(l.Hq) / inner
		before := rows*hq*(inner-1)*d*size + keys*kv*(inner-1)*(d+dv)*size
		gradient := size
		if l.sharers() > 1 {
			gradient = f32
		}
		forward.heads, forward.lse = before+(groupRows-rows)*hq*dv*size, (groupRows-rows)*hq*f32
		backward.heads = before + rows*hq*(inner-1)*(2*dv*size+f32) + (groupRows-rows)*hq*d*size + (groupKeys-keys)*kv*(d+dv)*gradient
	}
	all := batch * kv * float64(l.keys.total()) * (d + dv)
	forward.groups, backward.groups = l.headGroups(l.forwardHeads), l.headGroups(l.backwardHeads)
	if l.gathers { // and copies its own K and V to their places
		forward.gather = float64(l.outer-1) * block(g) * size
		forward.memory = 2 * block(g) * size
		for s := range l.outer { // those that arrive in other memory than their places
			forward.memory += 2 * float64(l.packedElements(s, l.forwardHeads)*uint64(forward.groups)) * size
		}
	}
	switch {
	case l.mode == ModeAllGather:
		backward.gather = forward.gather + (all-block(g))*f32
	case l.outer > 1:
		backward.steps = backward.groups * l.outer
		passed := 0.0 // K and V from rank to rank
		for t := range l.outer {
			b := block((g - t + l.outer) % l.outer)
			if t < l.outer-1 {
				passed += b * size
				forward.step = max(forward.step, b*size/float64(forward.groups))
			}
			backward.ring += b * f32
			backward.step = max(backward.step, b*(size+f32)/float64(backward.groups))
		}
		backward.ring += passed
		// A merge reads two float32 states and writes one; the second was written before. A
		// backward step reads and writes dQ, and adds two blocks of dK and dV to a third.
		hq := float64(l.Hq) / inner
		if !l.gathers {
			forward.steps, forward.ring = forward.groups*(l.outer-1), passed
			forward.memory = float64(l.outer-1) * groupRows * hq * dv * 4 * f32
		}
		backward.memory = float64(l.outer) * (groupRows*hq*d*2*f32 + block(g)*4*f32)
	}
	return forward, backward
}

// total is the number of rows of all ranks.
func (s Split) total() (n int) {
	for r := range s {
		n += s.Count(r)
	}
	return n
}

// cost estimates a call that computes for the given time.
func (v *volume) cost(l *layout, m *Machine, compute float64) Cost {
	c := Cost{SentBytes: uint64(v.total), LSEBytes: uint64(v.lse), Rounds: v.steps, HeadGroups: max(1, v.groups)}
	if l.inner > 1 {
		c.Rounds += 2
		c.Exposed += 2*m.Turn + m.Latency + m.collectiveSeconds(v.heads, l.inner, 1)
	}
	if v.gather > 0 {
		n := float64(c.HeadGroups)
		c.Rounds += c.HeadGroups
		c.Exposed += n*(m.Turn+m.Latency) + m.collectiveSeconds(v.gather, l.outer, l.inner) - m.Latency
	}
	switch n, message := float64(v.steps), m.ringSeconds(v.step, l.ranks); {
	case n == 0:
	case l.ranks > m.RanksPerHost: // the computation of a step hides its message
		c.Exposed += n * max(0, message-compute/float64(l.outer*c.HeadGroups))
	default:
		c.Exposed += n * (m.Turn + m.OverlapCost*message)
	}
	c.Seconds = compute + v.memory/m.Memory + c.Exposed
	return c
}

// Memory that a call allocates on a rank. Its functions follow the allocations of the modes in
// ulysses.go and allgather.go; headgroups.go has those of the ring.

// dtypeSize is the size of an element in bytes.
func (l *layout) dtypeSize() uint64 { return uint64(l.cfg.DType.Size()) }

func (l *layout) elements(heads, rows, dim int) uint64 {
	const most = 1 << 56 // so that sums do not overflow
	return min(hostmem.Product(l.batch(), heads, rows, dim), most)
}

// headsScratch is the memory of an exchange of heads: what arrives, in order, and what is on
// its way.
func (l *layout) headsScratch(rank int, rowDims, keyDims int, size uint64) uint64 {
	if l.inner == 1 {
		return 0
	}
	g := rank / l.inner
	hq, kv := l.rankHeads()
	arrived := l.elements(hq, countOf(l.groupRows[g]), rowDims) + l.elements(kv, countOf(l.groupKeys[g]), keyDims)
	sent := l.elements(l.Hq, l.rows.Count(rank), rowDims) + l.elements(kv*l.inner, l.keys.Count(rank), keyDims)
	return (2*arrived + sent) * size
}

// membersScratch is the memory of forwardMembers: Q of other ranks, K and V as they arrive and in order,
// O for other ranks, and packed copies of what the transport cannot send or receive in place.
func (l *layout) membersScratch(rank int, lse bool) (bytes uint64) {
	d, dv, size := l.cfg.HeadDim, l.cfg.ValueDim(), uint64(l.cfg.DType.Size())
	hq, kv := l.rankHeads()
	rows, keys := l.rows.Count(rank), l.keys.Count(rank)
	allRows, allKeys := l.rows.total(), l.keys.total()
	n := l.elements(hq, allRows-rows, d+dv) + l.elements(kv, 2*allKeys-keys, d+dv)
	n += l.elements(l.Hq, rows, d+dv) + l.elements(kv*(l.inner-1), keys, d+dv)
	if lse {
		bytes = (l.elements(3*l.Hq, rows, 1) + l.elements(2*hq, allRows, 1)) * 4
	}
	return bytes + n*size
}

// forwardScratch bounds the memory that Forward allocates on a rank. lse says that ranks ask for LSE.
func (l *layout) forwardScratch(rank int, lse bool) (n uint64) {
	cfg := &l.cfg
	d, dv, size := cfg.HeadDim, cfg.ValueDim(), uint64(cfg.DType.Size())
	if l.members {
		return l.membersScratch(rank, lse)
	}
	n = l.headsScratch(rank, d+dv, d+dv, size)
	if lse {
		n += l.headsScratch(rank, 1, 0, 4)
	}
	switch g := rank / l.inner; {
	case l.gathers && lse:
		n += l.gatherLSEScratch(g, l.lseHeads)
	case l.gathers:
		n += l.gatherScratch(g, l.forwardHeads)
	case l.outer > 1:
		n += l.overlapScratch(g, l.forwardHeads)
	}
	return n
}

// lseRows is the number of rows of LSE that the calls of a group's ranks take, each with a packed
// LSE of its own rows. Calls of the same rows share it.
func (l *layout) lseRows(g int) (n int) {
	if l.packed() {
		return 0
	}
	seen := map[Span]bool{}
	add := func(runs []run) {
		for i := range runs {
			if s := (Span{runs[i].row, runs[i].rows}); !seen[s] {
				seen[s] = true
				n += s.N
			}
		}
	}
	if l.mode == ModeAllGather {
		add(l.wholeRuns(l.groupRows[g]))
		return n
	}
	for s := range l.outer {
		add(l.runs(g, s))
	}
	return n
}

// backwardScratch is forwardScratch of Backward.
func (l *layout) backwardScratch(rank int) (n uint64) {
	cfg := &l.cfg
	d, dv, size := cfg.HeadDim, cfg.ValueDim(), l.dtypeSize()
	hq, _ := l.rankHeads()
	rows := countOf(l.groupRows[rank/l.inner])
	n = l.headsScratch(rank, 2*(d+dv), d+dv, size) + l.headsScratch(rank, 1, d+dv, 4)
	switch {
	case l.mode == ModeAllGather && l.ranks > 1:
		kv, hq := l.backwardHeads, l.queryHeads(l.backwardHeads)
		n += l.gatherScratch(rank, kv) + l.elements(hq, rows, d)*4 + l.elements(hq, l.lseRows(rank), 1)*4
		n += l.elements(kv, 2*l.keys.total()+l.ranks*l.keys.Count(rank), d+dv) * 4
	case l.outer > 1:
		n += l.ringBackwardScratch(rank/l.inner, l.backwardHeads)
	case l.sharers() > 1:
		n += l.elements(hq, rows, d) * 4
	}
	return n
}

// most is the largest number of rows of a rank.
func (s Split) most() (n int) {
	for r := range s {
		n = max(n, s.Count(r))
	}
	return n
}

// Machine holds the speeds from which a plan estimates times. The zero value of a field is
// what two H200 of one host measured with this library's kernels and NCCL 2.28, and 400 Gb/s
// InfiniBand a rank between hosts.
type Machine struct {
	RanksPerHost int     // consecutive ranks with fast links to each other; 0: all
	Flops        float64 // per second of a rank; 0: 340e12
	Link         float64 // bytes per second that a rank sends within a host while it receives; 0: 317e9
	Network      float64 // the same between hosts; 0: 45e9
	Memory       float64 // bytes per second that a rank reads and writes; 0: 4.3e12
	Latency      float64 // seconds of a message or collective without its bytes; 0: 37e-6

	// A device executes its kernels and those that move messages within a host by turns. Turn is the
	// time in seconds of a change to messages and back; 0: 350e-6. A message that overlaps the computation
	// costs the kernels Turn and OverlapCost times its own duration; 0: 4.
	Turn, OverlapCost float64
}

func (m Machine) validate() error {
	for _, x := range []struct {
		field string
		value float64
	}{{"Machine.RanksPerHost", float64(m.RanksPerHost)}, {"Machine.Flops", m.Flops}, {"Machine.Link", m.Link},
		{"Machine.Network", m.Network}, {"Machine.Memory", m.Memory}, {"Machine.Latency", m.Latency},
		{"Machine.Turn", m.Turn}, {"Machine.OverlapCost", m.OverlapCost}} {
		if !(x.value >= 0) || math.IsInf(x.value, 1) {
			return &attention.ShapeError{Field: x.field, Got: x.value, Want: "a finite number above 0, or 0 for the default"}
		}
	}
	return nil
}

// resolved fills in the defaults.
func (m Machine) resolved(ranks int) Machine {
	for _, x := range []struct {
		value *float64
		or    float64
	}{{&m.Flops, 340e12}, {&m.Link, 317e9}, {&m.Network, 45e9}, {&m.Memory, 4.3e12}, {&m.Latency, 37e-6},
		{&m.Turn, 350e-6}, {&m.OverlapCost, 4}} {
		if *x.value == 0 {
			*x.value = x.or
		}
	}
	if m.RanksPerHost == 0 || m.RanksPerHost > ranks {
		m.RanksPerHost = ranks
	}
	return m
}

// ringSeconds is the time of a message to the next rank, which is on another host for some.
func (m *Machine) ringSeconds(bytes float64, ranks int) float64 {
	speed := m.Link
	if ranks > m.RanksPerHost {
		speed = m.Network
	}
	return m.Latency + bytes/speed
}

// collectiveSeconds is the time in which each of n ranks sends bytes, spread evenly over the others. From
// one of them to the next the number of the rank grows by stride.
func (m *Machine) collectiveSeconds(bytes float64, n, stride int) float64 {
	if n < 2 {
		return 0
	}
	near := max(1, m.RanksPerHost/stride)
	far := float64(max(0, n-near)) / float64(n-1) // share of the peers on other hosts
	return m.Latency + max(bytes*(1-far)/m.Link, bytes*far/m.Network)
}
