package bench

import (
	"context"
	"time"

	"vkattn/cudapath"
	"vkattn/vk"
)

// timedByEvents times tier cuda by CUDA events around each kernel. All runs of a batch are
// in one turn of CUDA, so that the two queue changes are not part of a kernel's time: a
// Vulkan stream pays for them once, however many kernels lie between.
func (l *deviceRunner) timedByEvents(ctx context.Context, run func(*vk.Stream) error, n int) ([]time.Duration, error) {
	cuda, err := cudapath.Open(l.stream.Device())
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
		s, err := cuda.Turn(l.stream)
		if err != nil {
			return err
		}
		return s.Record(e)
	}
	for i := range n {
		if err := firstError(
			func() error { return record(l.events[2*i]) },
			func() error { return run(l.stream) },
			func() error { return record(l.events[2*i+1]) },
		); err != nil {
			return nil, err
		}
	}
	if err := l.stream.Wait(ctx); err != nil {
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
