//go:build cgo && linux

package main

// #include "calls.h"
import "C"

import (
	"unsafe"

	"vkattn/attention"
	"vkattn/cudapath"
)

// In a CUDA program: its context, its memory and its streams.

//export goDeviceOpenCUDA
func goDeviceOpenCUDA(from *C.vkattn_cuda, out *C.vkattn_device) C.vkattn_status {
	return status(func() error {
		e, err := taken(from, "cuda")
		if err != nil {
			return err
		}
		if out == nil {
			return invalid("device is NULL")
		}
		d, err := cudapath.OpenDevice(cudapath.DeviceOptions{Device: goString(e.device), Context: uint64(number(e.context))})
		if err != nil {
			return err
		}
		handle(unsafe.Pointer(out), C.KIND_DEVICE, nil, &device{Device: d})
		C.vka_at_exit()
		return nil
	})
}

// isCUDA reports whether a device is a CUDA device without Vulkan.
func (d *device) isCUDA() bool { return cudapath.ContextOf(d.Device) != nil }

// onCUDA runs wrap on a CUDA device, which stays open meanwhile. out is where the new handle goes.
func onCUDA(h C.vkattn_device, name string, out unsafe.Pointer, wrap func(o *object, d *device) error) C.vkattn_status {
	return using(unsafe.Pointer(h), C.KIND_DEVICE, func(o *object, d *device) error {
		switch {
		case !d.isCUDA():
			return invalid("%v is no CUDA device: vkattn_device_open_cuda did not open it", d)
		case out == nil:
			return invalid("%s is NULL", name)
		}
		return wrap(o, d)
	})
}

//export goBufferWrapCUDA
func goBufferWrapCUDA(h C.vkattn_device, address, n C.uint64_t, out *C.vkattn_buffer) C.vkattn_status {
	return onCUDA(h, "buffer", unsafe.Pointer(out), func(o *object, d *device) error {
		m, err := cudapath.WrapMemory(d.Device, uint64(address), uint64(n))
		if err != nil {
			return err
		}
		handle(unsafe.Pointer(out), C.KIND_BUFFER, o, &buffer{attention.Tensor{Memory: m}, nil, uint64(n), d})
		return nil
	})
}

//export goStreamWrapCUDA
func goStreamWrapCUDA(h C.vkattn_device, of unsafe.Pointer, out *C.vkattn_stream) C.vkattn_status {
	return onCUDA(h, "stream", unsafe.Pointer(out), func(o *object, d *device) error {
		s, err := cudapath.WrapStream(d.Device, uint64(number(of)))
		if err != nil {
			return err
		}
		made, value := (*C.vka_stream)(C.calloc(1, C.sizeof_vka_stream)), &stream{calls: s}
		made.device, made.handle = C.uint64_t(o.id), C.uint64_t(number(of))
		handle(unsafe.Pointer(out), C.KIND_STREAM, o, value).publish(unsafe.Pointer(made))
		return nil
	})
}

// share tells C of the workspace of a stream, which the calls of Go may have changed.
func (s *stream) share(to *C.vka_stream) {
	at, n, captured := cudapath.Workspace(s.calls)
	to.workspace, to.workspace_bytes, to.captured = C.uint64_t(at), C.uint64_t(n), 0
	if captured {
		to.captured = 1
	}
}
