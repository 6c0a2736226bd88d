package attention

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"vkattn/internal/backend"
	"vkattn/internal/hostmem"
	"vkattn/internal/operands"
	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// tuneMemory holds the tensors on which candidates are timed, and the clock. Runs cycle
// through copies of the tensors, so that no run finds its inputs in the last-level cache.
type tuneMemory struct {
	*operands.Memory
	cfg     problem.Config
	shape   Shape
	tensors [4]tuneTensor   // Q, K, V, O
	lse     *operands.Block // nil: no LSE
	copies  int
	next    int
	stamps  bool // times are of the device's timestamps, not of the wall clock
}

// tuneTensor is a tensor, in elements.
type tuneTensor struct {
	*operands.Block
	elements int64
	offset   int64 // of the first element, aligned as in the request
	stride   int64 // from one copy to the next
}

const (
	tuneRotation    = 256 << 20 // bytes of all copies: more than any last-level cache so far
	tuneRotationCPU = 16 << 20
	tuneBlock       = 1 << 20 // the inputs repeat this many random numbers
)

// newTuneMemory allocates and fills tensors as a request has them. copies is the number of
// sets; 0 makes more than the last-level cache holds.
func newTuneMemory(ctx context.Context, dev *vk.Device, cfg problem.Config, r plan.Request, copies int) (*tuneMemory, error) {
	if err := dev.CheckMemory("Tune", tuneBytes(cfg, r)); err != nil {
		return nil, err
	}
	memory, err := operands.OpenMemory(backend.Vulkan{Dev: dev}, "tune")
	if err != nil {
		return nil, err
	}
	memory.Stream.NoBarrier = true // calls may overlap
	m := &tuneMemory{Memory: memory, cfg: cfg, shape: r.Shape, copies: copies, stamps: dev.Caps().Limits.TimestampValidBits > 0}
	size := int64(cfg.DType.Size())
	rows, keys := r.Shape.Rows(), int64(r.Shape.B)*int64(r.Shape.KVHeads())*int64(r.Shape.Sk)
	d, dv := int64(cfg.HeadDim), int64(cfg.ValueDim())
	var total int64
	for i, n := range [4]int64{rows * d, keys * d, keys * dv, rows * dv} {
		m.tensors[i] = tuneTensor{elements: n, offset: int64(r.Align[i] % 8), stride: (n + 8 + 4095) / 4096 * 4096}
		total += m.tensors[i].stride * size
	}
	rotation := int64(tuneRotation)
	if dev.Info().Type == vk.DeviceCPU {
		rotation = tuneRotationCPU
	}
	if copies == 0 {
		m.copies = int(max(1, (rotation+total-1)/total))
	}
	for err = m.allocate(size); m.copies > 1 && errors.Is(err, vk.ErrOutOfMemory); err = m.allocate(size) {
		m.copies /= 2
	}
	if err == nil && r.LSE {
		m.lse, err = m.New(uint64(4*rows), vk.BufferOptions{Name: "tune LSE"})
	}
	for _, t := range m.tensors[:3] { // O is computed
		if err == nil {
			err = m.randomize(t.Block)
		}
	}
	if err == nil {
		err = m.Wait(ctx)
	}
	if err != nil {
		m.close()
		return nil, err
	}
	return m, nil
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

func (m *tuneMemory) allocate(size int64) (err error) {
	for i := range m.tensors {
		t := &m.tensors[i]
		n := (t.stride*int64(m.copies-1) + t.elements + 8) * size
		if t.Block, err = m.New(uint64(n), vk.BufferOptions{Name: "tune " + "QKVO"[i:i+1]}); err != nil {
			return errors.Join(err, m.Free())
		}
	}
	return nil
}

// randomize fills a block with normally distributed numbers, so that softmax rows and power draw
// are realistic. It uploads the first numbers and doubles them on the device.
func (m *tuneMemory) randomize(b *operands.Block) error {
	values := make([]float32, tuneBlock)
	random := rand.New(rand.NewPCG(1, 2)) // the same numbers in every tuning
	for i := range values {
		values[i] = float32(random.NormFloat64())
	}
	block := make([]byte, tuneBlock*m.cfg.DType.Size())
	m.cfg.DType.Encode(block, values)
	size := (b.Size() + 3) &^ 3
	done := min(uint64(len(block)), size)
	if err := b.Write(0, block[:done]); err != nil {
		return err
	}
	for ; done < size; done *= 2 {
		if err := operands.InTurn(m.Barrier, func() error { return b.Repeat(done, done) }); err != nil {
			return err
		}
	}
	return nil
}

func (m *tuneMemory) args(copy int) Args {
	a := Args{Shape: m.shape}
	for i, t := range []*Tensor{&a.Q, &a.K, &a.V, &a.O} {
		x := &m.tensors[i]
		*t = Tensor{Buffer: x.Buffer, Offset: x.offset + x.stride*int64(copy)}
	}
	if m.lse != nil {
		a.LSE = Tensor{Buffer: m.lse.Buffer}
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
		return op.Forward(m.Order(), m.args(m.next))
	}
	if !m.stamps {
		return m.timedByWall(ctx, n, run)
	}
	out, err := operands.Timed(ctx, m.Stream, n, run)
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
		if err := operands.InTurn(ctx.Err, run, func() error { return m.Wait(ctx) }); err != nil {
			return nil, err
		}
		out[i] = max(time.Since(start), 1)
	}
	return out, nil
}

// judged is how many elements at the start of a tensor, and at its end, are compared.
const judged = 1 << 18

// result computes the first copy and returns both ends of O.
func (m *tuneMemory) result(ctx context.Context, op *Op) ([]float32, error) {
	return m.computed(ctx, func() error { return op.Forward(m.Order(), m.args(0)) }, m.tensors[3:])
}

// computed fills tensors with NaN, makes a call and returns both ends of each.
func (m *tuneMemory) computed(ctx context.Context, call func() error, of []tuneTensor) (values []float32, err error) {
	size := int64(m.cfg.DType.Size())
	for _, t := range of {
		if err := t.Spoil(uint64((t.offset + t.elements) * size)); err != nil {
			return nil, err
		}
	}
	if err := operands.InTurn(m.Barrier, call, m.Barrier); err != nil {
		return nil, err
	}
	for _, t := range of {
		n := min(t.elements, judged)
		for _, first := range []int64{0, t.elements - n} {
			raw, part := make([]byte, n*size), make([]float32, n)
			if err := m.Stream.Download(ctx, raw, t.Buffer, uint64((t.offset+first)*size)); err != nil {
				return nil, err
			}
			m.cfg.DType.Decode(part, raw)
			values = append(values, part...)
		}
	}
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

func (m *tuneMemory) close() { _ = m.Close() }
