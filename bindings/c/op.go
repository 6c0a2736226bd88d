//go:build cgo && linux

package main

// #include "calls.h"
import "C"

import (
	"unsafe"

	"vkattn/attention"
)

// operation is an Op. It keeps its own device, which holding an op holds.
type operation struct {
	*attention.Op
	device *device
}

//export goOpCreate
func goOpCreate(h C.vkattn_device, from *C.vkattn_config, out *C.vkattn_op) C.vkattn_status {
	return using(unsafe.Pointer(h), C.KIND_DEVICE, func(o *object, d *device) error {
		if out == nil {
			return invalid("op is NULL")
		}
		cfg, err := configOf(from)
		if err != nil {
			return err
		}
		op, err := attention.New(d.Device, cfg)
		if err != nil {
			return err
		}
		handle(unsafe.Pointer(out), C.KIND_OP, o, &operation{op, d})
		return nil
	})
}

// arguments are those of a call, with what the call holds.
type arguments struct {
	call
	op       *operation
	commands *stream // nil: none
	attention.BackwardArgs
	backward bool
}

// with reads the arguments of a call, forward or backward, and calls f. isRun: it computes.
func with(h C.vkattn_op, on C.vkattn_stream, forward *C.vkattn_args, backward *C.vkattn_backward_args, isBackward, isRun bool, f func(a *arguments) error) C.vkattn_status {
	return status(func() error {
		a := &arguments{backward: isBackward}
		defer a.end()
		if err := a.read(h, on, forward, backward, isRun); err != nil {
			return err
		}
		return f(a)
	})
}

// read holds what a call uses, and reads its arguments.
func (a *arguments) read(h C.vkattn_op, on C.vkattn_stream, forward *C.vkattn_args, backward *C.vkattn_backward_args, isRun bool) error {
	o, op, err := hold[*operation](&a.call, unsafe.Pointer(h), C.KIND_OP)
	if err != nil {
		return err
	}
	a.op = op
	if on != nil {
		if _, a.commands, err = hold[*stream](&a.call, unsafe.Pointer(on), C.KIND_STREAM); err != nil {
			return err
		}
	}
	r := reader{call: &a.call, device: o.home}
	if op.device.isCUDA() && (a.commands != nil || !isRun) {
		r.cuda = op.device
	}
	if a.backward {
		a.BackwardArgs = r.backwardArgs(backward)
	} else {
		a.Args = r.args(forward)
	}
	return r.err
}

// run makes the call: on a command buffer it is recorded, in host memory it is done when run returns.
func (a *arguments) run() error {
	if s := a.commands; s != nil && s.calls != nil {
		return a.launch(s.calls)
	}
	switch {
	case a.commands != nil && a.backward:
		return a.op.RecordBackward(a.commands.Commands, a.BackwardArgs)
	case a.commands != nil:
		return a.op.Record(a.commands.Commands, a.Args)
	}
	return a.staged(true, func() error { return a.launch(nil) })
}

func (a *arguments) launch(s *attention.Stream) error {
	if a.backward {
		return a.op.Backward(s, a.BackwardArgs)
	}
	return a.op.Forward(s, a.Args)
}

func (a *arguments) prepare() error {
	return a.staged(false, func() error {
		if a.backward {
			return a.op.PrepareBackwardFor(a.BackwardArgs)
		}
		return a.op.PrepareFor(a.Args)
	})
}

func (a *arguments) plan(out *C.vkattn_plan) error {
	if err := sized(out, "plan"); err != nil {
		return err
	}
	return a.staged(false, func() error {
		plan := C.vkattn_plan{size: out.size}
		if a.backward {
			p, err := a.op.PlanBackwardFor(a.BackwardArgs)
			if err != nil {
				return err
			}
			plan.tier, plan.flops, plan.bytes, plan.workspace_bytes = C.int32_t(p.Tier), C.uint64_t(p.Flops), C.uint64_t(p.Bytes), C.uint64_t(p.ScratchBytes)
			store(plan.text[:], p.String())
		} else {
			p, err := a.op.PlanFor(a.Args)
			if err != nil {
				return err
			}
			plan.tier, plan.splits, plan.flops, plan.bytes = C.int32_t(p.Tier), C.int32_t(p.Splits), C.uint64_t(p.Flops), C.uint64_t(p.Bytes)
			plan.workspace_bytes = C.uint64_t(p.WorkspaceBytes)
			store(plan.text[:], p.String())
		}
		*out = plan
		return nil
	})
}

//export goOpForward
func goOpForward(op C.vkattn_op, on C.vkattn_stream, args *C.vkattn_args) C.vkattn_status {
	return with(op, on, args, nil, false, true, (*arguments).run)
}

//export goOpBackward
func goOpBackward(op C.vkattn_op, on C.vkattn_stream, args *C.vkattn_backward_args) C.vkattn_status {
	return with(op, on, nil, args, true, true, (*arguments).run)
}

//export goOpPrepare
func goOpPrepare(op C.vkattn_op, args *C.vkattn_args) C.vkattn_status {
	return with(op, nil, args, nil, false, false, (*arguments).prepare)
}

//export goOpPrepareBackward
func goOpPrepareBackward(op C.vkattn_op, args *C.vkattn_backward_args) C.vkattn_status {
	return with(op, nil, nil, args, true, false, (*arguments).prepare)
}

//export goOpPlan
func goOpPlan(op C.vkattn_op, args *C.vkattn_args, plan *C.vkattn_plan) C.vkattn_status {
	return with(op, nil, args, nil, false, false, func(a *arguments) error { return a.plan(plan) })
}

//export goOpPlanBackward
func goOpPlanBackward(op C.vkattn_op, args *C.vkattn_backward_args, plan *C.vkattn_plan) C.vkattn_status {
	return with(op, nil, nil, args, true, false, func(a *arguments) error { return a.plan(plan) })
}
