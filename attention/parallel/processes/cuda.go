package processes

import (
	"context"
	"fmt"
	"sync/atomic"

	"vkattn/attention"
	"vkattn/attention/parallel"
	"vkattn/cudapath"
	"vkattn/vk"
)

// deviceQueue is the stream in which NCCL moves data, and a number that counts the exchanges
// which the device has finished.
type deviceQueue interface {
	stream() uint64 // CUstream
	// address is the device address of the first byte.
	address(m *parallel.Memory) (uint64, error)
	// signal sets the number when all work of the stream so far has finished.
	signal(n uint64) error
	// reached is the number.
	reached() (uint64, error)
	// drain waits for all work of the stream.
	drain(ctx context.Context) error
	// hold keeps memory that the device may use for ever.
	hold(list []parallel.Transfer)
	close()
}

// cudaQueue is a CUDA stream of a Vulkan device, and a timeline that it signals.
type cudaQueue struct {
	c        *cudapath.Context
	s        *cudapath.Stream
	timeline *vk.Timeline
	imported *cudapath.Semaphore // the same timeline in CUDA
	last     atomic.Uint64       // value that the stream will signal
}

func newCUDAQueue(dev *vk.Device) (*cudaQueue, error) {
	c, err := cudapath.Open(dev)
	if err != nil {
		return nil, err
	}
	q := &cudaQueue{c: c}
	if q.s, err = c.NewStream(); err != nil {
		return nil, err
	}
	if q.timeline, err = dev.NewTimeline(true); err == nil {
		q.imported, err = c.ImportTimeline(q.timeline)
	}
	if err != nil {
		q.close()
		return nil, err
	}
	return q, nil
}

func (q *cudaQueue) stream() uint64 { return q.s.Handle() }

func (q *cudaQueue) address(m *parallel.Memory) (uint64, error) {
	if m.Buffer == nil {
		return 0, fmt.Errorf("%w: NCCL moves device buffers, and a transfer is in host memory", attention.ErrUnsupported)
	}
	at, err := q.c.Address(m.Buffer)
	return at + uint64(m.Offset), err
}

func (q *cudaQueue) signal(n uint64) error {
	err := q.s.SignalTo(q.imported, n)
	if err == nil {
		q.last.Store(n)
	}
	return err
}

// reached asks the stream too: it knows of errors of CUDA, after which nothing is signaled.
func (q *cudaQueue) reached() (uint64, error) {
	last := q.last.Load()
	n, err := q.timeline.Value()
	if err != nil || n >= last {
		return n, err
	}
	finished, err := q.s.Query()
	if finished && err == nil {
		n = last
	}
	return n, err
}

func (q *cudaQueue) drain(ctx context.Context) error { return q.s.Wait(ctx) }

// hold keeps the buffers in a batch that nobody submits. It ends with the device.
func (q *cudaQueue) hold(list []parallel.Transfer) {
	s, err := q.c.Device().NewStream("buffers of transfers that did not end")
	if err != nil {
		return
	}
	for i := range list {
		_ = s.Keep(list[i].Buffer)
	}
}

func (q *cudaQueue) close() {
	_ = q.s.Close()
	_ = q.imported.Close()
	if q.timeline != nil {
		_ = q.timeline.Close()
	}
}
