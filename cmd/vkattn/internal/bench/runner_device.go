package bench

import (
	"context"
	"time"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/operands"
	"vkattn/cudapath"
	"vkattn/vk"
)

// deviceRunner runs Vulkan tiers and times them by the device's timestamps: one pair
// around each run, with a barrier between runs, which would overlap without it. On a
// queue without timestamps each run is a submission timed by the wall clock.
type deviceRunner struct {
	deviceClock
	cfg    attention.Config
	first  attention.BackwardArgs // of set 0
	memory []*vk.Buffer
	o      map[string]deviceOutput // by the name of their operand
	layout sets
	next   int
	cuda   deviceClock       // of tier cuda, whose kernels the stream's timestamps do not see
	events []*cudapath.Event // its clock
}

// newDeviceRunner uploads the problem's data, one copy for each input set. Memory that
// is exportable can be imported by CUDA.
func newDeviceRunner(ctx context.Context, dev *vk.Device, d *data, rotation uint64, exportable bool) (l *deviceRunner, err error) {
	exportable = exportable && dev.Caps().ExternalMemoryFd // without it tier cuda refuses its rows
	l = &deviceRunner{cfg: d.problem.Config, first: operands.CloneBackward(d.all()), o: map[string]deviceOutput{}, deviceClock: deviceClock{stamps: dev.Caps().Limits.TimestampValidBits > 0}}
	made := l // a return may set l to nil
	defer func() {
		if err != nil {
			made.close()
		}
	}()
	if l.stream, err = dev.NewStream("bench"); err != nil {
		return nil, err
	}
	l.cuda = deviceClock{stream: l.stream, stamps: true}
	list := operands.ListBackward(l.cfg, &l.first)
	l.layout = newSets(list, rotation)
	var inputs []int
	for i, o := range list {
		in := o.Host()
		if o.Of < i {
			l.memory = append(l.memory, l.memory[o.Of])
			o.OnDevice(l.memory[i])
			continue
		}
		b, err := dev.NewBuffer((l.layout.bytes(i)+3)&^3, vk.BufferOptions{Name: o.Name, Exportable: exportable})
		if err != nil {
			return l, err
		}
		l.memory = append(l.memory, b)
		o.OnDevice(b)
		if o.Output {
			l.o[o.Name] = deviceOutput{b, uint64(len(in))}
			continue
		}
		inputs = append(inputs, i)
		if err = l.stream.Upload(b, 0, in); err != nil {
			return l, err
		}
	}
	if err = l.stream.Barrier(); err != nil {
		return l, err
	}
	for _, i := range inputs {
		if l.layout.stride[i] == 0 {
			continue
		}
		b, size := l.memory[i], (l.layout.size[i]+3)&^3 // below the stride of the sets
		for set := 1; set < l.layout.count; set++ {
			size := min(size, b.Size()-l.layout.stride[i]*uint64(set))
			if err = l.stream.Copy(vk.BufferRange{Buffer: b, Offset: l.layout.stride[i] * uint64(set), Size: size}, vk.BufferRange{Buffer: b, Size: size}); err != nil {
				return l, err
			}
		}
	}
	return l, l.stream.Wait(ctx)
}

// deviceOutput is an output of set 0.
type deviceOutput struct {
	buffer *vk.Buffer
	bytes  uint64
}

func (o deviceOutput) fill(s *vk.Stream) error {
	return s.Fill(vk.BufferRange{Buffer: o.buffer, Size: (o.bytes + 3) &^ 3}, 0xffffffff)
}

func (l *deviceRunner) args() attention.Args { return operands.Clone(l.first.Args) }

func (l *deviceRunner) all() attention.BackwardArgs { return operands.CloneBackward(l.first) }

func (l *deviceRunner) once(ctx context.Context, w *work) (o, lse []byte, err error) {
	each := func(f func(name string, out deviceOutput) error) error {
		for _, name := range []string{"O", "LSE"} {
			if out, has := l.o[name]; has {
				if err := f(name, out); err != nil {
					return err
				}
			}
		}
		return nil
	}
	host := map[string][]byte{}
	err = firstError(
		func() error { return each(func(_ string, out deviceOutput) error { return out.fill(l.stream) }) },
		l.stream.Barrier,
		func() error { return w.run(l.stream, l.all()) },
		l.stream.Barrier,
		func() error {
			return each(func(name string, out deviceOutput) error {
				host[name] = make([]byte, out.bytes)
				return l.stream.Download(ctx, host[name], out.buffer, 0)
			})
		},
		func() error { return l.stream.Wait(ctx) },
	)
	if err != nil {
		return nil, nil, err
	}
	return host["O"], host["LSE"], nil
}

func (l *deviceRunner) gradients(ctx context.Context, w *work) (map[string][]byte, error) {
	for set := range l.layout.count {
		if err := w.forward().Forward(l.stream, l.layout.args(l.cfg, l.first, set).Args); err != nil {
			return nil, err
		}
		if err := l.stream.Barrier(); err != nil { // plain attention has one P for all sets
			return nil, err
		}
	}
	out := map[string][]byte{}
	for name, o := range l.o {
		if name == "O" || name == "LSE" {
			continue
		}
		out[name] = make([]byte, o.bytes)
		if err := o.fill(l.stream); err != nil {
			return nil, err
		}
	}
	if err := firstError(l.stream.Barrier, func() error { return w.op.Backward(l.stream, l.all()) }, l.stream.Barrier); err != nil {
		return nil, err
	}
	for name, host := range out {
		if err := l.stream.Download(ctx, host, l.o[name].buffer, 0); err != nil {
			return nil, err
		}
	}
	return out, l.stream.Wait(ctx)
}

func (l *deviceRunner) timed(ctx context.Context, w *work, n int) ([]time.Duration, error) {
	run := func(s *vk.Stream) error {
		l.next = (l.next + 1) % l.layout.count
		defer s.Label(w.name)()
		return w.run(s, l.layout.args(l.cfg, l.first, l.next))
	}
	if w.cuda {
		return l.cuda.orWall(ctx, n, run, func() ([]time.Duration, error) { return l.timedByEvents(ctx, run, n) })
	}
	return l.deviceClock.timed(ctx, n, run)
}

func (l *deviceRunner) clock(w *work) *deviceClock {
	if w.cuda {
		return &l.cuda
	}
	return &l.deviceClock
}

func (l *deviceRunner) sets() int { return l.layout.count }

func (l *deviceRunner) close() {
	for _, e := range l.events {
		_ = e.Close()
	}
	if l.stream != nil {
		_ = l.stream.Close()
	}
	for _, b := range l.memory {
		_ = b.Close()
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
