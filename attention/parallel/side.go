package parallel

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"time"

	"vkattn/attention"
	"vkattn/attention/merge"
	"vkattn/internal/pause"
	"vkattn/vk"
)

// side is where a call computes: in host memory, or on a device in the order of a stream. It
// allocates, copies and sums tensors there. On a device the first error stays in err, and the
// work recorded after it does nothing.
type side struct {
	s         *vk.Stream // nil: host memory
	stream    *attention.Stream
	op        *Op
	options   vk.BufferOptions
	buffers   []*vk.Buffer // allocated
	allocated int64
	polls     int // of the last call of soon
	err       error
}

// newSide computes in host memory, or on the device of a stream with buffers that the transport
// moves.
func (op *Op) newSide(s *attention.Stream) side {
	return side{s: s.Vulkan(), stream: s, op: op, options: op.group.t.Buffers()}
}

// unordered leaves the order of a stream's work to a call, which records its barriers and waits at the end: blocks of O
// that no two computations share lie in overlapping ranges of memory. Its result ends that.
func unordered(stream *attention.Stream) (end func()) {
	s := stream.Vulkan()
	if s == nil {
		return func() {}
	}
	before := s.NoBarrier
	s.NoBarrier = true
	return func() { s.NoBarrier = before }
}

// fail keeps the first error.
func (s *side) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// close gives back what was allocated. Work in flight holds what it uses.
func (s *side) close() error {
	list := s.buffers
	s.buffers = nil
	return closeAll(list)
}

// end is close after all work has finished. If err is nil the next call takes the buffers.
func (s *side) end(err error) error {
	if err != nil {
		return s.close()
	}
	list := s.buffers
	s.buffers = nil
	return s.op.pool.keep(list)
}

// new allocates a packed tensor. In host memory its elements are 0.
func (s *side) new(dtype attention.DType, batch, heads, rows, dim int) view {
	v := viewOf(attention.Tensor{}, dtype, batch, heads, rows, dim)
	s.allocated += v.bytes()
	if s.s == nil {
		v.Host = make([]byte, v.bytes())
		return v
	}
	v.Buffer = s.buffer(v.bytes())
	return v
}

// buffer allocates device memory; nil after an error.
func (s *side) buffer(bytes int64) *vk.Buffer {
	if s.err != nil {
		return nil
	}
	dev, size := s.s.Device(), uint64(max(bytes, 4))
	b := s.op.pool.take(dev, size, s.options)
	if b == nil {
		var err error
		if b, err = dev.NewBuffer(size, s.options); errors.Is(err, vk.ErrOutOfMemory) {
			if err = s.op.pool.drop(); err == nil {
				b, err = dev.NewBuffer(size, s.options)
			}
		}
		if err != nil {
			s.fail(err)
			return nil
		}
	}
	s.buffers = append(s.buffers, b)
	return b
}

// like allocates a packed tensor with the sizes of another.
func (s *side) like(v view, dtype attention.DType) view {
	return s.new(dtype, v.batch, v.heads, v.rows, v.dim)
}

// vector returns int32 numbers for a kernel.
func (s *side) vector(numbers []int) attention.Vector {
	var host []byte
	for _, x := range numbers {
		host = binary.LittleEndian.AppendUint32(host, uint32(int32(x)))
	}
	if s.s == nil {
		return attention.Vector{Host: host}
	}
	b := s.buffer(int64(len(host)))
	if s.err == nil {
		s.fail(s.s.Upload(b, 0, host))
	}
	return attention.Vector{Buffer: b}
}

// ordered records a barrier in front of work on a device. It returns false if an error
// prevents the work.
func (s *side) ordered() bool {
	if s.err == nil && s.s != nil {
		s.fail(s.s.Barrier())
	}
	return s.err == nil
}

// copy copies a tensor to another of the same sizes and type.
func (s *side) copy(dst, src view) { s.copies([]copying{{dst, src}}) }

// copying is a copy of src to dst.
type copying struct{ dst, src view }

// copies makes copies that do not depend on one another, behind one barrier.
func (s *side) copies(list []copying) {
	list = slices.DeleteFunc(list, func(x copying) bool { return x.src.bytes() == 0 })
	if len(list) == 0 || s.s != nil && !s.ordered() {
		return
	}
	for _, x := range list {
		s.copyUnordered(x.dst, x.src)
	}
}

func (s *side) copyUnordered(dst, src view) {
	switch {
	case s.s != nil:
		s.copyOnDevice(dst, src)
	case dst.packed() && src.packed():
		to, from := dst.memory(), src.memory()
		copy(to.bytes(), from.bytes())
	default:
		src.eachRow(func(b, h, row int) { copy(dst.row(b, h, row), src.row(b, h, row)) })
	}
}

func (s *side) copyOnDevice(dst, src view) {
	if s.err != nil {
		return
	}
	if dst.packed() && src.packed() {
		s.fail(s.s.Copy(dst.onDevice(), src.onDevice()))
		return
	}
	if done, err := s.copyRows(dst, src); done || err != nil {
		s.fail(err)
		return
	}
	consecutive := dst.consecutive() && src.consecutive()
	var to []uint64
	dst.pieces(consecutive, func(at, _ uint64) { to = append(to, at) })
	i := 0
	src.pieces(consecutive, func(at, n uint64) {
		if s.err == nil {
			s.fail(s.s.Copy(vk.BufferRange{Buffer: dst.Buffer, Offset: to[i], Size: n},
				vk.BufferRange{Buffer: src.Buffer, Offset: at, Size: n}))
		}
		i++
	})
}

// copyRows copies strided tensors by one dispatch: a Sum of one float32 term, which moves the words of
// a row and computes nothing. A vkCmdCopyBuffer for each piece of 2 to 8 MiB moved 0.5 TB/s on an H100,
// reads and writes together. It returns false if rows are not whole words, or a kernel does not reach them.
func (s *side) copyRows(dst, src view) (bool, error) {
	to, ok := dst.words()
	from, okFrom := src.words()
	if !ok || !okFrom || to.dim > maxSumDim || to.rows > attention.MaxLength {
		return false, nil
	}
	op, err := s.op.sum(attention.F32, to.dim)
	if err == nil {
		err = op.Forward(s.stream, merge.SumArgs{Shape: attention.Shape{B: to.batch, Hq: to.heads, Sq: to.rows},
			First: from.Tensor, Out: to.Tensor})
	}
	if errors.Is(err, attention.ErrUnsupported) {
		return false, nil
	}
	return err == nil, err
}

// maxSumDim is the widest row of a Sum, in words.
const maxSumDim = 512

// dense returns a packed tensor with the same elements, in v's memory or in a copy. The
// transport moves its memory.
func (s *side) dense(v view) view {
	var memory view
	return s.denseIn(&memory, v)
}

// denseIn is dense with memory for a copy, which the first copy of that size allocates.
func (s *side) denseIn(memory *view, v view) view {
	if s.isDense(v) {
		v.Strides = attention.BHSD(v.heads, v.rows, v.dim)
		return v
	}
	if !memory.Given() {
		*memory = s.like(v, v.dtype)
	}
	s.copy(*memory, v)
	return *memory
}

// isDense reports whether dense needs no copy.
func (s *side) isDense(v view) bool {
	return v.packed() && (s.s == nil || v.bytes() == 0 || s.moves(v.Buffer))
}

// reaches reports whether a tensor is in memory that the kernels of every tier reach. Those of tier
// cuda do not reach all that the caller may have.
func (s *side) reaches(v view) bool { return s.s == nil || v.bytes() == 0 || s.moves(v.Buffer) }

// moves reports whether the transport moves a buffer.
func (s *side) moves(b *vk.Buffer) bool {
	return b.Memory() == s.options.Memory && (b.Exportable() || !s.options.Exportable) || s.options.Memory != vk.DeviceLocal && b.Bytes() != nil
}

// clear sets all elements to 0.
func (s *side) clear(v view) {
	if s.s == nil {
		v.eachRow(func(b, h, row int) { clear(v.row(b, h, row)) })
		return
	}
	if v.bytes() == 0 {
		return
	}
	if to := v.onDevice(); v.packed() && to.Offset%4 == 0 && to.Size%4 == 0 {
		if s.ordered() {
			s.fail(s.s.Fill(to, 0))
		}
		return
	}
	zeros := s.like(v, v.dtype)
	if s.ordered() {
		s.fail(s.s.Fill(vk.BufferRange{Buffer: zeros.Buffer}, 0))
	}
	s.copy(v, zeros)
}

// empty sets LSE to -inf, the LSE of rows without keys.
func (s *side) empty(lse view) {
	infinity := math.Float32bits(float32(math.Inf(-1)))
	if s.s == nil {
		lse.eachRow(func(b, h, row int) { binary.LittleEndian.PutUint32(lse.row(b, h, row), infinity) })
		return
	}
	if lse.bytes() == 0 || !s.ordered() {
		return
	}
	lse.pieces(lse.consecutive(), func(at, n uint64) {
		if s.err == nil {
			s.fail(s.s.Fill(vk.BufferRange{Buffer: lse.Buffer, Offset: at, Size: n}, infinity))
		}
	})
}

// submit starts what was recorded. It returns the value that reached takes.
func (s *side) submit() (uint64, error) {
	if s.s == nil || s.err != nil {
		return 0, s.err
	}
	return s.s.Submit()
}

// sync waits for what was recorded, so that another rank may read it, and write what it read.
func (s *side) sync(ctx context.Context) error {
	if s.s == nil || s.err != nil {
		return s.err
	}
	return s.s.Wait(ctx)
}

// reached waits as sync, for a submission and what came before. What came after goes on.
func (s *side) reached(ctx context.Context, value uint64) error {
	if s.s == nil || s.err != nil {
		return s.err
	}
	return s.s.WaitValue(ctx, value)
}

// soon waits as reached, for work that takes a few milliseconds at most. For that long it polls the
// stream's timeline: a wait that blocks returns some 50 us after the device has finished.
func (s *side) soon(ctx context.Context, value uint64) error {
	if s.s == nil || s.err != nil {
		return s.err
	}
	s.polls = 0
	var spin pause.Spin
	for begin := time.Now(); time.Since(begin) < pollTime; spin.Wait() {
		s.polls++
		if now, err := s.s.Timeline().Value(); now >= value || err != nil {
			break
		}
	}
	return s.s.WaitValue(ctx, value)
}

// pollTime is how long soon polls.
const pollTime = 4 * time.Millisecond

// settle waits for all work at the end of a call, also after an error, so that nothing uses the
// tensors any more and the stream holds no half of a call. A device that hangs ends the wait.
func (s *side) settle() error {
	if s.s == nil {
		return nil
	}
	return s.s.Finish()
}
