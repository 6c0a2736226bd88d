package attention

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"vkattn/internal/hostmem"
	"vkattn/internal/operands"
	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// tuneMemory holds the tensors on which candidates are timed, and the clock. Runs cycle
// through copies of the tensors, so that no run finds its inputs in the last-level cache.
type tuneMemory struct {
	dev     *vk.Device
	cfg     problem.Config
	shape   Shape
	stream  *vk.Stream
	calls   *Stream       // of stream
	buffers [4]*vk.Buffer // Q, K, V, O
	lse     *vk.Buffer    // nil: no LSE
	offset  [4]int64      // of the first element, aligned as in the request
	stride  [4]int64      // elements from one copy of a tensor to the next
	copies  int
	next    int
	stamps  bool // times are of the device's timestamps, not of the wall clock
}

const (
	tuneRotation    = 256 << 20 // bytes of all copies: more than any last-level cache so far
	tuneRotationCPU = 16 << 20
	tuneBlock       = 1 << 20 // the inputs repeat this many random numbers
)

// newTuneMemory allocates and fills tensors as a request has them. copies is the number of
// sets; 0 makes more than the last-level cache holds.
func newTuneMemory(ctx context.Context, dev *vk.Device, cfg problem.Config, r plan.Request, copies int) (m *tuneMemory, err error) {
	m = &tuneMemory{dev: dev, cfg: cfg, shape: r.Shape, stamps: dev.Caps().Limits.TimestampValidBits > 0}
	defer func() {
		if err != nil {
			m.close()
			m = nil
		}
	}()
	if err := dev.CheckMemory("Tune", tuneBytes(cfg, r)); err != nil {
		return m, err
	}
	size := int64(cfg.DType.Size())
	rows, keys := r.Shape.Rows(), int64(r.Shape.B)*int64(r.Shape.KVHeads())*int64(r.Shape.Sk)
	d, dv := int64(cfg.HeadDim), int64(cfg.ValueDim())
	elements := [4]int64{rows * d, keys * d, keys * dv, rows * dv}
	var total int64
	for i, n := range elements {
		m.offset[i] = int64(r.Align[i] % 8)
		m.stride[i] = (n + 8 + 4095) / 4096 * 4096
		total += m.stride[i] * size
	}
	rotation := int64(tuneRotation)
	if dev.Info().Type == vk.DeviceCPU {
		rotation = tuneRotationCPU
	}
	m.copies = copies
	if copies == 0 {
		m.copies = int(max(1, (rotation+total-1)/total))
	}
	if m.stream, err = dev.NewStream("tune"); err != nil {
		return m, err
	}
	m.stream.NoBarrier = true // calls may overlap
	m.calls = OnStream(m.stream)
	for err = m.allocate(elements, size); m.copies > 1 && errors.Is(err, vk.ErrOutOfMemory); err = m.allocate(elements, size) {
		m.copies /= 2
	}
	if err != nil {
		return m, err
	}
	if r.LSE {
		if m.lse, err = dev.NewBuffer(uint64(4*rows), vk.BufferOptions{Name: "tune LSE"}); err != nil {
			return m, err
		}
	}
	return m, m.fill(ctx)
}

// tuneBytes returns the bytes of one copy of the tensors. It saturates.
func tuneBytes(cfg problem.Config, r plan.Request) uint64 {
	rows, keys := hostmem.Product(r.Shape.B, r.Shape.Hq, r.Shape.Sq), hostmem.Product(r.Shape.B, r.Shape.KVHeads(), r.Shape.Sk)
	perRow := uint64(cfg.HeadDim+cfg.ValueDim()) * uint64(cfg.DType.Size())
	total := hostmem.Sum(hostmem.Product(rows, perRow), hostmem.Product(keys, perRow))
	if r.LSE {
		total = hostmem.Sum(total, hostmem.Product(rows, 4))
	}
	return total
}

func (m *tuneMemory) allocate(elements [4]int64, size int64) (err error) {
	for i := range m.buffers {
		n := (m.stride[i]*int64(m.copies-1) + elements[i] + 8) * size
		if m.buffers[i], err = m.dev.NewBuffer(uint64(n+3)&^3, vk.BufferOptions{Name: "tune " + "QKVO"[i:i+1]}); err != nil {
			m.free()
			return err
		}
	}
	return nil
}

// fill writes normally distributed numbers into Q, K and V, so that softmax rows and power
// draw are realistic.
func (m *tuneMemory) fill(ctx context.Context) error {
	for _, b := range m.buffers[:3] {
		if err := m.randomize(b); err != nil {
			return err
		}
	}
	return m.stream.Wait(ctx)
}

// randomize fills a buffer. It uploads the first block and doubles it on the device.
func (m *tuneMemory) randomize(b *vk.Buffer) error {
	values := make([]float32, tuneBlock)
	random := rand.New(rand.NewPCG(1, 2)) // the same numbers in every tuning
	for i := range values {
		values[i] = float32(random.NormFloat64())
	}
	block := make([]byte, tuneBlock*m.cfg.DType.Size())
	m.cfg.DType.Encode(block, values)
	size := b.Size() &^ 3
	done := min(uint64(len(block)), size)
	if err := m.stream.Upload(b, 0, block[:done]); err != nil {
		return err
	}
	for done < size {
		n := min(done, size-done)
		if err := m.stream.Barrier(); err != nil {
			return err
		}
		if err := m.stream.Copy(vk.BufferRange{Buffer: b, Offset: done, Size: n}, vk.BufferRange{Buffer: b, Size: n}); err != nil {
			return err
		}
		done += n
	}
	return nil
}

func (m *tuneMemory) args(copy int) Args {
	a := Args{Shape: m.shape}
	for i, t := range []*Tensor{&a.Q, &a.K, &a.V, &a.O} {
		*t = Tensor{Buffer: m.buffers[i], Offset: m.offset[i] + m.stride[i]*int64(copy)}
	}
	if m.lse != nil {
		a.LSE = Tensor{Buffer: m.lse}
	}
	return a
}

// errNoClock is the error of times that the device's timestamps do not give.
var errNoClock = errors.New("the device's timestamps are unusable")

// noClock replaces an error of unusable timestamps.
func noClock(err error) error {
	if errors.Is(err, vk.ErrTimestamps) {
		return errNoClock
	}
	return err
}

func (m *tuneMemory) byWall() { m.stamps = false }

// timed runs op n times, each on the next copy, with a barrier between runs. A time of 0 matches errNoClock.
func (m *tuneMemory) timed(ctx context.Context, op *Op, n int) ([]time.Duration, error) {
	run := func() error {
		m.next = (m.next + 1) % m.copies
		return op.Forward(m.calls, m.args(m.next))
	}
	if !m.stamps {
		return m.timedByWall(ctx, n, run)
	}
	out, err := operands.Timed(ctx, m.stream, n, run)
	if err == nil && slices.Min(out) <= 0 {
		err = errNoClock
	}
	return out, noClock(err)
}

// timedByWall runs a call n times, each alone on the stream.
func (m *tuneMemory) timedByWall(ctx context.Context, n int, run func() error) ([]time.Duration, error) {
	out := make([]time.Duration, n)
	for i := range out {
		start := time.Now()
		if err := operands.InTurn(ctx.Err, run, func() error { return m.stream.Wait(ctx) }); err != nil {
			return nil, err
		}
		out[i] = max(time.Since(start), 1)
	}
	return out, nil
}

// judged is how many elements at the start of O, and at its end, are compared.
const judged = 1 << 18

// result fills O with NaN, computes the first copy and returns both ends of O.
func (m *tuneMemory) result(ctx context.Context, op *Op) ([]float32, error) {
	size := int64(m.cfg.DType.Size())
	elements := m.shape.Rows() * int64(m.cfg.ValueDim())
	first := m.offset[3] * size
	last := first + max(0, elements-judged)*size
	n := min(elements, judged) * size
	o := m.buffers[3]
	raw := make([]byte, 2*n)
	if err := operands.InTurn(
		func() error {
			return m.stream.Fill(vk.BufferRange{Buffer: o, Size: uint64(first+elements*size+3) &^ 3}, 0xffffffff)
		},
		m.stream.Barrier,
		func() error { return op.Forward(m.calls, m.args(0)) },
		m.stream.Barrier,
		func() error { return m.stream.Download(ctx, raw[:n], o, uint64(first)) },
		func() error { return m.stream.Download(ctx, raw[n:], o, uint64(last)) },
	); err != nil {
		return nil, err
	}
	values := make([]float32, 2*n/size)
	m.cfg.DType.Decode(values, raw)
	return values, nil
}

// agree returns an error if two results of one problem differ by more than the order of
// sums explains. It finds tiles that a driver miscompiles; it does not measure errors.
func agree(t DType, want, got []float32) error {
	tolerance := map[DType]float32{F16: 0.01, BF16: 0.06, F32: 1e-3}[t]
	for i, w := range want {
		d := got[i] - w
		if !(max(d, -d) <= tolerance*(1+max(w, -w))) { // NaN is not within any tolerance
			return fmt.Errorf("element %d of the result is %v, the heuristic's tile has %v", i, got[i], w)
		}
	}
	return nil
}

func (m *tuneMemory) free() {
	for i, b := range m.buffers {
		if b != nil {
			_ = b.Close()
		}
		m.buffers[i] = nil
	}
}

func (m *tuneMemory) close() {
	if m.stream != nil {
		_ = m.stream.Close() // waits for the work that uses the buffers
	}
	m.free()
	if m.lse != nil {
		_ = m.lse.Close()
	}
}
