package attention_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	"vkattn/attention/merge"
	"vkattn/internal/backend"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/internal/testdevices"
	"vkattn/vk"
)

// fakeDevice is a third backend, as one of CUDA would be: memory that only its own kernels reach, at addresses of its own,
// streams that compute when they are submitted, and operations. Its kernels are those of the CPU.
type fakeDevice struct{ memories, streams, operations int } // not closed

func (d *fakeDevice) String() string           { return "fake" }
func (d *fakeDevice) Vulkan() *vk.Device       { return nil }
func (d *fakeDevice) Kernels() backend.Kernels { return fakeKernels{d} }
func (d *fakeDevice) Shared() backend.Stream   { return nil }
func (d *fakeDevice) Close() error             { return nil }

func (d *fakeDevice) NewMemory(n int64) (backend.Memory, error) {
	if n > 1<<30 {
		return nil, vk.ErrOutOfMemory
	}
	d.memories++
	m := &fakeMemory{dev: d, bytes: bytes.Repeat([]byte{0xff}, int(n))}
	m.named = problem.NewMemory(m)
	return m, nil
}

func (d *fakeDevice) NewStream(string) (backend.Stream, error) {
	d.streams++
	return &fakeStream{dev: d}, nil
}

type fakeMemory struct {
	dev   *fakeDevice
	bytes []byte
	named *problem.Memory
}

func (m *fakeMemory) Device() any            { return m.dev }
func (m *fakeMemory) Address() uint64        { return uint64(uintptr(unsafe.Pointer(&m.bytes[0]))) }
func (m *fakeMemory) Size() uint64           { return uint64(len(m.bytes)) }
func (m *fakeMemory) Tensor() problem.Tensor { return problem.Tensor{Memory: m.named} }

func (m *fakeMemory) Clear(s backend.Stream) error { return m.Write(s, 0, make([]byte, len(m.bytes))) }

func (m *fakeMemory) Write(s backend.Stream, at int64, b []byte) error {
	b = bytes.Clone(b)
	return s.(*fakeStream).record(func() error { copy(m.bytes[at:], b); return nil })
}

func (m *fakeMemory) Read(ctx context.Context, s backend.Stream, at int64, b []byte) error {
	err := s.Wait(ctx)
	copy(b, m.bytes[at:])
	return err
}

func (m *fakeMemory) Copy(s backend.Stream, to, from, n int64) error {
	return s.(*fakeStream).record(func() error { copy(m.bytes[to:to+n], m.bytes[from:]); return nil })
}

func (m *fakeMemory) Close() error {
	m.dev.memories--
	return nil
}

type fakeStream struct {
	dev   *fakeDevice
	queue []func() error
}

func (s *fakeStream) record(f func() error) error {
	s.queue = append(s.queue, f)
	return nil
}

func (s *fakeStream) Device() backend.Device     { return s.dev }
func (s *fakeStream) Vulkan() *vk.Stream         { return nil }
func (s *fakeStream) Wait(context.Context) error { return s.Submit() }

func (s *fakeStream) Submit() error {
	for _, f := range s.queue {
		if err := f(); err != nil {
			return err
		}
	}
	s.queue = nil
	return nil
}

func (s *fakeStream) Close() error {
	s.dev.streams--
	return nil
}

// bare is a tensor as the kernels of the device see it.
func bare(t problem.Tensor) problem.Tensor {
	if t.Memory == nil {
		return problem.Tensor{}
	}
	return problem.Tensor{Host: problem.BackingOf(t.Memory).(*fakeMemory).bytes, Offset: t.Offset, Strides: t.Strides}
}

func bareVector(v problem.Vector) problem.Vector {
	t := bare(v.Tensor())
	return problem.Vector{Host: t.Host, Offset: t.Offset}
}

func bareArgs(a problem.Args) problem.Args {
	for _, t := range []*problem.Tensor{&a.Q, &a.K, &a.V, &a.O, &a.LSE} {
		*t = bare(*t)
	}
	if v := a.Varlen; v != nil {
		a.Varlen = &problem.Varlen{CuQ: bareVector(v.CuQ), CuK: bareVector(v.CuK), TotalQ: v.TotalQ, TotalK: v.TotalK,
			UsedQ: bareVector(v.UsedQ), UsedK: bareVector(v.UsedK)}
	}
	if g := a.Pages; g != nil {
		a.Pages = &problem.Pages{Table: bareVector(g.Table), Stride: g.Stride, PageSize: g.PageSize, Count: g.Count}
	}
	return a
}

type fakeKernels struct{ dev *fakeDevice }

// fakeOp is an operation of the fake device.
type fakeOp struct {
	dev   *fakeDevice
	cfg   attention.Config
	add   *kvcache.Append
	merge *merge.Merge
	sum   *merge.Sum
}

func (k fakeKernels) Attention(cfg problem.Config) (backend.Attention, error) {
	if cfg.Softcap != 0 {
		return nil, fmt.Errorf("%w: the fake device has no softcap", attention.ErrUnsupported)
	}
	k.dev.operations++
	return fakeAttention{fakeOp{dev: k.dev, cfg: attention.Config(cfg)}}, nil
}

func (k fakeKernels) Append(cfg backend.AppendConfig) (backend.Append, error) {
	k.dev.operations++
	c := kvcache.AppendConfig{DType: cfg.DType, HeadDim: cfg.HeadDim, HeadDimV: cfg.HeadDimV, KeyType: cfg.KeyType, ValueType: cfg.ValueType,
		Rotary: kvcache.Rotary{Dim: cfg.RotaryDim, First: cfg.RotaryFirst}}
	if cfg.RotaryHalfSplit {
		c.Rotary.Style = kvcache.RotaryHalfSplit
	}
	add, err := kvcache.NewAppend(nil, c)
	return fakeOp{dev: k.dev, add: add}, err
}

func (k fakeKernels) Merge(cfg backend.MergeConfig) (backend.Merge, error) {
	k.dev.operations++
	c := merge.MergeConfig{DType: cfg.DType, HeadDim: cfg.HeadDim, F32States: cfg.Sum || cfg.StateType != cfg.DType}
	if cfg.Sum {
		sum, err := merge.NewSum(nil, c)
		return fakeOp{dev: k.dev, sum: sum}, err
	}
	m, err := merge.NewMerge(nil, c)
	return fakeOp{dev: k.dev, merge: m}, err
}

func (f fakeOp) Plan(a problem.Args) (problem.Plan, error) {
	return problem.Plan{Tier: attention.TierCUDA, Kernel: "fake", Reason: fmt.Sprint(a.Sq, " rows")}, nil
}

func (f fakeOp) PlanBackward(a problem.BackwardArgs) (problem.BackwardPlan, error) {
	return problem.BackwardPlan{Tier: attention.TierCUDA, Reason: fmt.Sprint(a.Sk, " keys")}, nil
}

func (f fakeOp) Prepare() error { return nil }

func (f fakeOp) Close() error {
	f.dev.operations--
	return nil
}

type fakeAttention struct{ fakeOp }

func (f fakeAttention) Prepare(problem.Args) error                 { return nil }
func (f fakeAttention) PrepareBackward(problem.BackwardArgs) error { return nil }

func (f fakeAttention) Forward(s backend.Stream, a problem.Args) error {
	a = bareArgs(a)
	return s.(*fakeStream).record(func() error { return attention.ForwardCPU(f.cfg, a) })
}

func (f fakeAttention) Backward(s backend.Stream, a problem.BackwardArgs) error {
	a.Args = bareArgs(a.Args)
	for _, t := range []*problem.Tensor{&a.DO, &a.DLSE, &a.DQ, &a.DK, &a.DV} {
		*t = bare(*t)
	}
	return s.(*fakeStream).record(func() error { return attention.BackwardCPU(f.cfg, a) })
}

func (f fakeOp) Append(s backend.Stream, c backend.AppendCall) error {
	vector := func(l tensors.Layout) problem.Vector {
		return bareVector(problem.Vector{Memory: l.Tensor.Memory, Offset: l.Tensor.Offset})
	}
	a := kvcache.AppendArgs{B: c.Sequences, Hkv: int(c.K.Counts[1]), Hq: int(c.Q.Counts[1]), K: bare(c.K.Tensor), V: bare(c.V.Tensor),
		KCache: bare(c.KCache.Tensor), VCache: bare(c.VCache.Tensor), Capacity: int(c.Limit), Used: vector(c.Used),
		KScale: vector(c.KScale), VScale: vector(c.VScale), Cos: vector(c.Cos), Sin: vector(c.Sin), Positions: int(c.Limit),
		Q: bare(c.Q.Tensor), QOut: bare(c.QOut.Tensor)}
	switch {
	case c.Packed:
		a.CuNew, a.TotalNew = vector(c.Lengths), c.Rows
	case c.Counted:
		a.UsedNew = vector(c.Lengths)
		fallthrough
	default:
		a.New = c.Rows
	}
	if c.Paged {
		a.Pages = &problem.Pages{Table: vector(c.Table), Stride: c.TableStride, PageSize: c.PageRows, Count: c.Pages}
	}
	return s.(*fakeStream).record(func() error { return f.add.Forward(nil, a) })
}

func (f fakeOp) Merge(s backend.Stream, c backend.MergeCall) error {
	states := func(o, lse backend.State) merge.States {
		return merge.States{O: bare(o.Tensor), LSE: bare(lse.Tensor), Count: int(o.States), StepO: o.Step, StepLSE: lse.Step}
	}
	a := merge.MergeArgs{Shape: problem.Shape{B: int(c.O.Counts[0]), Hq: int(c.O.Counts[1]), Sq: int(c.O.Counts[2])},
		First: states(c.First, c.FirstLSE), Second: states(c.Second, c.SecondLSE), O: bare(c.O.Tensor), LSE: bare(c.LSE.Tensor)}
	if f.sum != nil {
		return s.(*fakeStream).record(func() error {
			return f.sum.Forward(nil, merge.SumArgs{Shape: a.Shape, First: a.First.O, Second: a.Second.O, Out: a.O})
		})
	}
	return s.(*fakeStream).record(func() error { return f.merge.Forward(nil, a) })
}

// A device that is neither Vulkan nor the CPU implements the interfaces of package backend, and programs use it as
// they use the others.
func TestThirdBackend(t *testing.T) {
	ctx := context.Background()
	cfg := attention.Config{DType: attention.F32, HeadDim: 16, Causal: attention.BottomRight}
	compute := func(t *testing.T, dev *attention.Device, s *attention.Stream) (results [][]float32) {
		r := rand.New(rand.NewPCG(7, 0))
		tensor := func(rows int, random bool) attention.Tensor {
			x, err := dev.Tensor(attention.F32, 2, 3, rows, 16)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, x.Close()) })
			if random {
				numbers := make([]float32, 2*3*rows*16)
				for i := range numbers {
					numbers[i] = float32(r.NormFloat64())
				}
				require.NoError(t, x.SetFloats(numbers))
			}
			return x
		}
		a := attention.BackwardArgs{Args: attention.Args{Q: tensor(20, true), K: tensor(30, true), V: tensor(30, true), O: tensor(20, false)}}
		lse, err := dev.Tensor(attention.F32, 2, 3, 20)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, lse.Close()) })
		a.LSE, a.DO, a.DQ, a.DK, a.DV = lse, tensor(20, true), tensor(20, false), tensor(30, false), tensor(30, false)
		require.NoError(t, dev.Wait(ctx))
		op := testdevices.Op(t, dev, cfg)
		require.NoError(t, op.Forward(s, a.Args))
		require.NoError(t, op.Backward(s, a))
		if s != nil {
			before, err := a.DQ.Floats(ctx)
			require.NoError(t, err)
			if dev.String() == "fake" {
				require.Equal(t, make([]float32, len(before)), before, "tensors are zeros, and a stream of the caller begins with Submit")
			}
			require.NoError(t, s.Submit())
			require.NoError(t, s.Wait(ctx))
		}
		for _, x := range []attention.Tensor{a.O, a.DQ, a.DK, a.DV} {
			numbers, err := x.Floats(ctx)
			require.NoError(t, err)
			results = append(results, numbers)
		}
		return results
	}
	want := compute(t, attention.On(nil), nil)
	fake := &fakeDevice{}
	for name, own := range map[string]bool{"default stream": false, "stream of the caller": true} {
		t.Run(name, func(t *testing.T) {
			dev := attention.OnBackend(fake)
			t.Cleanup(func() {
				require.NoError(t, dev.Close())
				require.Zero(t, *fake)
			})
			var s *attention.Stream
			if own {
				var err error
				s, err = dev.NewStream("own")
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, s.Close()) })
			}
			for i, numbers := range compute(t, dev, s) {
				require.Equal(t, want[i], numbers)
			}
		})
	}
}

// A stream of the CPU computes at once, and operations refuse streams of other devices.
func TestStreamsOfTheCPU(t *testing.T) {
	cpu, other := attention.On(nil), attention.OnBackend(&fakeDevice{})
	s, err := cpu.NewStream("own")
	require.NoError(t, err)
	foreign, err := other.NewStream("foreign")
	require.NoError(t, err)
	p := newProblem(attention.Config{DType: attention.F32, HeadDim: 8}, attention.Shape{B: 1, Hq: 1, Sq: 3, Sk: 3}, attention.BHSD, 1)
	op, err := attention.New(cpu, p.cfg)
	require.NoError(t, err)
	require.NoError(t, op.Forward(nil, p.Args))
	want := bytes.Clone(p.O.Host)
	row := want[4*p.O.Offset:][:4*8]
	clear(p.O.Host[4*p.O.Offset:][:len(row)])
	require.NoError(t, op.Forward(s, p.Args))
	require.Equal(t, want, p.O.Host)
	require.NoError(t, s.Submit())
	require.NoError(t, s.Wait(context.Background()))
	require.Nil(t, s.Vulkan())
	require.NoError(t, s.Close())

	require.ErrorIs(t, op.Forward(foreign, p.Args), attention.ErrInvalid)
	require.ErrorIs(t, op.Forward(&attention.Stream{}, p.Args), attention.ErrInvalid)
	merger, err := merge.NewMerge(cpu, merge.MergeConfig{HeadDim: 8})
	require.NoError(t, err)
	require.ErrorContains(t, merger.Forward(foreign, merge.MergeArgs{}), "another device")
	_, err = attention.New(&attention.Device{}, p.cfg)
	require.ErrorIs(t, err, attention.ErrInvalid)
}

// A cache, its steps, a cascade over a forked prefix and the copy of a shared page run on a third backend, and give the bits
// of the CPU.
func TestDecodeOnThirdBackend(t *testing.T) {
	const heads, headsKV, dim = 4, 2, 16
	ctx := context.Background()
	decode := func(t *testing.T, dev *attention.Device) (results [][]float32) {
		r := rand.New(rand.NewPCG(3, 0))
		rotary := kvcache.Rotary{Dim: 8, First: 2, Style: kvcache.RotaryHalfSplit}
		cache, err := kvcache.New(dev, kvcache.Config{DType: attention.F32, HeadDim: dim, HeadsKV: headsKV, Layers: 2, PageSize: 4, Pages: 40,
			Rotary: rotary, Cascade: 1})
		require.NoError(t, err)
		op, err := attention.New(dev, attention.Config{DType: attention.F32, HeadDim: dim, Causal: attention.BottomRight})
		require.NoError(t, err)
		cascades := 0
		step := func(list ...kvcache.NewRows) {
			s, err := cache.Begin(list...)
			require.NoError(t, err)
			if s.CascadeKeys() > 0 {
				cascades++
			}
			for layer := range 2 {
				made := func(heads int) attention.Tensor {
					x, err := dev.Tensor(attention.F32, 1, heads, s.Rows(), dim)
					require.NoError(t, err)
					numbers := make([]float32, heads*s.Rows()*dim)
					for i := range numbers {
						numbers[i] = float32(r.NormFloat64())
					}
					require.NoError(t, x.SetFloats(numbers))
					return x
				}
				q, k, v, o := made(heads), made(headsKV), made(headsKV), made(heads)
				require.NoError(t, s.Append(layer, kvcache.LayerRows{K: k, V: v, Q: q, QOut: q}))
				require.NoError(t, s.Forward(layer, op, attention.Args{Q: q, O: o}))
				numbers, err := o.Floats(ctx)
				require.NoError(t, err)
				results = append(results, numbers)
				for _, x := range []attention.Tensor{q, k, v, o} {
					require.NoError(t, x.Close())
				}
			}
		}
		a, b := cache.Sequence(), cache.Sequence()
		step(kvcache.NewRows{Sequence: a, Rows: 14}, kvcache.NewRows{Sequence: b, Rows: 3})
		f, err := a.Fork()
		require.NoError(t, err)
		for range 6 {
			step(kvcache.NewRows{Sequence: a, Rows: 1}, kvcache.NewRows{Sequence: f, Rows: 1}, kvcache.NewRows{Sequence: b, Rows: 2})
		}
		require.Equal(t, 6, cascades)
		_, err = cache.Begin(kvcache.NewRows{Sequence: b, Rows: 140})
		require.ErrorIs(t, err, kvcache.ErrFull)
		require.NoError(t, op.Close())
		require.NoError(t, cache.Close())
		require.NoError(t, cache.Close())
		return results
	}
	fake := &fakeDevice{}
	dev := attention.OnBackend(fake)
	want := decode(t, attention.On(nil))
	got := decode(t, dev)
	require.NoError(t, dev.Close())
	require.Equal(t, want, got)
	require.Zero(t, *fake, "what the cache and the operations hold")
}

// Operations on a third backend plan, prepare and refuse by its word, and check numbers and memory as all do.
func TestThirdBackendPlansAndRefuses(t *testing.T) {
	fake := &fakeDevice{}
	dev := attention.OnBackend(fake)
	cfg := attention.Config{DType: attention.F32, HeadDim: 8, Tier: attention.TierCUDA, Check: true}
	op, err := attention.New(dev, cfg)
	require.NoError(t, err)
	s := attention.Shape{B: 1, Hq: 2, Sq: 5, Sk: 6}
	p, err := op.Plan(s)
	require.NoError(t, err)
	require.Contains(t, p.String(), "fake")
	back, err := op.PlanBackward(s)
	require.NoError(t, err)
	require.Contains(t, back.String(), "6 keys")
	require.NoError(t, op.Prepare(s))
	require.NoError(t, op.PrepareBackward(s))
	_, err = op.Tune(context.Background(), s, attention.TuneOptions{})
	require.ErrorIs(t, err, attention.ErrUnsupported)
	require.ErrorIs(t, op.Record(nil, attention.Args{}), attention.ErrUnsupported)
	soft := cfg
	soft.Softcap = 1
	_, err = attention.New(dev, soft)
	require.ErrorContains(t, err, "no softcap")
	_, err = attention.NewExperiment(dev, cfg, attention.Experiment{Tile: "64x64"})
	require.ErrorIs(t, err, attention.ErrUnsupported)
	_, err = dev.Tensor(attention.F32, 1<<20, 1<<10)
	require.ErrorIs(t, err, vk.ErrOutOfMemory)

	tensor := func(dev *attention.Device, rows int) attention.Tensor {
		x, err := dev.Tensor(attention.F32, 1, 2, rows, 8)
		require.NoError(t, err)
		return x
	}
	a := attention.Args{Q: tensor(dev, 5), K: tensor(dev, 6), V: tensor(dev, 6), O: tensor(dev, 5)}
	require.NoError(t, op.Forward(nil, a))
	require.NoError(t, op.PrepareFor(a))
	used, err := dev.Ints(7)
	require.NoError(t, err)
	a.Varlen = &attention.Varlen{UsedK: used}
	require.ErrorContains(t, op.Forward(nil, a), "UsedK[0]", "Config.Check reads the memory of the device")
	a.Varlen.UsedK.Host = make([]byte, 4)
	require.ErrorContains(t, op.Forward(nil, a), "UsedK")
	require.NoError(t, used.Close())
	a.Varlen.UsedK = used
	require.ErrorIs(t, op.Forward(nil, a), vk.ErrClosed)
	a.Varlen = nil
	for name, other := range map[string]*attention.Device{"CPU": attention.On(nil), "another": attention.OnBackend(&fakeDevice{})} {
		b := a
		b.K = tensor(other, 6)
		require.ErrorIs(t, op.Forward(nil, b), attention.ErrInvalid, name)
		b = attention.Args{Q: tensor(other, 5), K: tensor(other, 6), V: tensor(other, 6), O: tensor(other, 5)}
		require.ErrorContains(t, op.Forward(nil, b), "the operation's device", name)
	}
	cpu, err := attention.New(nil, attention.Config{DType: attention.F32, HeadDim: 8})
	require.NoError(t, err)
	require.ErrorContains(t, cpu.Forward(nil, a), "not in host memory")
	o := a
	o.O = a.Q
	require.ErrorContains(t, op.Forward(nil, o), "overlapping Q")
	_, _, err = attention.Reference(cfg, a)
	require.Error(t, err)
	add, err := kvcache.NewAppend(dev, kvcache.AppendConfig{DType: attention.F32, HeadDim: 8, Check: true})
	require.NoError(t, err)
	used, err = dev.Ints(4)
	require.NoError(t, err)
	require.ErrorContains(t, add.Forward(nil, kvcache.AppendArgs{B: 1, Hkv: 2, New: 5, K: a.Q, V: a.O, KCache: a.K, VCache: a.V, Capacity: 6, Used: used}),
		"room for 5 new rows")
	require.NoError(t, add.Prepare())
	require.NoError(t, add.Close())
	require.NoError(t, op.Close())
	require.NoError(t, op.Close())
	require.Zero(t, fake.operations)
}

// Merges of several states and sums run on a third backend.
func TestMergeAndSumOnThirdBackend(t *testing.T) {
	fake := &fakeDevice{}
	compute := func(dev *attention.Device) []float32 {
		tensor := func(shape ...int) attention.Tensor {
			x, err := dev.Tensor(attention.F32, shape...)
			require.NoError(t, err)
			n := 1
			for _, s := range shape {
				n *= s
			}
			numbers := make([]float32, n)
			for i := range numbers {
				numbers[i] = float32(i%7) / float32(len(shape))
			}
			require.NoError(t, x.SetFloats(numbers))
			return x
		}
		cfg := merge.MergeConfig{DType: attention.F32, HeadDim: 8, F32States: true}
		m, err := merge.NewMerge(dev, cfg)
		require.NoError(t, err)
		require.NoError(t, m.Prepare())
		sum, err := merge.NewSum(dev, cfg)
		require.NoError(t, err)
		o, lse := tensor(6, 2, 3, 8), tensor(6, 2, 3)
		all := merge.States{Count: 3}
		all.O, err = o.Slice(0, 0, 2)
		require.NoError(t, err)
		all.LSE = attention.Tensor{Host: lse.Host, Memory: lse.Memory}
		out, added := tensor(2, 2, 3, 8), tensor(2, 2, 3, 8)
		shape := attention.Shape{B: 2, Hq: 2, Sq: 3}
		require.NoError(t, m.Forward(nil, merge.MergeArgs{Shape: shape, First: all, O: out}))
		require.NoError(t, sum.Forward(nil, merge.SumArgs{Shape: shape, First: out, Second: out, Out: added}))
		numbers, err := added.Floats(context.Background())
		require.NoError(t, err)
		require.NoError(t, m.Close())
		require.NoError(t, sum.Close())
		return numbers
	}
	require.Equal(t, compute(attention.On(nil)), compute(attention.OnBackend(fake)))
	require.Zero(t, fake.operations)
}
