package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"vkattn/internal/backend"
	"vkattn/internal/ceiling"
	"vkattn/internal/hostmem"
	"vkattn/internal/operands"
	"vkattn/vk"
)

// copyRunner times copies of memory, or reads, on one input set after the other.
type copyRunner struct {
	deviceClock
	memory   *operands.Memory
	kernels  []*ceiling.Transfer // variants of one kernel
	kernel   *ceiling.Transfer   // the one that is timed
	from, to *vk.Buffer          // to is nil for reads
	period   []byte              // from repeats it
	size     uint64              // of one run
	stride   uint64
	count    int
	next     int
}

const (
	transferUnit   = 16                 // bytes
	transferPeriod = 16<<20 - 4096 + 16 // no power of two, as displacements in a wrong copy would be
)

// newCopyRunner prepares copies of size bytes, or reads, on as many input sets as rotation
// holds.
func newCopyRunner(ctx context.Context, dev *vk.Device, read bool, size, rotation uint64) (l *copyRunner, err error) {
	l = &copyRunner{deviceClock: deviceClock{stamps: dev.Caps().Limits.TimestampValidBits > 0},
		size: max(transferUnit, size&^(transferUnit-1))}
	buffers, variants := []**vk.Buffer{&l.from, &l.to}, ceiling.Copies
	if read {
		buffers, variants = buffers[:1], ceiling.Reads
	}
	l.stride = (l.size + setAlign - 1) / setAlign * setAlign
	moved := l.stride * uint64(len(buffers))
	l.count = int(max(1, (rotation+moved-1)/moved))
	made := l // a return may set l to nil
	defer func() {
		if err != nil {
			made.close()
		}
	}()
	if l.kernels, err = variants(dev); err != nil {
		return nil, err
	}
	l.kernel = l.kernels[0]
	if l.memory, err = operands.OpenMemory(backend.Vulkan{Dev: dev}, "copy"); err != nil {
		return nil, err
	}
	l.stream = l.memory.Stream
	for _, b := range buffers {
		block, err := l.memory.New(l.stride*uint64(l.count), vk.BufferOptions{Name: "copy"})
		if err != nil {
			return l, err
		}
		*b = block.Buffer
	}
	if err = l.fill(ctx); err != nil {
		return l, err
	}
	return l, l.verify(ctx)
}

// fill writes random words to the source, and others to the destination: a device may read
// memory faster if it was never written.
func (l *copyRunner) fill(ctx context.Context) error {
	l.period = make([]byte, min(transferPeriod, l.from.Size()))
	r := rand.New(rand.NewPCG(1, l.size))
	for i := 0; i+8 <= len(l.period); i += 8 {
		binary.LittleEndian.PutUint64(l.period[i:], r.Uint64())
	}
	if err := l.stream.Upload(l.from, 0, l.period); err != nil {
		return err
	}
	period := uint64(len(l.period))
	for at := period; at < l.from.Size(); at += period {
		size := min(period, l.from.Size()-at)
		if err := l.stream.Copy(vk.BufferRange{Buffer: l.from, Offset: at, Size: size},
			vk.BufferRange{Buffer: l.from, Size: size}); err != nil {
			return err
		}
	}
	if l.to != nil {
		if err := l.stream.Fill(vk.BufferRange{Buffer: l.to, Size: l.to.Size()}, 0); err != nil {
			return err
		}
	}
	return operands.InTurn(l.stream.Barrier, func() error { return l.stream.Wait(ctx) })
}

// verify runs each variant on the first set. The error of a wrong result matches
// ceiling.ErrWrong.
func (l *copyRunner) verify(ctx context.Context) error {
	for _, k := range l.kernels {
		if err := l.record(l.stream, k, 0); err != nil {
			return err
		}
		var err error
		if l.to == nil {
			err = l.verifyRead(ctx, k)
		} else {
			err = l.verifyCopy(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *copyRunner) verifyRead(ctx context.Context, k *ceiling.Transfer) error {
	words := func(data []byte) (sum uint32) {
		for ; len(data) > 0; data = data[4:] {
			sum += binary.LittleEndian.Uint32(data)
		}
		return sum
	}
	got, err := k.Sum(ctx, l.stream)
	if err != nil {
		return err
	}
	period := uint64(len(l.period))
	want := uint32(l.size/period)*words(l.period) + words(l.period[:l.size%period])
	if got != want {
		return fmt.Errorf("%w: the words read sum to %#x, want %#x", ceiling.ErrWrong, got, want)
	}
	return nil
}

// verifyCopy compares the first and the last bytes of the first set, a period or two each, and
// clears the set for the next variant.
func (l *copyRunner) verifyCopy(ctx context.Context) error {
	period := uint64(len(l.period))
	last := l.size / period
	for _, i := range []uint64{0, last - min(last, 1), last} {
		at := i * period
		got := make([]byte, min(period, l.size-at))
		if err := l.stream.Download(ctx, got, l.to, at); err != nil {
			return err
		}
		if !bytes.Equal(got, l.period[:len(got)]) {
			return fmt.Errorf("%w: the bytes from %d on are not those copied", ceiling.ErrWrong, at)
		}
	}
	return operands.InTurn(func() error { return l.stream.Fill(vk.BufferRange{Buffer: l.to, Size: l.size}, 0) }, l.stream.Barrier)
}

// record records a run on an input set.
func (l *copyRunner) record(s *vk.Stream, k *ceiling.Transfer, set int) error {
	from := vk.BufferRange{Buffer: l.from, Offset: l.stride * uint64(set), Size: l.size}
	if l.to == nil {
		return k.Record(s, vk.BufferRange{}, from)
	}
	return k.Record(s, vk.BufferRange{Buffer: l.to, Offset: from.Offset, Size: l.size}, from)
}

// fastest picks the variant that is timed.
func (l *copyRunner) fastest(ctx context.Context, g *group) error {
	best, err := g.fastest(ctx, len(l.kernels), func(ctx context.Context, i, n int) ([]time.Duration, error) {
		l.kernel = l.kernels[i]
		return l.timed(ctx, n)
	})
	l.kernel = l.kernels[best]
	return err
}

func (l *copyRunner) timed(ctx context.Context, n int) ([]time.Duration, error) {
	return l.deviceClock.timed(ctx, n, func(s *vk.Stream) error {
		l.next = (l.next + 1) % l.count
		return l.record(s, l.kernel, l.next)
	})
}

func (l *copyRunner) close() {
	if l.memory != nil {
		_ = l.memory.Close()
	}
	for _, k := range l.kernels {
		_ = k.Close()
	}
}

// Bytes of a copy or read ceiling, of each buffer: well past the last-level cache, 50 MB on an
// H200.
const (
	transferCeiling    = 1 << 30
	transferCeilingMin = 64 << 20
	transferCeilingCPU = 8 << 20
)

// memoryCeiling prepares a copy or a read, of less than transferCeiling where memory is short.
func (g *group) memoryCeiling(ctx context.Context, row *Row) (func(context.Context, int) ([]time.Duration, error), *deviceClock, error) {
	buffers := uint64(1)
	if row.Ceiling == CeilingCopy {
		buffers = 2
	}
	size := uint64(transferCeiling)
	if g.Device.Vulkan().Info().Type == vk.DeviceCPU {
		size = transferCeilingCPU
	}
	for {
		row.Memory = buffers * size
		err := Room(g.Device, 2*transferPeriod, hostmem.Sum(row.Memory, 4*setAlign))
		if err == nil {
			break
		}
		if size <= transferCeilingMin || !errors.Is(err, vk.ErrOutOfMemory) {
			return nil, nil, err
		}
		size /= 2
	}
	var l *copyRunner
	err := g.within(ctx, func(ctx context.Context) (err error) {
		l, err = newCopyRunner(ctx, g.Device.Vulkan(), row.Ceiling == CeilingRead, size, 0)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	g.copies = l
	if err := l.fastest(ctx, g); err != nil {
		return nil, nil, err
	}
	row.Bytes = buffers*l.size + l.kernel.SumBytes()
	row.Sets, row.Timer, row.Tile, row.SPIRV = l.count, l.timer(), l.kernel.Tile(), modules(g.Device.Vulkan(), l.kernel.Module())
	return l.timed, &l.deviceClock, nil
}

// hostCopy times copies of half the bytes on the CPU, by the wall clock.
func hostCopy(bytes, rotation uint64) func(context.Context, int) ([]time.Duration, error) {
	size := max(4, bytes/2)
	count := int(max(1, rotation/(2*size)))
	from, to := make([]byte, size*uint64(count)), make([]byte, size*uint64(count))
	for i := range from {
		from[i] = byte(i)
	}
	next := 0
	return func(ctx context.Context, n int) (out []time.Duration, err error) {
		for range n {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			next = (next + 1) % count
			at := size * uint64(next)
			elapsed := Stopwatch()
			copy(to[at:at+size], from[at:at+size])
			out = append(out, max(1, elapsed()))
		}
		return out, nil
	}
}
