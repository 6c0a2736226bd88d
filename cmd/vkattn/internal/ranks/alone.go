package ranks

import (
	"context"
	"time"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/internal/pause"
)

// alone is a problem on this rank's device.
type alone struct {
	*Session
	op   *attention.Op
	t    *tensors
	args attention.Args
}

// prepare compiles the kernels of a pass.
func (x *alone) prepare(pass bench.Pass) error {
	if pass != bench.PassBackward {
		if err := x.op.PrepareFor(x.args); err != nil || pass == bench.PassForward {
			return err
		}
	}
	return x.op.PrepareBackwardFor(x.t.backward(x.args))
}

// forward computes O and LSE.
func (x *alone) forward(ctx context.Context) error {
	return x.ordered(ctx, func() error { return x.op.Forward(x.stream, x.args) })
}

// backward computes the gradients from O and LSE.
func (x *alone) backward(ctx context.Context) error {
	return x.ordered(ctx, func() error { return x.op.Backward(x.stream, x.t.backward(x.args)) })
}

// pass computes a pass.
func (x *alone) pass(ctx context.Context, pass bench.Pass) error {
	if pass != bench.PassBackward {
		if err := x.forward(ctx); err != nil || pass == bench.PassForward {
			return err
		}
	}
	return x.backward(ctx)
}

// ordered runs a call behind a barrier and waits for it.
func (x *alone) ordered(ctx context.Context, call func() error) error {
	if x.stream == nil {
		return call()
	}
	if err := x.stream.Barrier(); err != nil {
		return err
	}
	if err := call(); err != nil {
		return err
	}
	value, err := x.stream.Submit()
	if err != nil {
		return err
	}
	// Polls for a short time as decoding over ranks does, so that the times compare.
	var spin pause.Spin
	for begin := time.Now(); time.Since(begin) < pollTime; spin.Wait() {
		if now, err := x.stream.Timeline().Value(); now >= value || err != nil {
			break
		}
	}
	return x.stream.Wait(ctx)
}

const pollTime = 4 * time.Millisecond
