package parallel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	"vkattn/internal/accuracy"
	"vkattn/internal/inputs"
	"vkattn/internal/problem"
	"vkattn/internal/testdevice"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// onDevice is a rank's device memory: copies of host tensors.
type onDevice struct {
	t      require.TestingT
	s      *vk.Stream
	copied []func(ctx context.Context) error
}

// tensor copies a tensor to a buffer; results come back with collect.
func (d *onDevice) tensor(x *attention.Tensor, memory vk.MemoryKind) {
	if !x.Given() {
		return
	}
	b, err := d.s.Device().NewBuffer(uint64(len(x.Host)), vk.BufferOptions{Memory: memory})
	require.NoError(d.t, err)
	require.NoError(d.t, d.s.Upload(b, 0, x.Host))
	host := x.Host
	d.copied = append(d.copied, func(ctx context.Context) error { return d.s.Download(ctx, host, b, 0) })
	x.Buffer, x.Host = b, nil
}

// collect copies all tensors back.
func (d *onDevice) collect() error {
	for _, f := range d.copied {
		if err := f(context.Background()); err != nil {
			return err
		}
	}
	return nil
}

// deviceRank is a rank with its operation, its plan, and its tensors in the device's memory.
type deviceRank struct {
	op   *Op
	plan Plan
	*part
	*onDevice
	g *Group
}

// onDevices makes the ranks of a forward call, and calls f for each. Tensors are packed, or [batch, row,
// head, dim] where bshd says so of a rank, and lie in the memory that it names.
func (w *whole) onDevices(t *testing.T, dev *vk.Device, streams []*vk.Stream, groups []*Group, memory func(r int) (kind vk.MemoryKind, bshd bool), f func(r int, x *deviceRank) error) []error {
	return onAll(groups, func(r int, g *Group) error {
		op, err := New(g, attention.On(dev), w.cfg)
		if err != nil {
			return err
		}
		defer op.Close()
		plan, err := op.Plan(w.p)
		if err != nil {
			return err
		}
		kind, bshd := memory(r)
		x := &deviceRank{op, plan, w.of(&plan, r, bshd), &onDevice{t: t, s: streams[r]}, g}
		for _, tensor := range []*attention.Tensor{&x.Q, &x.K, &x.V, &x.O, &x.LSE} {
			x.tensor(tensor, kind)
		}
		return f(r, x)
	})
}

// isAttentionOnDevices runs Forward on every rank, with tensors that the transport moves, and judges O. ran is called on each rank
// that has run; it may be nil.
func (w *whole) isAttentionOnDevices(t *testing.T, dev *vk.Device, streams []*vk.Stream, groups []*Group, ran func(r int, x *deviceRank) error) {
	parts := make([]*part, len(groups))
	for r, err := range w.onDevices(t, dev, streams, groups, movable, func(r int, x *deviceRank) error {
		if err := x.op.Forward(context.Background(), attention.OnStream(x.s), x.Args); err != nil {
			return err
		}
		if ran != nil {
			if err := ran(r, x); err != nil {
				return err
			}
		}
		parts[r] = x.part
		return x.onDevice.collect()
	}) {
		require.NoError(t, err, "rank %d", r)
	}
	for _, x := range parts {
		x.collect(true)
	}
	v, err := accuracy.Verify(problem.Config(w.cfg.Config), w.Args, accuracy.Options{})
	require.NoError(t, err)
	require.True(t, v.Pass(), "%d ranks: %v", len(groups), v)
}

// movable is memory that the transport moves without a copy.
func movable(int) (vk.MemoryKind, bool) { return vk.Readback, false }

// openRanks makes a stream for each of some ranks on one device.
func openRanks(t *testing.T, n int) (*vk.Device, []*vk.Stream) {
	dev := testdevice.Open(t)
	streams := make([]*vk.Stream, n)
	for r := range streams {
		streams[r] = testdevice.Stream(t, dev, fmt.Sprint("rank ", r))
	}
	return dev, streams
}

// Ranks on a device compute attention in every mode, from buffers that the host sees and
// from those it does not.
func TestForwardOnADevice(t *testing.T) {
	sequenceMessages(t)
	ringMemory(t, 1) // groups of heads
	const ranks = 4
	dev, streams := openRanks(t, ranks)
	// Pipelines of a driver on the CPU take long. Modes share what a problem tests.
	tests := map[Mode]string{ModeRing: "batch packed", ModeUlysses: "batch", ModeAllGather: "more rows", Mode2D: "few rows packed"}
	for _, mode := range Modes() {
		for name, p := range map[string]Problem{
			"batch":     {Shape: attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 45, Sk: 60}},
			"packed":    {Shape: attention.Shape{B: 3, Hq: 4, Hkv: 2, Sq: 40, Sk: 40}, CuQ: []int{0, 40, 43, 70}, CuK: []int{0, 40, 43, 70}},
			"few rows":  {Shape: attention.Shape{B: 1, Hq: 4, Hkv: 4, Sq: 3, Sk: 2}},
			"more rows": {Shape: attention.Shape{B: 1, Hq: 4, Hkv: 4, Sq: 30, Sk: 12}}, // some see no key
		} {
			if first := strings.Contains(tests[mode], name); !testlevel.Share(first) {
				continue
			}
			t.Run(mode.String()+"/"+name, func(t *testing.T) {
				cfg := Config{Mode: mode, Inner: 2, Schedule: ScheduleGather}
				if mode == Mode2D {
					cfg.Schedule = ScheduleOverlap
				}
				cfg.HeadDim, cfg.Causal, cfg.Tier = 16, attention.BottomRight, attention.TierScalar
				w := newWhole(cfg, p, 5)
				groups := ranksOf(t, ranks)
				var mu sync.Mutex
				var parts []*part
				memory := func(r int) (vk.MemoryKind, bool) { return vk.MemoryKind(r % 3), r%2 == 0 }
				for r, err := range w.onDevices(t, dev, streams, groups, memory, func(r int, x *deviceRank) error {
					args := x.Args
					if name != "packed" && r == ranks-1 { // first without LSE, which other ranks ask for
						args.LSE = attention.Tensor{}
					}
					for range 2 { // the second call has the buffers of the first
						if err := x.op.Forward(context.Background(), attention.OnStream(x.s), args); err != nil {
							return err
						}
						args = x.Args
					}
					if len(x.op.pool.free) == 0 {
						return errors.New("the pool has no buffers")
					}
					mu.Lock()
					parts = append(parts, x.part)
					mu.Unlock()
					return x.onDevice.collect()
				}) {
					require.NoError(t, err, "rank %d", r)
				}
				for _, x := range parts {
					x.collect(true)
				}
				v, err := accuracy.Verify(problem.Config(cfg.Config), w.Args, accuracy.Options{})
				require.NoError(t, err)
				require.True(t, v.Pass(), "%v", v)
			})
		}
	}
}

// A copy on a device moves every bit, subnormals and NaNs with payload included, and nothing between rows.
func TestCopyOnADevice(t *testing.T) {
	dev, streams := openRanks(t, 1)
	cfg := Config{Config: attention.Config{HeadDim: 8, Tier: attention.TierScalar}}
	op, err := New(ranksOf(t, 1)[0], attention.On(dev), cfg)
	require.NoError(t, err)
	defer op.Close()
	for _, x := range []struct {
		dtype           attention.DType
		dim             int
		gap, first      int  // elements behind each row of the source, and before its first
		kernel, wrapped bool // one dispatch copies; rows of a head do not follow one another in the result either
	}{
		{attention.F16, 64, 2, 4, true, false},
		{attention.BF16, 128, 16, 0, true, true},
		{attention.F32, 1, 1, 3, true, true},
		{attention.F32, 96, 5, 1, true, false},
		{attention.F16, 7, 0, 2, false, true},
		{attention.F16, 64, 1, 0, false, true},
		{attention.BF16, 64, 2, 1, false, false},
	} {
		const batch, heads, rows, guard = 2, 3, 37, 0xa5
		m := op.newSide(attention.OnStream(streams[0]))
		size := x.dtype.Size()
		step := x.dim + x.gap
		from := inputs.New(int64(x.first+batch*heads*(rows+1)*step), x.dtype, inputs.Normal, 3)
		for i := range len(from) / 2 { // patterns of 16 bits, subnormals and NaNs among them
			from[2*i], from[2*i+1] = byte(i*0x9e37), byte(i*0x9e37>>8)
		}
		src := viewOf(attention.Tensor{Offset: int64(x.first), Strides: attention.Strides{Batch: int64(heads * (rows + 1) * step), Head: int64((rows + 1) * step), Seq: int64(step)}},
			x.dtype, batch, heads, rows, x.dim)
		dst := viewOf(attention.Tensor{}, x.dtype, batch, heads, rows, x.dim)
		if x.wrapped { // rows of all heads by turns
			dst.Strides = attention.Strides{Batch: int64(heads * (rows + 2) * x.dim), Head: int64(x.dim), Seq: int64(heads * x.dim)}
		}
		to := bytes.Repeat([]byte{guard}, batch*heads*(rows+2)*x.dim*size)
		hostSrc, hostDst := src, dst
		hostSrc.Host, hostDst.Host = from, bytes.Clone(to)
		new(side).copy(hostDst, hostSrc)
		d := &onDevice{t: t, s: streams[0]}
		src.Host, dst.Host = from, to
		for _, tensor := range []*attention.Tensor{&src.Tensor, &dst.Tensor} {
			tensor.Host = append(tensor.Host, make([]byte, -len(tensor.Host)&3)...)
			d.tensor(tensor, vk.DeviceLocal)
		}
		done, err := m.copyRows(dst, src)
		require.NoError(t, err)
		require.Equal(t, x.kernel, done, "%+v", x)
		if !done {
			m.copy(dst, src)
		}
		require.NoError(t, m.err)
		got := make([]byte, len(to))
		require.NoError(t, streams[0].Download(context.Background(), got, dst.Buffer, 0))
		require.True(t, bytes.Equal(hostDst.Host, got), "%+v", x)
		require.NoError(t, m.close())
	}
}

// Ranks on a device append to a sharded cache and decode over it.
func TestDecodeOnADevice(t *testing.T) {
	const ranks, batch, heads, most = 2, 2, 2, 40
	dev, streams := openRanks(t, ranks)
	cfg := Config{Block: 4}
	cfg.HeadDim, cfg.Causal, cfg.Tier = 16, attention.BottomRight, attention.TierScalar
	groups := ranksOf(t, ranks)
	whole := newSharded(cfg.Config, batch, heads, most, 0, nil)
	one, err := kvcache.NewAppend(nil, kvcache.AppendConfig{HeadDim: cfg.HeadDim})
	require.NoError(t, err)
	tokens := []int{0, 0}
	caches := make([]Cache, ranks)
	ops := make([]*Op, ranks)
	for r := range ranks {
		ops[r], err = New(groups[r], attention.On(dev), cfg)
		require.NoError(t, err)
		caches[r] = newSharded(cfg.Config, batch, heads, ops[r].Shard().Count(r, most), 0, nil).Cache
		d := &onDevice{t: t, s: streams[r]}
		d.tensor(&caches[r].K, vk.DeviceLocal)
		d.tensor(&caches[r].V, vk.DeviceLocal)
	}
	for _, n := range []int{9, 1, 3} {
		in := func(seed uint64) attention.Tensor {
			return attention.Tensor{Host: inputs.New(int64(batch*heads*n*cfg.HeadDim), cfg.DType, inputs.Normal, seed)}
		}
		q, k, v := in(uint64(n)), in(uint64(n+1)), in(uint64(n+2))
		before := append([]int(nil), tokens...)
		var side side
		require.NoError(t, one.Forward(nil, kvcache.AppendArgs{B: batch, Hkv: heads, New: n, K: k, V: v, KCache: whole.K, VCache: whole.V,
			Capacity: most, Used: side.vector(before)}))
		for b := range tokens {
			tokens[b] += n
		}
		outs := make([]attention.Tensor, ranks)
		for r, err := range onAll(groups, func(r int, _ *Group) error {
			d := &onDevice{t: t, s: streams[r]}
			q, k, v := q, k, v
			o := attention.Tensor{Host: make([]byte, len(q.Host))}
			outs[r] = attention.Tensor{Host: o.Host}
			for _, x := range []*attention.Tensor{&q, &k, &v, &o} {
				d.tensor(x, vk.DeviceLocal)
			}
			if err := ops[r].Append(attention.OnStream(streams[r]), AppendArgs{B: batch, Hkv: heads, New: n, Tokens: before, NewK: k, NewV: v, Cache: caches[r]}); err != nil {
				return err
			}
			a := DecodeArgs{B: batch, Hq: heads, Hkv: heads, Sq: n, Tokens: slices.Clone(tokens), Q: q, O: o, Cache: caches[r]}
			a.Tokens[0] -= r
			var none context.Context // ranks that disagree have begun to compute, and wait for that without a context too
			if err := ops[r].Decode(none, attention.OnStream(streams[r]), a); !errors.Is(err, ErrMismatch) {
				return fmt.Errorf("ranks that disagree: %w", err)
			}
			a.Tokens = tokens
			if err := ops[r].Decode(context.Background(), attention.OnStream(streams[r]), a); err != nil {
				return err
			}
			return d.copied[3](context.Background())
		}) {
			require.NoError(t, err, "rank %d", r)
			require.Equal(t, outs[0].Host, outs[r].Host)
		}
		verdict, err := accuracy.Verify(problem.Config(cfg.Config), attention.Args{Shape: attention.Shape{B: batch, Hq: heads, Hkv: heads, Sq: n, Sk: most}, Q: q, K: whole.K, V: whole.V,
			O: outs[0], Varlen: &attention.Varlen{UsedK: side.vector(tokens)}}, accuracy.Options{})
		require.NoError(t, err)
		require.True(t, verdict.Pass(), "%v", verdict)
	}
	for _, err := range onAll(groups, func(r int, g *Group) error { return g.Barrier(context.Background()) }) {
		require.NoError(t, err)
	}
}

// After an error on a device a call has waited for what it recorded: the stream holds no half of it,
// and nothing uses the tensors.
func TestErrorLeavesNoWorkInTheStream(t *testing.T) {
	boom := errors.New("boom")
	dev, streams := openRanks(t, 1)
	b, err := dev.NewBuffer(64, vk.BufferOptions{Memory: vk.Readback})
	require.NoError(t, err)
	defer b.Close()
	cfg := Config{Config: attention.Config{HeadDim: 8, Tier: attention.TierScalar}}
	op, err := New(ranksOf(t, 1)[0], attention.On(dev), cfg)
	require.NoError(t, err)
	defer op.Close()
	x, err := op.plan(Problem{Shape: attention.Shape{B: 1, Hq: 1, Sq: 4, Sk: 4}}, everywhere)
	require.NoError(t, err)
	require.ErrorIs(t, op.run(context.Background(), attention.OnStream(streams[0]), callForward, x, false, nil, func(c *call) error {
		require.NoError(t, c.s.Fill(vk.BufferRange{Buffer: b}, 0x01010101))
		c.fail(boom)
		return nil
	}), boom)
	require.Equal(t, bytes.Repeat([]byte{1}, 64), b.Bytes())
}
