package bench

import (
	"context"
	"time"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/operands"
	"vkattn/vk"
)

// runner runs and times the rows of one problem on a device or on the CPU. It holds the
// memory of the arguments.
type runner interface {
	// once computes input set 0 and returns O, and LSE if the problem has it. They are filled
	// with NaN before.
	once(ctx context.Context, w *work) (o, lse []byte, err error)
	// gradients computes O and LSE of every input set and the gradients of set 0, which are
	// filled with NaN before. It returns the outputs by the name of their operand.
	gradients(ctx context.Context, w *work) (map[string][]byte, error)
	// timed runs n times, each on the next input set, and returns the time of each run.
	timed(ctx context.Context, w *work, n int) ([]time.Duration, error)
	// args are the arguments of input set 0 in the runner's memory.
	args() attention.Args
	all() attention.BackwardArgs
	sets() int
	clock(w *work) *deviceClock // that times a row; nil: the wall clock
	close()
}

// work is what a row runs.
type work struct {
	op    operation
	saved operation // computes the O and LSE that gradients take; nil: op
	pass  Pass
	split func(attention.Args) []attention.Args // one run as several calls; nil: one call
	cuda  bool                                  // tier cuda, timed by CUDA events
	name  string                                // label of a run for debugging tools
}

// operation is what records the passes of a row: *attention.Op or *plain.Op.
type operation interface {
	Forward(*vk.Stream, attention.Args) error
	Backward(*vk.Stream, attention.BackwardArgs) error
}

// forward is what computes O and LSE before gradients are timed.
func (w *work) forward() operation {
	if w.saved != nil {
		return w.saved
	}
	return w.op
}

// run records one run on a stream, or computes it on the CPU for a nil stream.
func (w *work) run(s *vk.Stream, a attention.BackwardArgs) error {
	if w.pass == PassBackward {
		return w.op.Backward(s, a)
	}
	if w.pass == PassBoth {
		if err := w.op.Forward(s, a.Args); err != nil {
			return err
		}
		if s != nil {
			if err := s.Barrier(); err != nil {
				return err
			}
		}
		return w.op.Backward(s, a)
	}
	if w.split == nil {
		return w.op.Forward(s, a.Args)
	}
	for _, one := range w.split(a.Args) {
		if err := w.op.Forward(s, one); err != nil {
			return err
		}
	}
	return nil
}

// cpuRunner runs tier cpu and times it by the wall clock.
type cpuRunner struct {
	cfg    attention.Config
	first  attention.BackwardArgs // of set 0
	o      map[string][]byte      // the outputs by the name of their operand
	layout sets
	next   int
}

func newCPURunner(d *data, rotation uint64) *cpuRunner {
	l := &cpuRunner{cfg: d.problem.Config, first: operands.CloneBackward(d.all()), o: map[string][]byte{}}
	list := operands.ListBackward(l.cfg, &l.first)
	l.layout = newSets(list, rotation)
	var placed [][]byte
	for i, o := range list {
		in := o.Host()
		if o.Of < i {
			placed = append(placed, placed[o.Of])
			o.OnHost(placed[i])
			continue
		}
		memory := make([]byte, l.layout.bytes(i))
		if o.Output {
			l.o[o.Name] = memory[:len(in)]
		} else {
			copies := l.layout.count
			if l.layout.stride[i] == 0 {
				copies = 1
			}
			for set := range copies {
				copy(memory[l.layout.stride[i]*uint64(set):], in)
			}
		}
		placed = append(placed, memory)
		o.OnHost(memory)
	}
	return l
}

func (l *cpuRunner) args() attention.Args { return operands.Clone(l.first.Args) }

func (l *cpuRunner) all() attention.BackwardArgs { return operands.CloneBackward(l.first) }

func (l *cpuRunner) once(_ context.Context, w *work) (o, lse []byte, err error) {
	o, lse = l.o["O"], l.o["LSE"]
	for _, out := range [][]byte{o, lse} {
		for i := range out {
			out[i] = 0xff
		}
	}
	if err := w.run(nil, l.all()); err != nil {
		return nil, nil, err
	}
	return o, lse, nil
}

func (l *cpuRunner) gradients(ctx context.Context, w *work) (map[string][]byte, error) {
	for set := range l.layout.count {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := w.forward().Forward(nil, l.layout.args(l.cfg, l.first, set).Args); err != nil {
			return nil, err
		}
	}
	for name, o := range l.o {
		for i := range o {
			if name != "O" && name != "LSE" {
				o[i] = 0xff
			}
		}
	}
	return l.o, w.op.Backward(nil, l.all())
}

func (l *cpuRunner) timed(ctx context.Context, w *work, n int) ([]time.Duration, error) {
	var out []time.Duration
	for range n {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		l.next = (l.next + 1) % l.layout.count
		args := l.layout.args(l.cfg, l.first, l.next)
		start := time.Now()
		if err := w.run(nil, args); err != nil {
			return nil, err
		}
		out = append(out, time.Since(start))
	}
	return out, nil
}

func (l *cpuRunner) sets() int                { return l.layout.count }
func (l *cpuRunner) clock(*work) *deviceClock { return nil }
func (l *cpuRunner) close()                   {}
