package bench

import (
	"context"
	"time"

	"vkattn/attention"
	"vkattn/attention/inputs"
	"vkattn/vk"
)

// lane is where the tiers of one problem run: its inputs, and a clock.
type lane interface {
	// once computes set 0 into memory full of NaN and returns O.
	once(ctx context.Context, op *attention.Op) ([]byte, error)
	// timed runs n times, each on the next set, and returns what each took.
	timed(ctx context.Context, op *attention.Op, n int) ([]time.Duration, error)
	sets() int
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

func (l *cpuLane) sets() int { return l.layout.count }
func (l *cpuLane) close()    {}

// deviceLane times by the device's timestamps, one pair around each run and
// a barrier between runs: without it they overlap.
type deviceLane struct {
	problem Problem
	stream  *vk.Stream
	memory  [4]*vk.Buffer
	layout  sets
	next    int
}

func newDeviceLane(ctx context.Context, dev *vk.Device, p Problem, in hostInputs) (l *deviceLane, err error) {
	l = &deviceLane{problem: p, layout: newSets(p, deviceRotation)}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.stream, err = dev.NewStream("bench"); err != nil {
		return nil, err
	}
	for i := range l.memory {
		name := [4]string{"Q", "K", "V", "O"}[i]
		if l.memory[i], err = dev.NewBuffer((l.layout.bytes(i)+3)&^3, vk.BufferOptions{Name: name}); err != nil {
			return nil, err
		}
		if i == 3 {
			continue
		}
		if err = l.stream.Upload(l.memory[i], 0, in[i]); err != nil {
			return nil, err
		}
	}
	if err = l.stream.Barrier(); err != nil {
		return nil, err
	}
	for i, b := range l.memory[:3] {
		size := (l.layout.size[i] + 3) &^ 3 // sets are further apart than that
		for set := 1; set < l.layout.count; set++ {
			size := min(size, b.Size()-l.layout.stride[i]*uint64(set))
			if err = l.stream.Copy(vk.BufferRange{Buffer: b, Offset: l.layout.stride[i] * uint64(set), Size: size}, vk.BufferRange{Buffer: b, Size: size}); err != nil {
				return nil, err
			}
		}
	}
	return l, l.stream.Wait(ctx)
}

func (l *deviceLane) args(set int) attention.Args {
	return l.layout.args(l.problem, set, func(i int, t *attention.Tensor) { t.Buffer = l.memory[i] })
}

func (l *deviceLane) once(ctx context.Context, op *attention.Op) ([]byte, error) {
	out := make([]byte, l.layout.size[3])
	if err := firstError(
		func() error {
			return l.stream.Fill(vk.BufferRange{Buffer: l.memory[3], Size: (l.layout.size[3] + 3) &^ 3}, 0xffffffff)
		},
		l.stream.Barrier,
		func() error { return op.Forward(l.stream, l.args(0)) },
		l.stream.Barrier,
		func() error { return l.stream.Download(ctx, out, l.memory[3], 0) },
		func() error { return l.stream.Wait(ctx) },
	); err != nil {
		return nil, err
	}
	return out, nil
}

func (l *deviceLane) timed(ctx context.Context, op *attention.Op, n int) ([]time.Duration, error) {
	marks := make([][2]vk.Mark, n)
	for i := range marks {
		l.next = (l.next + 1) % l.layout.count
		var err error
		if err = l.stream.Barrier(); err != nil {
			return nil, err
		}
		if marks[i][0], err = l.stream.Timestamp(); err != nil {
			return nil, err
		}
		if err = op.Forward(l.stream, l.args(l.next)); err != nil {
			return nil, err
		}
		if err = l.stream.Barrier(); err != nil {
			return nil, err
		}
		if marks[i][1], err = l.stream.Timestamp(); err != nil {
			return nil, err
		}
	}
	if err := l.stream.Wait(ctx); err != nil {
		return nil, err
	}
	var out []time.Duration
	for _, m := range marks {
		d, err := l.stream.Elapsed(m[0], m[1])
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

func (l *deviceLane) sets() int { return l.layout.count }

func (l *deviceLane) close() {
	if l.stream != nil {
		_ = l.stream.Close()
	}
	for _, b := range l.memory {
		if b != nil {
			_ = b.Close()
		}
	}
}

func firstError(steps ...func() error) error {
	for _, f := range steps {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}
