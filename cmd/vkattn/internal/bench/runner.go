package bench

import (
	"context"
	"time"

	"vkattn/attention"
	"vkattn/cudapath"
	"vkattn/internal/backend"
	"vkattn/internal/hostmem"
	"vkattn/internal/operands"
	"vkattn/internal/plain"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// runner runs and times the rows of one problem. Vulkan tiers are timed by the device's timestamps: one pair
// around each run, with a barrier between runs, which would overlap without it. On a queue without timestamps
// each run is a submission timed by the wall clock, as is tier cpu.
type runner struct {
	*operands.Memory
	cfg     attention.Config
	first   attention.BackwardArgs // of set 0
	outputs map[string]runnerOutput
	layout  sets
	next    int
	vulkan  deviceClock
	cuda    deviceClock       // of tier cuda, whose kernels the stream's timestamps do not see
	context *cudapath.Context // of a CUDA device without Vulkan; nil: none
	events  []*cudapath.Event // its clock
}

// runnerOutput is an output of set 0, by the name of its operand.
type runnerOutput struct {
	*operands.Block
	bytes uint64
}

// newRunner places the problem's data on a device, or on the host for nil: one copy for each input set.
// Memory that is exportable can be imported by CUDA.
func newRunner(ctx context.Context, on *attention.Device, d *data, rotation uint64, exportable bool) (l *runner, err error) {
	l = &runner{cfg: d.problem.Config, first: operands.CloneBackward(d.args), outputs: map[string]runnerOutput{}}
	if l.Memory, err = OpenMemory(on, "bench"); err != nil {
		return nil, err
	}
	dev := on.Vulkan()
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	o := vk.BufferOptions{}
	if l.context = cudapath.ContextOf(on); l.context != nil {
		l.cuda = deviceClock{order: l.Order(), stamps: true}
	}
	if dev != nil {
		o.Exportable = exportable && dev.Caps().ExternalMemoryFd // without it tier cuda refuses its rows
		l.Stream.NoBarrier = true                                // runs may overlap, as in a peer
		l.vulkan = deviceClock{stream: l.Stream, stamps: dev.Caps().Limits.TimestampValidBits > 0}
		l.cuda = deviceClock{stream: l.Stream, stamps: true}
	}
	list := operands.ListBackward(problem.Config(l.cfg), &l.first)
	l.layout = newSets(list, rotation)
	blocks, inputs := make([]*operands.Block, len(list)), map[int]*operands.Block{}
	for i, x := range list {
		in := x.Host()
		if x.Of < i {
			blocks[i] = blocks[x.Of]
			blocks[i].Hold(x)
			continue
		}
		o.Name = x.Name
		if blocks[i], err = l.New(l.layout.bytes(i), o); err != nil {
			return l, err
		}
		blocks[i].Hold(x)
		if x.Output {
			l.outputs[x.Name] = runnerOutput{blocks[i], uint64(len(in))}
			continue
		}
		inputs[i] = blocks[i]
		if err = blocks[i].Write(0, in); err != nil {
			return l, err
		}
	}
	if err = l.Barrier(); err != nil {
		return l, err
	}
	for i, b := range inputs {
		for set := 1; set < l.layout.count && l.layout.stride[i] > 0; set++ {
			if err = b.Repeat(l.layout.stride[i]*uint64(set), l.layout.size[i]); err != nil {
				return l, err
			}
		}
	}
	return l, l.Wait(ctx)
}

// args are the arguments of input set 0 in the runner's memory.
func (l *runner) args() attention.BackwardArgs { return operands.CloneBackward(l.first) }

// results computes input set 0 once and returns the outputs of the pass by the name of their operand: O, and
// LSE if the problem has it, or the gradients. They are filled with NaN before. Gradients need O and LSE, which
// it computes of every set.
func (l *runner) results(ctx context.Context, w *work) (map[string][]byte, error) {
	if w.pass != PassForward {
		for set := range l.layout.count {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			// Behind a barrier: plain attention has one P for all sets.
			if err := operands.InTurn(func() error {
				return w.forward().Forward(l.Order(), l.layout.args(l.cfg, l.first, set).Args)
			}, l.Barrier); err != nil {
				return nil, err
			}
		}
	}
	out := map[string][]byte{}
	for name, o := range l.outputs {
		if (name == "O" || name == "LSE") == (w.pass == PassForward) {
			out[name] = nil
			if err := o.Spoil(o.bytes); err != nil {
				return nil, err
			}
		}
	}
	if err := operands.InTurn(l.Barrier, func() error {
		if w.pass != PassForward {
			return w.op.Backward(l.Order(), l.args())
		}
		return w.run(l.Order(), l.args())
	}, l.Barrier); err != nil {
		return nil, err
	}
	for name := range out {
		var err error
		if out[name], err = l.outputs[name].View(ctx, l.outputs[name].bytes); err != nil {
			return nil, err
		}
	}
	return out, l.Wait(ctx)
}

// timed runs n times, each on the next input set, and returns the time of each run.
func (l *runner) timed(ctx context.Context, w *work, n int) ([]time.Duration, error) {
	next := func() attention.BackwardArgs {
		l.next = (l.next + 1) % l.layout.count
		return l.layout.args(l.cfg, l.first, l.next)
	}
	if l.OnHost() {
		var out []time.Duration
		for range n {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			args := next()
			elapsed := Stopwatch()
			if err := w.run(l.Order(), args); err != nil {
				return nil, err
			}
			out = append(out, elapsed())
		}
		return out, nil
	}
	run := func(s *vk.Stream) error {
		args := next()
		defer s.Label(w.name)()
		return w.run(l.Order(), args)
	}
	if w.cuda {
		return l.cuda.orWall(ctx, n, run, func() ([]time.Duration, error) { return l.timedByEvents(ctx, run, n) })
	}
	return l.vulkan.timed(ctx, n, run)
}

// timedByEvents times tier cuda by CUDA events around each kernel. All runs of a batch are
// in one turn of CUDA, so that the two queue changes are not part of a kernel's time: a
// Vulkan stream pays for them once, however many kernels lie between.
func (l *runner) timedByEvents(ctx context.Context, run func(*vk.Stream) error, n int) ([]time.Duration, error) {
	cuda, err := l.context, error(nil)
	if cuda == nil {
		cuda, err = cudapath.Open(l.Device)
	}
	if err != nil {
		return nil, err
	}
	for len(l.events) < 2*n {
		e, err := cuda.NewEvent()
		if err != nil {
			return nil, err
		}
		l.events = append(l.events, e)
	}
	record := func(e *cudapath.Event) error {
		if l.context != nil {
			return cudapath.StreamOf(l.Order()).Record(e)
		}
		s, err := cuda.Turn(l.Stream)
		if err != nil {
			return err
		}
		return s.Record(e)
	}
	for i := range n {
		if err := operands.InTurn(
			func() error { return record(l.events[2*i]) },
			func() error { return run(l.Stream) },
			func() error { return record(l.events[2*i+1]) },
		); err != nil {
			return nil, err
		}
	}
	if err := l.Wait(ctx); err != nil {
		return nil, err
	}
	out := make([]time.Duration, n)
	for i := range out {
		if out[i], err = l.events[2*i+1].Since(l.events[2*i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// clock times a row; nil: the wall clock.
func (l *runner) clock(w *work) *deviceClock {
	switch {
	case l.OnHost():
		return nil
	case w.cuda:
		return &l.cuda
	}
	return &l.vulkan
}

func (l *runner) close() {
	for _, e := range l.events {
		_ = e.Close()
	}
	_ = l.Close()
}

// work is what a row runs.
type work struct {
	op    operation
	saved operation // computes the O and LSE that gradients take; nil: op
	pass  Pass
	split func(attention.Args) []attention.Args // one run as several calls; nil: one call
	cuda  bool                                  // tier cuda, timed by CUDA events
	name  string                                // label of a run for debugging tools

	// planned fills in what the plan of the call knows of a row, once the call has its memory.
	planned func(*Row, *setup) error
}

// operation is what records the passes of a row: *attention.Op or unfused.
type operation interface {
	Forward(*attention.Stream, attention.Args) error
	Backward(*attention.Stream, attention.BackwardArgs) error
}

// unfused is plain attention as an operation.
type unfused struct{ *plain.Op }

func (u unfused) Forward(s *attention.Stream, a attention.Args) error {
	return u.Op.Forward(s.Vulkan(), a)
}

func (u unfused) Backward(s *attention.Stream, a attention.BackwardArgs) error {
	return u.Op.Backward(s.Vulkan(), a)
}

// forward is what computes O and LSE before gradients are timed.
func (w *work) forward() operation {
	if w.saved != nil {
		return w.saved
	}
	return w.op
}

// run records one run on a stream, or computes it on the CPU for a nil stream.
func (w *work) run(stream *attention.Stream, a attention.BackwardArgs) error {
	if w.pass != PassBackward {
		calls := []attention.Args{a.Args}
		if w.split != nil {
			calls = w.split(a.Args)
		}
		for _, one := range calls {
			if err := w.op.Forward(stream, one); err != nil {
				return err
			}
		}
	}
	if s := stream.Vulkan(); w.pass == PassBoth && s != nil {
		if err := s.Barrier(); err != nil {
			return err
		}
	}
	if w.pass == PassForward {
		return nil
	}
	return w.op.Backward(stream, a)
}

// Rotation is the number of bytes of tensors that successive runs cycle through, so that
// no run finds its inputs in the last-level cache: 50 MB on an H200, 256 MB of Infinity
// Cache on the largest AMD cards.
const (
	deviceRotation = 288 << 20
	hostRotation   = 64 << 20
)

// OnCPU reports whether a device computes on the CPU: nil, or a driver of it.
func OnCPU(dev *attention.Device) bool {
	if v := dev.Vulkan(); v != nil {
		return v.Info().Type == vk.DeviceCPU
	}
	return cudapath.ContextOf(dev) == nil
}

// OpenMemory makes memory on a device, or on the host for nil.
func OpenMemory(dev *attention.Device, name string) (*operands.Memory, error) {
	if dev == nil {
		return operands.OpenMemory(backend.CPU{}, name)
	}
	return operands.OpenMemory(backend.HomeOf(dev).Backend(), name)
}

// rotation is the rotation of a device, or of the CPU for nil.
func rotation(dev *attention.Device) uint64 {
	if OnCPU(dev) {
		return hostRotation
	}
	return deviceRotation
}

// rotation is the number of bytes that the input sets fill on a device, or on the CPU for
// nil. It is 0 if rows want warm caches.
func (b *Bench) rotation(dev *attention.Device) uint64 {
	if b.WarmCache {
		return 0
	}
	return rotation(dev)
}

// sets is the layout of the copies of a problem's operands: input set i of an operand
// begins i*stride bytes into its memory. Tables and lists have stride 0: all sets share
// them.
type sets struct {
	count  int
	size   []uint64 // bytes of each operand
	stride []uint64
}

// setAlign is the alignment of every set, so that all sets are aligned like the first.
const setAlign = 4096

// newSets lays out as many sets as fill rotation bytes.
func newSets(list []operands.Operand, rotation uint64) sets {
	var s sets
	var total uint64
	for i, o := range list {
		size, stride := uint64(len(o.Host())), uint64(0)
		switch {
		case o.Of < i:
			stride = s.stride[o.Of]
		case o.Streamed:
			align := lcm(setAlign, uint64(o.UnitBytes()))
			stride = max(1, (size+align-1)/align) * align
			total += stride
		}
		s.size, s.stride = append(s.size, size), append(s.stride, stride)
	}
	s.count = int(max(1, (rotation+total-1)/total))
	return s
}

func lcm(a, b uint64) uint64 {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// bytes is the memory of operand i in all sets.
func (s *sets) bytes(i int) uint64 { return s.stride[i]*uint64(s.count-1) + s.size[i] }

// args returns the arguments of a set, given the arguments of set 0.
func (s *sets) args(cfg attention.Config, first attention.BackwardArgs, set int) attention.BackwardArgs {
	a := operands.CloneBackward(first)
	for i, o := range operands.ListBackward(problem.Config(cfg), &a) {
		o.Skip(int64(s.stride[i] * uint64(set)))
	}
	return a
}

// countSets is the number of sets of a problem without options, for peers.
func countSets(p Problem, rotation uint64) int {
	q, k, v, o := p.tensors()
	var total uint64
	list := []uint64{q, k, v, o}
	if p.Pass != PassForward {
		list = append(list, q, k, v, o)
	}
	for _, n := range list {
		total = hostmem.Sum(total, hostmem.Product(hostmem.Sum(hostmem.Product(n, uint64(p.Config.DType.Size())),
			setAlign-1)/setAlign, setAlign))
	}
	if total >= rotation {
		return 1
	}
	return int((rotation + total - 1) / total)
}
