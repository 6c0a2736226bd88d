//go:build cgo && linux

// Command c is the library libvkattn.so (go build -buildmode=c-shared), whose header is vkattn.h. calls.c has the
// functions of the header; each calls one of the exported functions here. docs/c.md is for those who use it.
package main

// #cgo CFLAGS: -std=gnu99 -O2 -Wall
// #cgo LDFLAGS: -lpthread
// #include "calls.h"
import "C"

import (
	"context"
	"math"
	"time"
	"unsafe"

	"vkattn/attention"
	_ "vkattn/cudapath" // tiers cubin and cuda, where they are faster
	"vkattn/internal/backend"
	"vkattn/vk"
)

func main() {}

// device is a device with the time that calls wait which are given none.
type device struct {
	*attention.Device
	wrapped *vk.Device // of the caller; nil: the library's own
	timeout time.Duration
}

// Close closes a wrapped device too: it destroys what the library made on it.
func (d *device) Close() error {
	err := d.Device.Close()
	if d.wrapped != nil {
		err = d.wrapped.Close()
	}
	return err
}

// do makes a call with f on the default stream.
func (d *device) do(method string, f func(backend.Stream) error) error {
	return backend.Do(backend.HomeOf(d.Device), method, f)
}

// waiting is the context of a wait without a timeout of its own.
func (d *device) waiting() (context.Context, context.CancelFunc) {
	if d.timeout <= 0 {
		return context.WithCancel(context.Background())
	}
	return context.WithTimeout(context.Background(), d.timeout)
}

func timeoutOf(ms C.int64_t) (time.Duration, error) {
	if ms < 0 || int64(ms) > math.MaxInt64/int64(time.Millisecond) {
		return 0, invalid("timeout_ms is %d, want at least 0", ms)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

//export goDeviceOpen
func goDeviceOpen(from *C.vkattn_device_options, out *C.vkattn_device) C.vkattn_status {
	return status(func() error {
		o := attention.Options{}
		var timeout time.Duration
		if out == nil {
			return invalid("device is NULL")
		}
		if from != nil {
			c, err := taken(from, "options")
			if err != nil {
				return err
			}
			o.Vulkan.Device, o.Vulkan.PipelineCache = goString(c.device), goString(c.pipeline_cache)
			if o.CPU, err = truth("options->cpu", c.cpu); err != nil {
				return err
			}
			if o.Vulkan.Validation, err = truth("options->validation", c.validation); err != nil {
				return err
			}
			if timeout, err = timeoutOf(c.timeout_ms); err != nil {
				return err
			}
			o.Vulkan.Timeout = timeout
		}
		d, err := attention.Open(o)
		if err != nil {
			return err
		}
		handle(unsafe.Pointer(out), C.KIND_DEVICE, nil, &device{d, nil, timeout})
		C.vka_at_exit()
		return nil
	})
}

// goExit closes the devices of the library, so that their work ends before the drivers do. Devices of the caller may be
// gone already. The calls of other threads end first; one that does not end in time keeps its device.
//
//export goExit
func goExit() {
	_ = guarded(func() error {
		for _, o := range of(nil) {
			d, ok := o.value.(*device)
			if !ok || d.wrapped != nil {
				continue
			}
			for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
				if f, ok := o.destroy().(*fault); !ok || f.status != C.VKATTN_ERROR_BUSY {
					break
				}
			}
		}
		return nil
	})
}

//export goDeviceGetInfo
func goDeviceGetInfo(h C.vkattn_device, out *C.vkattn_device_info) C.vkattn_status {
	return using(unsafe.Pointer(h), C.KIND_DEVICE, func(_ *object, d *device) error {
		if err := sized(out, "info"); err != nil {
			return err
		}
		info := C.vkattn_device_info{size: out.size}
		if d.Vulkan() != nil {
			info.kind = C.VKATTN_DEVICE_VULKAN
		} else if d.isCUDA() {
			info.kind = C.VKATTN_DEVICE_CUDA
		}
		if d.wrapped != nil {
			info.wrapped = 1
		}
		store(info.name[:], d.String())
		store(info.why_cpu[:], d.WhyCPU())
		*out = info
		return nil
	})
}

//export goDeviceWait
func goDeviceWait(h C.vkattn_device, ns C.uint64_t) C.vkattn_status {
	return using(unsafe.Pointer(h), C.KIND_DEVICE, func(_ *object, d *device) error {
		ctx, cancel := context.Background(), func() {}
		if ns < math.MaxInt64 {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(ns))
		}
		defer cancel()
		return d.Wait(ctx)
	})
}

// buffer is memory of a device, or of the caller.
type buffer struct {
	tensor attention.Tensor
	memory backend.Memory // nil: the caller's
	bytes  uint64
	device *device
}

func (b *buffer) Close() error {
	if b.memory == nil && b.tensor.Memory != nil {
		return b.tensor.Memory.Close()
	}
	if b.memory == nil {
		return b.tensor.Buffer.Close()
	}
	return b.memory.Close()
}

//export goBufferCreate
func goBufferCreate(h C.vkattn_device, n C.uint64_t, out *C.vkattn_buffer) C.vkattn_status {
	return using(unsafe.Pointer(h), C.KIND_DEVICE, func(o *object, d *device) error {
		switch {
		case out == nil:
			return invalid("buffer is NULL")
		case n == 0 || n > math.MaxInt64-3:
			return invalid("bytes is %d, want 1 to 2^63-4", n)
		}
		m, err := newMemory(d, int64(n))
		if err != nil {
			return err
		}
		if err := d.do("vkattn_buffer_create", m.Clear); err != nil {
			_ = m.Close()
			return err
		}
		handle(unsafe.Pointer(out), C.KIND_BUFFER, o, &buffer{m.Tensor(), m, uint64(n), d})
		return nil
	})
}

// newMemory returns at least n bytes. Memory comes in words, and there is no empty memory.
func newMemory(d *device, n int64) (backend.Memory, error) {
	return backend.HomeOf(d.Device).Backend().NewMemory(max(4, (n+3)&^3))
}

// access copies between a range of a buffer, which it checks, and memory of C, which is an argument of the function.
func access(h C.vkattn_buffer, at C.uint64_t, p unsafe.Pointer, n C.uint64_t, function, argument string,
	move func(b *buffer, s backend.Stream, host []byte) error) C.vkattn_status {
	return using(unsafe.Pointer(h), C.KIND_BUFFER, func(_ *object, b *buffer) error {
		switch {
		case b.memory == nil:
			return invalid("the memory is the caller's, who reads and writes it")
		case uint64(at) > b.bytes || uint64(n) > b.bytes-uint64(at):
			return invalid("%d bytes at %d, of a buffer of %d", n, at, b.bytes)
		}
		host, err := bytes(p, uint64(n), argument)
		if err != nil || n == 0 {
			return err
		}
		return b.device.do(function, func(s backend.Stream) error { return move(b, s, host) })
	})
}

//export goBufferWrite
func goBufferWrite(h C.vkattn_buffer, at C.uint64_t, from unsafe.Pointer, n C.uint64_t) C.vkattn_status {
	return access(h, at, from, n, "vkattn_buffer_write", "from", func(b *buffer, s backend.Stream, host []byte) error {
		return b.memory.Write(s, int64(at), host)
	})
}

//export goBufferRead
func goBufferRead(h C.vkattn_buffer, at C.uint64_t, to unsafe.Pointer, n C.uint64_t) C.vkattn_status {
	return access(h, at, to, n, "vkattn_buffer_read", "to", func(b *buffer, s backend.Stream, host []byte) error {
		ctx, cancel := b.device.waiting()
		defer cancel()
		return b.memory.Read(ctx, s, int64(at), host)
	})
}
