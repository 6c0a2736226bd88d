package attention_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// recording is an operation with its tensors on a device. The problem is small, since the
// host time of a call does not depend on the sizes.
type recording struct {
	dev    *vk.Device
	op     *attention.Op
	stream *vk.Stream
	args   attention.Args
}

var recordedShape = attention.Shape{B: 1, Hq: 1, Sq: 1, Sk: 1}

// recordTests are the ways a kernel reaches its tensors.
var recordTests = []attention.Access{attention.AccessAddresses, attention.AccessDescriptors}

// newRecording skips the test if there is no device that executes, unless VKATTN_DRIVER
// requires one. It uses no validation layers: they allocate and take time, and the tests
// measure the host's own cost.
func newRecording(t testing.TB, access attention.Access) *recording {
	t.Helper()
	t.Setenv("VKATTN_VALIDATION", "")
	dev := testdevice.Open(t)
	if access == attention.AccessAddresses && !dev.Caps().BufferDeviceAddress {
		t.Skip("the device has no buffer addresses")
	}
	r := &recording{dev: dev}
	var err error
	r.op, err = attention.New(attention.On(dev), attention.Config{HeadDim: 8, Tier: attention.TierScalar, Access: access, Causal: attention.BottomRight})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.op.Close()) })
	r.stream = testdevice.Stream(t, dev, "record")
	s := recordedShape
	tensor := func(elements int64, size int) attention.Tensor {
		b := testdevice.Buffer(t, dev, uint64(elements)*uint64(size))
		require.NoError(t, r.stream.Fill(vk.BufferRange{Buffer: b}, 0))
		return attention.Tensor{Buffer: b}
	}
	rows, keys := s.Rows()*8, int64(s.B*s.KVHeads()*s.Sk*8)
	r.args = attention.Args{Shape: s, Q: tensor(rows, 2), K: tensor(keys, 2), V: tensor(keys, 2), O: tensor(rows, 2),
		LSE: tensor(s.Rows(), 4)}
	require.NoError(t, r.stream.Barrier())
	return r
}

// A closed operation releases its pipelines. Others keep theirs, and recorded work still
// runs.
func TestCloseGivesPipelinesBack(t *testing.T) {
	r := newRecording(t, attention.AccessDescriptors)
	other, err := attention.New(attention.On(r.dev), r.op.Config())
	require.NoError(t, err)
	require.NoError(t, other.Forward(attention.OnStream(r.stream), r.args))
	require.NoError(t, r.op.Forward(attention.OnStream(r.stream), r.args))
	closed, open := attention.PipelinesOf(r.op), attention.PipelinesOf(other)
	require.Len(t, closed, 1)
	require.Len(t, open, 1)
	require.Equal(t, open[0].Handle(), closed[0].Handle(), "compiled once")
	require.NoError(t, r.op.Close())
	require.NoError(t, r.op.Close())
	_, err = closed[0].Statistics()
	require.ErrorIs(t, err, vk.ErrClosed)
	require.ErrorIs(t, r.op.Forward(attention.OnStream(r.stream), r.args), vk.ErrClosed)
	_, err = open[0].Statistics()
	require.NotErrorIs(t, err, vk.ErrClosed)
	require.NoError(t, other.Forward(attention.OnStream(r.stream), r.args))
	require.NoError(t, other.Close())
	require.NoError(t, r.stream.Wait(context.Background()))
}

// giveOptions gives the call a window and the options of Args that serving combines, and a bias.
func (r *recording) giveOptions(t testing.TB) {
	t.Helper()
	cfg := r.op.Config()
	cfg.Window = attention.WindowOf(100, 0)
	require.NoError(t, r.op.Close())
	var err error
	r.op, err = attention.New(attention.On(r.dev), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.op.Close()) })
	b := testdevice.Buffer(t, r.dev, 1024)
	require.NoError(t, r.stream.Fill(vk.BufferRange{Buffer: b}, 0))
	require.NoError(t, r.stream.Barrier())
	v := attention.Vector{Buffer: b}
	r.args.Varlen = &attention.Varlen{CuQ: v, TotalQ: 1, UsedK: v}
	r.args.Pages = &attention.Pages{Table: v, PageSize: 1, Count: 1}
	r.args.Bias = &attention.Bias{Tensor: attention.Tensor{Buffer: b}, DType: attention.F32}
	r.args.Sinks = v
}

func (r *recording) wait(t testing.TB) { require.NoError(t, r.stream.Wait(context.Background())) }

// batchOf is the number of calls in a batch of these tests.
const batchOf = 512

// warmUp records a batch, so that everything a batch needs exists, and begins the next one.
func (r *recording) warmUp(t testing.TB) {
	for range batchOf {
		require.NoError(t, r.op.Forward(attention.OnStream(r.stream), r.args))
	}
	r.next(t)
}

// next ends the batch and begins the next one.
func (r *recording) next(t testing.TB) {
	r.wait(t)
	require.NoError(t, r.stream.Barrier())
}

// allocatesNothing counts the allocations of f's second run, and calls next after both. The count is of the whole
// process: a worker of the collector that starts meanwhile is in it. So a count above zero is taken again, twice:
// what f allocates, it allocates each time.
func allocatesNothing(t *testing.T, next, f func(), name ...any) {
	t.Helper()
	count := func() float64 {
		defer next()
		return testing.AllocsPerRun(1, f)
	}
	for range 2 {
		if count() == 0 {
			return
		}
	}
	require.Zero(t, count(), name...)
}

// A decode loop allocates nothing, whether it records one forward after another or waits
// for each, and whether it records into a stream or into a command buffer of its own.
func TestCallsAllocateNothing(t *testing.T) {
	if os.Getenv("VKATTN_DRIVER") == "swiftshader" {
		t.Skip("the host does the same on every driver, and this one compiles for 9 s")
	}
	for _, access := range recordTests {
		t.Run(access.String(), func(t *testing.T) { callsAllocateNothing(t, newRecording(t, access)) })
		t.Run(access.String()+", options", func(t *testing.T) {
			r := newRecording(t, access)
			r.giveOptions(t)
			callsAllocateNothing(t, r)
		})
	}
}

func callsAllocateNothing(t *testing.T, r *recording) {
	r.warmUp(t)
	c, again := r.wrap(t)
	for range batchOf {
		require.NoError(t, r.op.Record(c, r.args))
	}
	again()
	next := func() { r.next(t) }
	half := func(f func() error) func() {
		return func() {
			for range batchOf / 2 {
				if err := f(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	allocatesNothing(t, next, half(func() error { return r.op.Forward(attention.OnStream(r.stream), r.args) }), "Forward")
	allocatesNothing(t, again, half(func() error { return r.op.Record(c, r.args) }), "Record")
	allocatesNothing(t, next, func() {
		for range 50 {
			r.roundTrip(t)
		}
	}, "Forward and Wait")
}

// roundTrip is one forward from the call to its end.
func (r *recording) roundTrip(t testing.TB) {
	if err := r.op.Forward(attention.OnStream(r.stream), r.args); err != nil {
		t.Fatal(err)
	}
	if err := r.stream.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkRecord measures the host cost of Op.Record into a command buffer that is never
// submitted: ns/op and allocations count the recording alone.
func BenchmarkRecord(b *testing.B) {
	benchmarkRecord(b, func(_ testing.TB, r *recording, _ attention.Access) func(*vk.Commands) error {
		return func(c *vk.Commands) error { return r.op.Record(c, r.args) }
	})
}

// BenchmarkRecordOptions is BenchmarkRecord of a call with options.
func BenchmarkRecordOptions(b *testing.B) {
	benchmarkRecord(b, func(t testing.TB, r *recording, _ attention.Access) func(*vk.Commands) error {
		r.giveOptions(t)
		return func(c *vk.Commands) error { return r.op.Record(c, r.args) }
	})
}

// BenchmarkForward measures the same for a stream: calls behind a barrier each, as every call writes the same O, and
// calls without order. The recorded work is executed outside
// of the measured time. On a driver on the CPU that takes most of the run: -benchtime
// 50000x is enough there.
func BenchmarkForward(b *testing.B) {
	for _, access := range recordTests {
		for _, order := range []string{"ordered", "NoBarrier"} {
			b.Run(access.String()+"/"+order, func(b *testing.B) {
				r := newRecording(b, access)
				r.stream.NoBarrier = order == "NoBarrier"
				record(b, func() {
					r.wait(b)
					require.NoError(b, r.stream.Barrier()) // begins the next batch
				}, func() error { return r.op.Forward(attention.OnStream(r.stream), r.args) })
				r.wait(b)
			})
		}
	}
}

// decoding makes a recording whose calls decode: with split keys if they are given.
func decoding(t testing.TB, splits int) (r *recording, step func()) {
	r = newRecording(t, attention.AccessAuto)
	cfg := r.op.Config()
	cfg.FixedSplit = splits
	require.NoError(t, r.op.Close())
	var err error
	r.op, err = attention.New(attention.On(r.dev), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.op.Close()) })
	r.args.K.Strides.Batch, r.args.V.Strides.Batch = 1, 1
	keys := 1 << 20 // of one head, all in the same memory
	return r, func() { r.args.Sk = 1 + r.args.Sk%keys }
}

// A step of decoding, with a length that no call had before, allocates nothing: it finds the plan of the lengths around
// it. The cache does not grow with the steps. Odd lengths come first: they bring every number of splits, of which a
// device with many cores has some in these lengths.
func TestStepsOfDecodingAllocateNothing(t *testing.T) {
	if os.Getenv("VKATTN_DRIVER") == "swiftshader" {
		t.Skip("the host does the same on every driver, and this one takes longest")
	}
	for _, splits := range []int{0, 2} {
		r, _ := decoding(t, splits)
		r.warmUp(t)
		c, again := r.wrap(t)
		const first, steps = 8193, batchOf / 4 // the last class of tuned tiles begins
		for range batchOf {
			require.NoError(t, r.op.Record(c, r.args))
		}
		again()
		for n := range 6 * steps { // as many as allocatesNothing can take
			if n%batchOf == 0 {
				again()
			}
			r.args.Sk = first + 2*n
			require.NoError(t, r.op.Record(c, r.args))
		}
		again()
		plans := attention.CachedPlans(r.op)
		r.args.Sk = first - 1
		allocatesNothing(t, again, func() {
			for range steps {
				r.args.Sk += 2
				if err := r.op.Record(c, r.args); err != nil {
					t.Fatal(err)
				}
			}
		}, "%d splits", splits)
		require.Equal(t, plans, attention.CachedPlans(r.op))
	}
}

// BenchmarkRecordNewLength is BenchmarkRecord in a decode loop: every call has one key more
// than the last.
func BenchmarkRecordNewLength(b *testing.B) {
	for _, splits := range []int{0, 2} {
		b.Run(fmt.Sprintf("splits=%d", splits), func(b *testing.B) {
			r, step := decoding(b, splits)
			c, again := r.wrap(b)
			record(b, again, func() error {
				step()
				return r.op.Record(c, r.args)
			})
		})
	}
}

// BenchmarkRoundTrip measures a forward that is recorded, submitted, executed and waited
// for: the cost to a caller who needs each result before the next call.
func BenchmarkRoundTrip(b *testing.B) {
	for _, access := range recordTests {
		b.Run(access.String(), func(b *testing.B) {
			r := newRecording(b, access)
			r.roundTrip(b)
			b.ReportAllocs()
			for b.Loop() {
				r.roundTrip(b)
			}
		})
	}
}

// record measures f alone, in batches that again ends.
func record(b *testing.B, again func(), f func() error) {
	b.Helper()
	for range batchOf {
		require.NoError(b, f())
	}
	again()
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if err := f(); err != nil {
			b.Fatal(err)
		}
		if n++; n == batchOf {
			n = 0
			b.StopTimer()
			again()
			b.StartTimer()
		}
	}
	again()
}

// recordable is an operation whose calls have arguments A.
type recordable[A any] interface {
	Forward(*attention.Stream, A) error
	Record(*vk.Commands, A) error
	Close() error
}

// forwardsAllocateNothing checks that Forward of an operation for a recording allocates nothing. A method of a type parameter would.
func forwardsAllocateNothing(t *testing.T, made func(t testing.TB, r *recording, access attention.Access) (forward func() error)) {
	if os.Getenv("VKATTN_DRIVER") == "swiftshader" {
		t.Skip("the host does the same on every driver, and this one takes longest")
	}
	for _, access := range recordTests {
		t.Run(access.String(), func(t *testing.T) {
			r := newRecording(t, access)
			call := made(t, r, access)
			forward := func(n int) {
				for range n {
					if err := call(); err != nil {
						t.Fatal(err)
					}
				}
			}
			forward(batchOf)
			r.wait(t)
			require.NoError(t, r.stream.Barrier())
			allocatesNothing(t, func() { r.next(t) }, func() { forward(batchOf / 2) })
		})
	}
}

// refusesOnADevice checks that what a device cannot compute is refused before anything is recorded. bad are calls with the field that
// is wrong, and remake makes the operation on another device.
func refusesOnADevice[O recordable[A], A any](t *testing.T, r *recording, op O, good A, bad map[string]A, remake func(*attention.Device) (O, error)) {
	require.NoError(t, op.Forward(attention.OnStream(r.stream), good))
	r.wait(t)
	require.Error(t, op.Forward(attention.OnStream(&vk.Stream{}), good))
	require.Error(t, op.Record(nil, good))
	var shape *attention.ShapeError
	for field, a := range bad {
		require.ErrorAs(t, op.Forward(attention.OnStream(r.stream), a), &shape)
		require.Equal(t, field, shape.Field)
	}
	require.NoError(t, op.Close())
	require.ErrorIs(t, op.Forward(attention.OnStream(r.stream), good), vk.ErrClosed)
	other, err := vk.Open(vk.Options{PipelineCache: "off"})
	require.NoError(t, err)
	elsewhere, err := remake(attention.On(other))
	require.NoError(t, err)
	stream, err := other.NewStream("elsewhere")
	require.NoError(t, err)
	require.ErrorAs(t, elsewhere.Forward(attention.OnStream(stream), good), &shape)
	require.NoError(t, stream.Close())
	require.NoError(t, elsewhere.Close())
	require.NoError(t, other.Close())
	_, err = remake(attention.On(other))
	require.ErrorIs(t, err, vk.ErrClosed)
}

// benchmarkRecord measures the host's cost of Record of an operation for a recording.
func benchmarkRecord(b *testing.B, made func(t testing.TB, r *recording, access attention.Access) (record func(*vk.Commands) error)) {
	for _, access := range recordTests {
		b.Run(access.String(), func(b *testing.B) {
			r := newRecording(b, access)
			call := made(b, r, access)
			c, again := r.wrap(b)
			record(b, again, func() error { return call(c) })
		})
	}
}
