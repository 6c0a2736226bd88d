//go:build cgo && linux

package main

// #include "calls.h"
import "C"

import (
	"sync"
	"unsafe"

	"vkattn/attention"
	"vkattn/cudapath"
)

// Calls that a program makes again and again. The first run on a stream of CUDA records the launches, which call.c repeats.

// repeated is a call, but for the addresses of its tensors.
type repeated struct {
	op       C.vkattn_op
	backward bool
	args     C.vkattn_args
	back     C.vkattn_backward_args
	once     sync.Once // records
}

func (r *repeated) Close() error { return nil }

// calls are the calls of an operation, which its object o is of.
func (op *operation) calls(o *object) (list []*object) {
	for _, x := range of(o.home) {
		if r, ok := x.value.(*repeated); ok && uintptr(unsafe.Pointer(r.op)) == o.id {
			list = append(list, x)
		}
	}
	return list
}

// tensorsOf are the tensors of a call in the order of the addresses.
func tensorsOf(a *C.vkattn_args, b *C.vkattn_backward_args) [C.CALL_TENSORS]*C.vkattn_tensor {
	return [...]*C.vkattn_tensor{&a.q, &a.k, &a.v, &a.o, &a.lse, &b.d_o, &b.d_lse, &b.d_q, &b.d_k, &b.d_v}
}

//export goCallCreateForward
func goCallCreateForward(op C.vkattn_op, args *C.vkattn_args, out *C.vkattn_call) C.vkattn_status {
	return create(op, args, nil, out)
}

//export goCallCreateBackward
func goCallCreateBackward(op C.vkattn_op, args *C.vkattn_backward_args, out *C.vkattn_call) C.vkattn_status {
	if args == nil {
		return status(func() error { return invalid("args is NULL") })
	}
	return create(op, args.forward, args, out)
}

func create(h C.vkattn_op, args *C.vkattn_args, back *C.vkattn_backward_args, out *C.vkattn_call) C.vkattn_status {
	return using(unsafe.Pointer(h), C.KIND_OP, func(o *object, _ *operation) error {
		if out == nil {
			return invalid("call is NULL")
		}
		var err error
		r := &repeated{op: h, backward: back != nil}
		if r.args, err = taken(args, "args"); err != nil {
			return err
		}
		if r.backward {
			if r.back, err = taken(back, "args"); err != nil {
				return err
			}
			r.back.forward = nil
		}
		for _, t := range tensorsOf(&r.args, &r.back) {
			if t.buffer != nil {
				return invalid("a tensor is in a buffer: a vkattn_call takes data")
			}
		}
		// Without its tensors and numbers a call without options is zero.
		a, b := r.args, r.back
		for _, t := range tensorsOf(&a, &b) {
			*t = C.vkattn_tensor{}
		}
		if a != (C.vkattn_args{size: a.size, shape: a.shape, dropout_seed: a.dropout_seed, dropout_offset: a.dropout_offset}) ||
			b != (C.vkattn_backward_args{size: b.size, accumulate: b.accumulate, partial_keys: b.partial_keys}) {
			return invalid("args has options: a vkattn_call takes none")
		}
		handle(unsafe.Pointer(out), C.KIND_CALL, o.home, r)
		return nil
	})
}

//export goCallRun
func goCallRun(h C.vkattn_call, on C.vkattn_stream, data *unsafe.Pointer) C.vkattn_status {
	return using(unsafe.Pointer(h), C.KIND_CALL, func(o *object, r *repeated) error {
		if data == nil {
			return invalid("data is NULL")
		}
		args, back := r.args, r.back
		n := 5
		if r.backward {
			n, back.forward = C.CALL_TENSORS, &args
		}
		list := tensorsOf(&args, &back)
		for i, at := range unsafe.Slice(data, n) {
			if list[i].data != nil || list[i].bytes != 0 {
				list[i].data = at
			}
		}
		a := &arguments{backward: r.backward}
		defer a.end()
		if err := a.read(r.op, on, &args, &back, true); err != nil {
			return err
		}
		if err := a.run(); err != nil {
			return err
		}
		if a.commands != nil && a.commands.calls != nil && a.op.device.isCUDA() {
			r.once.Do(func() {
				if recipe := r.record(o, a, list[1].data == list[2].data); recipe != nil {
					o.publish(unsafe.Pointer(recipe))
				}
			})
		}
		return nil
	})
}

// record makes what C needs to repeat a call, nil if only Go can make it. sameKV: K and V had one address.
func (r *repeated) record(o *object, a *arguments, sameKV bool) *C.vka_recipe {
	list := tensorsOf(&r.args, &r.back)
	var bytes [C.CALL_TENSORS]uint64
	for i, t := range list {
		if bytes[i] = uint64(t.bytes); t.data != nil && bytes[i] == 0 {
			return nil
		}
	}
	// Launches that failed in part are made again, so they add to nothing.
	if a.op.Config().Check || a.Accumulate {
		return nil
	}
	const k, v = 1, 2
	vIsK := C.int32_t(-1) // of several KV heads V is not in K
	if a.KVHeads() == 1 {
		vIsK = 0
		if sameKV {
			vIsK = 1
		}
	}
	args := a.BackwardArgs
	made, err := cudapath.Record(a.op.device.Device, bytes[:], func(s *attention.Stream, m []*attention.Memory) error {
		if vIsK == 1 {
			m[v] = m[k]
		}
		for i, t := range [...]*attention.Tensor{&args.Q, &args.K, &args.V, &args.O, &args.LSE, &args.DO, &args.DLSE, &args.DQ, &args.DK, &args.DV} {
			if bytes[i] > 0 {
				t.Memory = m[i]
			}
		}
		if r.backward {
			return a.op.Backward(s, args)
		}
		return a.op.Forward(s, args.Args)
	})
	if err != nil {
		return nil
	}
	return recipeOf(made, o.home, bytes, r.backward, vIsK)
}

// recipeOf puts a recording into memory of C, nil if it has no room.
func recipeOf(from *cudapath.Recording, home *object, bytes [C.CALL_TENSORS]uint64, backward bool, vIsK C.int32_t) *C.vka_recipe {
	n := len(from.Launches)
	for i := range from.Launches {
		if l := &from.Launches[i]; len(l.Params) > C.CALL_WORDS || len(l.Addresses) > C.CALL_ADDRESSES || len(l.Maps) > C.CALL_MAPS {
			return nil
		}
	}
	p := C.calloc(1, C.sizeof_vka_recipe+C.size_t(n)*C.sizeof_vka_launch)
	to := (*C.vka_recipe)(p)
	*to = C.vka_recipe{device: C.uint64_t(home.id), context: C.uint64_t(from.Context), push: C.uint64_t(from.Push), pop: C.uint64_t(from.Pop),
		encode: C.uint64_t(from.Encode), launch: C.uint64_t(from.Launch), launch_ex: C.uint64_t(from.LaunchEx), is_captured: C.uint64_t(from.IsCaptured),
		workspace: C.uint64_t(from.Workspace), outputs: 1<<3 | 1<<4, v_is_k: vIsK, count: C.uint64_t(n)}
	if backward {
		to.outputs = 1<<7 | 1<<8 | 1<<9
	}
	for i, x := range bytes {
		to.bytes[i] = C.uint64_t(x)
	}
	list := unsafe.Slice((*C.vka_launch)(unsafe.Add(p, C.sizeof_vka_recipe)), n)
	for i := range list {
		l, from := &list[i], &from.Launches[i]
		l.function, l.threads, l.shared = C.uint64_t(from.Function), C.uint32_t(from.Threads), C.uint32_t(from.Shared)
		l.maps, l.words, l.addresses = C.uint32_t(len(from.Maps)), C.uint32_t(len(from.Params)), C.uint32_t(len(from.Addresses))
		if from.Early {
			l.early = 1
		}
		for j, x := range from.Grid {
			l.grid[j] = C.uint32_t(x)
		}
		for j, x := range from.Params {
			l.params[j] = C.uint64_t(x)
		}
		for j, x := range from.Addresses {
			l.address[j] = C.vka_address{C.uint32_t(x.Word), C.uint32_t(x.Of), C.uint64_t(x.Offset)}
		}
		for j := range from.Maps {
			x, m := &from.Maps[j], &l._map[j]
			m.base, m.kind, m.swizzle = C.vka_address{0, C.uint32_t(x.Of), C.uint64_t(x.Offset)}, C.int32_t(x.Kind), C.int32_t(x.Swizzle)
			for d := range x.Dims {
				m.dims[d], m.box[d] = C.uint64_t(x.Dims[d]), C.uint32_t(x.Box[d])
			}
			for d := range x.Strides {
				m.strides[d] = C.uint64_t(x.Strides[d])
			}
		}
	}
	return to
}
