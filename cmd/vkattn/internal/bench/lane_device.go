package bench

import (
	"context"
	"time"

	"vkattn/attention"
	"vkattn/cudapath"
	"vkattn/vk"
)

// deviceLane times by the device's timestamps, one pair around each run and
// a barrier between runs: without it they overlap. A queue without timestamps
// is timed by the wall clock, one submission a run.
type deviceLane struct {
	problem Problem
	stream  *vk.Stream
	memory  [4]*vk.Buffer
	layout  sets
	next    int
	stamps  bool
	events  []*cudapath.Event // of tier cuda, which the stream's timestamps do not see
}

// exportable puts the tensors in CUDA's reach.
func newDeviceLane(ctx context.Context, dev *vk.Device, p Problem, in hostInputs, exportable bool) (l *deviceLane, err error) {
	exportable = exportable && dev.Caps().ExternalMemoryFd // else tier cuda refuses its rows
	l = &deviceLane{problem: p, layout: newSets(p, rotation(dev)), stamps: dev.Caps().Limits.TimestampValidBits > 0}
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
		if l.memory[i], err = dev.NewBuffer((l.layout.bytes(i)+3)&^3, vk.BufferOptions{Name: name, Exportable: exportable}); err != nil {
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
	if op.Config().Tier == attention.TierCUDA {
		return l.timedByCUDA(ctx, op, n)
	}
	if !l.stamps {
		return l.timedByWall(ctx, op, n)
	}
	marks := make([][2]vk.Mark, n)
	for i := range marks {
		l.next = (l.next + 1) % l.layout.count
		if err := firstError(
			l.stream.Barrier,
			func() (err error) { marks[i][0], err = l.stream.Timestamp(); return },
			func() error { return op.Forward(l.stream, l.args(l.next)) },
			func() (err error) { marks[i][1], err = l.stream.Timestamp(); return },
		); err != nil {
			return nil, err
		}
	}
	if err := l.stream.Wait(ctx); err != nil {
		return nil, err
	}
	out := make([]time.Duration, n)
	for i, m := range marks {
		var err error
		if out[i], err = l.stream.Elapsed(m[0], m[1]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (l *deviceLane) timedByWall(ctx context.Context, op *attention.Op, n int) ([]time.Duration, error) {
	out := make([]time.Duration, n)
	for i := range out {
		l.next = (l.next + 1) % l.layout.count
		start := time.Now()
		if err := op.Forward(l.stream, l.args(l.next)); err != nil {
			return nil, err
		}
		if err := l.stream.Wait(ctx); err != nil {
			return nil, err
		}
		out[i] = time.Since(start)
	}
	return out, nil
}

func (l *deviceLane) timer() string {
	if l.stamps {
		return "device"
	}
	return "wall"
}

func (l *deviceLane) sets() int { return l.layout.count }

func (l *deviceLane) close() {
	for _, e := range l.events {
		_ = e.Close()
	}
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
