package bench

import (
	"context"
	"time"

	"vkattn/vk"
)

// copyRunner times copies of half the bytes of K and V. Each copy reads and writes, in
// sum, as many bytes as attention reads: the bandwidth that decoding is compared with.
type copyRunner struct {
	deviceClock
	from, to *vk.Buffer
	size     uint64 // of one copy
	stride   uint64
	count    int
	next     int
}

func newCopyRunner(ctx context.Context, dev *vk.Device, bytes, rotation uint64) (l *copyRunner, err error) {
	l = &copyRunner{deviceClock: deviceClock{stamps: dev.Caps().Limits.TimestampValidBits > 0}, size: max(4, bytes/2&^3)}
	l.stride = (l.size + setAlign - 1) / setAlign * setAlign
	l.count = int(max(1, (rotation+2*l.stride-1)/(2*l.stride)))
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.stream, err = dev.NewStream("copy"); err != nil {
		return nil, err
	}
	for _, b := range []**vk.Buffer{&l.from, &l.to} {
		if *b, err = dev.NewBuffer(l.stride*uint64(l.count), vk.BufferOptions{Name: "copy"}); err != nil {
			return l, err
		}
		// A device may read memory faster if it was never written.
		if err = l.stream.Fill(vk.BufferRange{Buffer: *b, Size: (*b).Size()}, 0x3c003c00); err != nil {
			return l, err
		}
	}
	return l, l.stream.Wait(ctx)
}

func (l *copyRunner) timed(ctx context.Context, n int) ([]time.Duration, error) {
	return l.deviceClock.timed(ctx, n, func(s *vk.Stream) error {
		l.next = (l.next + 1) % l.count
		at := l.stride * uint64(l.next)
		return s.Copy(vk.BufferRange{Buffer: l.to, Offset: at, Size: l.size}, vk.BufferRange{Buffer: l.from, Offset: at, Size: l.size})
	})
}

func (l *copyRunner) close() {
	if l.stream != nil {
		_ = l.stream.Close()
	}
	for _, b := range []*vk.Buffer{l.from, l.to} {
		if b != nil {
			_ = b.Close()
		}
	}
}

// hostCopy times the same copies on the CPU, by the wall clock.
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
			start := time.Now()
			copy(to[at:at+size], from[at:at+size])
			out = append(out, max(1, time.Since(start)))
		}
		return out, nil
	}
}
