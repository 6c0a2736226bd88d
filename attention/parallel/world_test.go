package parallel

import (
	"context"
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/internal/inputs"
	"vkattn/internal/testlevel"
)

func TestMain(m *testing.M) {
	flag.Parse()
	checks := "300"
	switch testlevel.Get() {
	case testlevel.Brief:
		checks = "8"
	case testlevel.Default:
		checks = "25"
	}
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		_ = flag.Set("rapid.checks", checks)
	}
	_ = flag.Set("rapid.nofailfile", "true") // the seed is printed
	os.Exit(m.Run())
}

// patience is longer than any wait that ends.
const patience = 10 * time.Minute

// ranksOf makes a group of n ranks of this process.
func ranksOf(t require.TestingT, n int) []*Group {
	transports, err := InProcess(n)
	require.NoError(t, err)
	groups := make([]*Group, n)
	for r := range groups {
		groups[r], err = NewGroup(transports[r], GroupOptions{Timeout: patience})
		require.NoError(t, err)
	}
	return groups
}

// onAll runs work for every rank at once and returns their errors.
func onAll(groups []*Group, work func(rank int, g *Group) error) []error {
	list := make([]error, len(groups))
	var wg sync.WaitGroup
	for r, g := range groups {
		wg.Go(func() { list[r] = work(r, g) })
	}
	wg.Wait()
	return list
}

// jittered delays operations of a transport at random, so that messages arrive in any order. It is for
// bubbles of synctest, whose clock makes the delays the order.
type jittered struct {
	Transport
	rng *rand.Rand
}

func (j *jittered) pause() { time.Sleep(time.Duration(j.rng.IntN(300)) * time.Microsecond) }

func (j *jittered) Exchange(sends, receives []Transfer) (Pending, error) {
	j.pause()
	return j.Transport.Exchange(sends, receives)
}

func (j *jittered) Gather(ctx context.Context, mine []byte) ([][]byte, error) {
	j.pause()
	return j.Transport.Gather(ctx, mine)
}

// form is a mode with a schedule.
type form struct {
	mode     Mode
	schedule Schedule
}

// forms are all modes, those with a ring in both schedules.
func forms() (list []form) {
	for _, mode := range Modes() {
		if mode == ModeRing || mode == Mode2D {
			list = append(list, form{mode, ScheduleOverlap}, form{mode, ScheduleGather})
		} else {
			list = append(list, form{mode, ScheduleAuto})
		}
	}
	return list
}

// whole is a call over all ranks: its tensors as one device has them.
type whole struct {
	cfg Config
	p   Problem
	attention.BackwardArgs
	allocated []uint64 // by each rank in the last call
	noLSE     []bool   // ranks that leave LSE out of Forward; nil: none
}

// newWhole makes a call with random inputs and outputs that hold garbage.
func newWhole(cfg Config, p Problem, seed uint64) *whole {
	w := &whole{cfg: cfg, p: p}
	a := &w.Args
	a.Shape = p.Shape
	rows, keys := p.extent()
	d, dv, size := cfg.HeadDim, cfg.ValueDim(), cfg.DType.Size()
	in := func(heads, seq, dim int, n uint64) attention.Tensor {
		return attention.Tensor{Host: inputs.New(int64(p.batch()*heads*seq*dim), cfg.DType, inputs.Normal, seed+n)}
	}
	out := func(heads, seq, dim, size int) attention.Tensor {
		t := attention.Tensor{Host: make([]byte, p.batch()*heads*seq*dim*size)}
		for i := range t.Host {
			t.Host[i] = 0xff
		}
		return t
	}
	a.Q, a.K, a.V = in(p.Hq, rows, d, 1), in(p.KVHeads(), keys, d, 2), in(p.KVHeads(), keys, dv, 3)
	a.O, a.LSE = out(p.Hq, rows, dv, size), out(p.Hq, rows, 1, 4)
	w.DO = in(p.Hq, rows, dv, 4)
	w.DQ, w.DK, w.DV = out(p.Hq, rows, d, size), out(p.KVHeads(), keys, d, size), out(p.KVHeads(), keys, dv, size)
	if p.packed() {
		vector := func(cu []int) attention.Vector {
			var b []byte
			for _, x := range cu {
				b = binary.LittleEndian.AppendUint32(b, uint32(x))
			}
			return attention.Vector{Host: b}
		}
		a.Varlen = &attention.Varlen{CuQ: vector(p.CuQ), CuK: vector(p.CuK), TotalQ: rows, TotalK: keys}
	}
	return w
}

// move copies this rank's rows of a tensor between the whole call and its own packed tensor,
// or one with the strides [batch, row, head, dim].
func move(whole, part []byte, toPart bool, spans []Span, batch, heads, rows, bytes int, bshd bool) {
	n := countOf(spans)
	for b := range batch {
		for h := range heads {
			at := 0
			for _, s := range spans {
				for i := range s.N {
					x := whole[((b*heads+h)*rows+s.First+i)*bytes:][:bytes]
					number := (b*heads+h)*n + at
					if bshd {
						number = (b*n+at)*heads + h
					}
					y := part[number*bytes:][:bytes]
					if toPart {
						copy(y, x)
					} else {
						copy(x, y)
					}
					at++
				}
			}
		}
	}
}

// part is a rank's tensors.
type part struct {
	BackwardArgs
	collect func(forward bool) // copies results to the whole call
}

// of makes the tensors of a rank.
func (w *whole) of(plan *Plan, rank int, bshd bool) *part {
	p := &part{}
	p.Problem = w.p
	rows, keys := w.p.extent()
	batch, size := w.p.batch(), w.cfg.DType.Size()
	var back [2][]func()
	tensor := func(t attention.Tensor, kv bool, dim, size int, out int, strided bool) attention.Tensor {
		spans, heads, n := plan.Rows[rank], w.p.Hq, rows
		if kv {
			spans, heads, n = plan.Keys[rank], w.p.KVHeads(), keys
		}
		mine := attention.Tensor{Host: make([]byte, batch*heads*countOf(spans)*dim*size)}
		if len(mine.Host) == 0 {
			return attention.Tensor{}
		}
		if strided {
			mine.Strides = attention.BSHD(heads, countOf(spans), dim)
		}
		move(t.Host, mine.Host, true, spans, batch, heads, n, dim*size, strided)
		if out >= 0 {
			back[out] = append(back[out], func() { move(t.Host, mine.Host, false, spans, batch, heads, n, dim*size, strided) })
		}
		return mine
	}
	d, dv := w.cfg.HeadDim, w.cfg.ValueDim()
	p.Q, p.K, p.V = tensor(w.Q, false, d, size, -1, bshd), tensor(w.K, true, d, size, -1, bshd), tensor(w.V, true, dv, size, -1, bshd)
	p.O, p.LSE = tensor(w.O, false, dv, size, 0, bshd), tensor(w.LSE, false, 1, 4, 0, false)
	p.DO, p.DQ = tensor(w.DO, false, dv, size, -1, bshd), tensor(w.DQ, false, d, size, 1, bshd)
	p.DK, p.DV = tensor(w.DK, true, d, size, 1, bshd), tensor(w.DV, true, dv, size, 1, bshd)
	p.collect = func(forward bool) {
		which := 1
		if forward {
			which = 0
		}
		for _, f := range back[which] {
			f()
		}
	}
	return p
}

// planned is the plan with its layout.
func (w *whole) planned(t require.TestingT, ranks int) *planned {
	x, err := makePlan(&w.cfg, w.p, ranks, mostReach)
	require.NoError(t, err)
	return x
}

// asksForLSE reports whether a rank of a forward call asks for LSE. One without rows does not.
func (w *whole) asksForLSE(plan *Plan) bool {
	for r := range plan.Rows {
		if plan.Rows.Count(r) > 0 && (w.noLSE == nil || !w.noLSE[r]) {
			return true
		}
	}
	return false
}

// forward computes the call over ranks and collects O and LSE.
func (w *whole) forward(t require.TestingT, groups []*Group, bshd bool) *Plan {
	plan, list := w.run(t, groups, bshd, true)
	for _, err := range list {
		require.NoError(t, err)
	}
	return plan
}

// run computes the call, forward or backward, on all ranks.
func (w *whole) run(t require.TestingT, groups []*Group, bshd, forward bool) (*Plan, []error) {
	op, err := New(groups[0], nil, w.cfg)
	require.NoError(t, err)
	plan, err := op.Plan(w.p)
	require.NoError(t, err)
	parts := make([]*part, len(groups))
	for r := range parts {
		parts[r] = w.of(&plan, r, bshd)
		if forward && w.noLSE != nil && w.noLSE[r] {
			parts[r].LSE = attention.Tensor{}
		}
	}
	w.allocated = make([]uint64, len(groups))
	list := onAll(groups, func(r int, g *Group) error {
		op, err := New(g, nil, w.cfg)
		if err != nil {
			return err
		}
		defer func() { w.allocated[r] = op.ScratchBytes(); _ = op.Close() }()
		if forward {
			return op.Forward(context.Background(), nil, parts[r].Args)
		}
		return op.Backward(context.Background(), nil, parts[r].BackwardArgs)
	})
	for _, p := range parts {
		p.collect(forward)
	}
	return &plan, list
}

// drawCall draws a call that a mode can compute over a number of ranks.
func drawCall(t *rapid.T, mode Mode, ranks int) (Config, Problem) {
	cfg := Config{Config: attention.Config{DType: rapid.SampledFrom(attention.DTypes()).Draw(t, "dtype")}, Mode: mode}
	cfg.HeadDim, cfg.HeadDimV = rapid.IntRange(1, 20).Draw(t, "d"), rapid.IntRange(0, 20).Draw(t, "dv")
	cfg.Causal = rapid.SampledFrom([]attention.Causal{attention.CausalNone, attention.TopLeft, attention.BottomRight}).Draw(t, "causal")
	cfg.Order = rapid.SampledFrom([]Order{OrderAuto, OrderContiguous, OrderZigzag, OrderStriped}).Draw(t, "order")
	if rapid.IntRange(0, 3).Draw(t, "window") == 0 {
		cfg.Window = attention.WindowOf(rapid.IntRange(-1, 20).Draw(t, "left"), rapid.IntRange(-1, 20).Draw(t, "right"))
		if cfg.Causal == attention.CausalNone {
			cfg.Align = rapid.SampledFrom([]attention.Causal{attention.TopLeft, attention.BottomRight}).Draw(t, "align")
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "softcap") == 0 {
		cfg.Softcap = 5
	}
	cfg.Schedule = rapid.SampledFrom([]Schedule{ScheduleAuto, ScheduleOverlap, ScheduleGather}).Draw(t, "schedule")
	inner := 1
	switch mode {
	case ModeUlysses:
		inner = ranks
	case Mode2D:
		inner = rapid.SampledFrom(divisors(ranks)).Draw(t, "inner")
		cfg.Inner = inner
	}
	p := Problem{}
	p.B, p.Sq, p.Sk = rapid.IntRange(0, 2).Draw(t, "B"), rapid.IntRange(1, 40).Draw(t, "Sq"), rapid.IntRange(1, 40).Draw(t, "Sk")
	p.Hkv = rapid.SampledFrom(divisors(inner)).Draw(t, "Hkv")
	if p.Hkv == inner {
		p.Hkv *= rapid.IntRange(1, map[bool]int{true: 5, false: 2}[inner == 1]).Draw(t, "more Hkv")
	}
	p.Hq = max(p.Hkv, inner) * rapid.IntRange(1, 2).Draw(t, "group")
	if rapid.IntRange(0, 2).Draw(t, "packed") == 0 {
		p.B = rapid.IntRange(0, 5).Draw(t, "sequences")
		draw := func(label string, most int) []int {
			cu := []int{0}
			for range p.B {
				cu = append(cu, cu[len(cu)-1]+rapid.IntRange(0, most).Draw(t, label))
			}
			return cu
		}
		p.CuQ = draw("rows", p.Sq)
		p.CuK = draw("keys", p.Sk)
		if rapid.Bool().Draw(t, "self") {
			p.CuK, p.Sk = p.CuQ, p.Sq
		}
	}
	if rapid.IntRange(0, 2).Draw(t, "split") == 0 {
		rows, keys := p.extent()
		p.Rows, p.Keys = drawSplit(t, "row split", rows, ranks), drawSplit(t, "key split", keys, ranks)
	}
	return cfg, p
}

func divisors(n int) (list []int) {
	for i := 1; i <= n; i++ {
		if n%i == 0 {
			list = append(list, i)
		}
	}
	return list
}

// sequenceMessages makes the part of each sequence of a batch a message of its own.
func sequenceMessages(t *testing.T) {
	before := messageBytes
	messageBytes = 1
	t.Cleanup(func() { messageBytes = before })
}
