package bench

import (
	"context"
	"time"

	"vkattn/attention"
	"vkattn/attention/inputs"
)

// lane is where the tiers of one problem run: its inputs, and a clock.
type lane interface {
	// once computes set 0 into memory full of NaN and returns O.
	once(ctx context.Context, op *attention.Op) ([]byte, error)
	// timed runs n times, each on the next set, and returns what each took.
	timed(ctx context.Context, op *attention.Op, n int) ([]time.Duration, error)
	sets() int
	timer() string // whose clock: "device" or "wall"
	close()
}

// hostInputs are Q, K and V of set 0, from which every lane copies.
type hostInputs [3][]byte

func newInputs(p Problem, seed uint64) hostInputs {
	q, k, v, _ := p.tensors()
	var in hostInputs
	for i, n := range []uint64{q, k, v} {
		in[i] = inputs.New(int64(n), p.Config.DType, inputs.Normal, seed+uint64(i))
	}
	return in
}

// cpuLane times by the wall clock.
type cpuLane struct {
	problem Problem
	memory  [4][]byte
	layout  sets
	next    int
}

func newCPULane(p Problem, in hostInputs) *cpuLane {
	l := &cpuLane{problem: p, layout: newSets(p, hostRotation)}
	for i := range l.memory {
		l.memory[i] = make([]byte, l.layout.bytes(i))
		if i == 3 {
			continue
		}
		for set := range l.layout.count {
			copy(l.memory[i][l.layout.stride[i]*uint64(set):], in[i])
		}
	}
	return l
}

func (l *cpuLane) args(set int) attention.Args {
	return l.layout.args(l.problem, set, func(i int, t *attention.Tensor) { t.Host = l.memory[i] })
}

func (l *cpuLane) once(_ context.Context, op *attention.Op) ([]byte, error) {
	o := l.memory[3][:l.layout.size[3]]
	for i := range o {
		o[i] = 0xff
	}
	if err := op.Forward(nil, l.args(0)); err != nil {
		return nil, err
	}
	return o, nil
}

func (l *cpuLane) timed(ctx context.Context, op *attention.Op, n int) ([]time.Duration, error) {
	var out []time.Duration
	for range n {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		l.next = (l.next + 1) % l.layout.count
		args := l.args(l.next)
		start := time.Now()
		if err := op.Forward(nil, args); err != nil {
			return nil, err
		}
		out = append(out, time.Since(start))
	}
	return out, nil
}

func (l *cpuLane) sets() int     { return l.layout.count }
func (l *cpuLane) timer() string { return "wall" }
func (l *cpuLane) close()        {}
