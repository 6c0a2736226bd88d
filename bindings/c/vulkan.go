//go:build cgo && linux

package main

// #include "calls.h"
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"vkattn/attention"
	"vkattn/vk"
)

// In a Vulkan program: its device, its memory, its command buffer, and what the device has to be created with.

func number(h unsafe.Pointer) uintptr { return uintptr(h) }

//export goDeviceWrapVulkan
func goDeviceWrapVulkan(from *C.vkattn_vulkan, out *C.vkattn_device) C.vkattn_status {
	return status(func() error {
		c := call{}
		defer c.end()
		e, err := taken(from, "vulkan")
		if err != nil {
			return err
		}
		if out == nil {
			return invalid("device is NULL")
		}
		_, need, err := hold[*requirements](&c, unsafe.Pointer(e.requirements), C.KIND_REQUIREMENTS)
		if err != nil {
			return err
		}
		timeout, err := timeoutOf(e.timeout_ms)
		if err != nil {
			return err
		}
		dev, err := vk.Wrap(vk.External{
			Instance: vk.VkInstance(number(e.instance)), PhysicalDevice: vk.VkPhysicalDevice(number(e.physical_device)),
			Device: vk.VkDevice(number(e.device)), Queue: vk.VkQueue(number(e.queue)), QueueFamily: uint32(e.queue_family),
			APIVersion: uint32(e.api_version), Enabled: need.Enabled, GetInstanceProcAddr: unsafe.Pointer(e.get_instance_proc_addr),
			PipelineCache: goString(e.pipeline_cache), Timeout: timeout,
		})
		if err != nil {
			return err
		}
		handle(unsafe.Pointer(out), C.KIND_DEVICE, nil, &device{attention.On(dev), dev, timeout})
		return nil
	})
}

//export goBufferWrapVulkan
func goBufferWrapVulkan(h C.vkattn_device, vkBuffer, offset, n, address C.uint64_t, out *C.vkattn_buffer) C.vkattn_status {
	return using(unsafe.Pointer(h), C.KIND_DEVICE, func(o *object, d *device) error {
		switch {
		case out == nil:
			return invalid("buffer is NULL")
		case d.wrapped == nil:
			return invalid("the device has no VkBuffer of the caller: vkattn_device_wrap_vulkan did not make it")
		}
		b, err := d.wrapped.WrapBuffer(vk.ExternalBuffer{Handle: uint64(vkBuffer), Offset: uint64(offset), Size: uint64(n), Address: uint64(address)})
		if err != nil {
			return err
		}
		handle(unsafe.Pointer(out), C.KIND_BUFFER, o, &buffer{attention.Tensor{Buffer: b}, nil, uint64(n), d})
		return nil
	})
}

// stream is a command buffer of the caller, or a stream of CUDA.
type stream struct {
	*vk.Commands                   // nil: of CUDA
	calls        *attention.Stream // nil: a command buffer
}

func (s *stream) Close() error {
	if s.calls != nil {
		return s.calls.Close()
	}
	return s.Release()
}

//export goStreamWrapVulkan
func goStreamWrapVulkan(h C.vkattn_device, commands unsafe.Pointer, out *C.vkattn_stream) C.vkattn_status {
	return using(unsafe.Pointer(h), C.KIND_DEVICE, func(o *object, d *device) error {
		switch {
		case out == nil:
			return invalid("stream is NULL")
		case d.wrapped == nil:
			return invalid("the device has no command buffer of the caller: vkattn_device_wrap_vulkan did not make it")
		}
		s, err := d.wrapped.WrapCommands(vk.VkCommandBuffer(number(commands)))
		if err != nil {
			return err
		}
		handle(unsafe.Pointer(out), C.KIND_STREAM, o, &stream{Commands: s})
		return nil
	})
}

//export goStreamBarrier
func goStreamBarrier(h C.vkattn_stream) C.vkattn_status { return onStream(h, (*vk.Commands).Barrier) }

//export goStreamReset
func goStreamReset(h C.vkattn_stream) C.vkattn_status { return onStream(h, (*vk.Commands).Reset) }

func onStream(h C.vkattn_stream, f func(*vk.Commands) error) C.vkattn_status {
	return using(unsafe.Pointer(h), C.KIND_STREAM, func(_ *object, s *stream) error {
		if s.Commands == nil {
			return invalid("the stream is of CUDA, which runs calls in order and records none")
		}
		return f(s.Commands)
	})
}

// requirements are those of a Config, with the C memory that was given out of them.
type requirements struct {
	vk.Requirements
	chain *vk.FeatureChain

	mu     sync.Mutex
	memory []unsafe.Pointer
}

func (r *requirements) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.memory {
		C.free(p)
	}
	r.memory = nil
	return r.chain.Close()
}

// text is a string of C that lives as long as r.
func (r *requirements) text(s string) *C.char {
	p := C.CString(s)
	r.memory = append(r.memory, unsafe.Pointer(p))
	return p
}

// array is memory of C for n elements that lives as long as r.
func array[T any](r *requirements, n int) []T {
	var of T
	p := C.calloc(C.size_t(max(n, 1)), C.size_t(unsafe.Sizeof(of)))
	r.memory = append(r.memory, p)
	return unsafe.Slice((*T)(p), n)
}

//export goRequirementsCreate
func goRequirementsCreate(from *C.vkattn_config, out *C.vkattn_requirements) C.vkattn_status {
	return status(func() error {
		if out == nil {
			return invalid("requirements is NULL")
		}
		cfg, err := configOf(from)
		if err != nil {
			return err
		}
		need, err := attention.Requirements(cfg.Tier, cfg)
		if err != nil {
			return err
		}
		chain, err := need.Chain()
		if err != nil {
			return err
		}
		handle(unsafe.Pointer(out), C.KIND_REQUIREMENTS, nil, &requirements{Requirements: need, chain: chain})
		return nil
	})
}

//export goRequirementsGetInfo
func goRequirementsGetInfo(h C.vkattn_requirements, version C.uint32_t, out *C.vkattn_requirements_info) C.vkattn_status {
	return using(unsafe.Pointer(h), C.KIND_REQUIREMENTS, func(_ *object, r *requirements) error {
		if err := sized(out, "info"); err != nil {
			return err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		names := r.Extensions(uint32(version))
		extensions := array[*C.char](r, len(names))
		for i, name := range names {
			extensions[i] = r.text(name)
		}
		features := array[C.vkattn_feature](r, len(r.Features))
		for i, f := range r.Features {
			features[i] = C.vkattn_feature{name: r.text(f.Name), structure: r.text(f.Struct), extension: r.text(f.Extension), core: C.uint32_t(f.Core)}
		}
		limits := array[C.vkattn_limit](r, len(r.Limits))
		for i, l := range r.Limits {
			limits[i] = C.vkattn_limit{name: r.text(l.Name), least: C.uint64_t(l.Least)}
		}
		*out = C.vkattn_requirements_info{
			size: out.size, api_version: C.uint32_t(r.APIVersion), features2: r.chain.Pointer(), text: r.text(r.String()),
			extensions: unsafe.SliceData(extensions), extension_count: C.uint32_t(len(extensions)),
			features: unsafe.SliceData(features), feature_count: C.size_t(len(features)),
			limits: unsafe.SliceData(limits), limit_count: C.size_t(len(limits)),
		}
		return nil
	})
}

//export goRequirementsCheck
func goRequirementsCheck(h C.vkattn_requirements, uuid *C.uint8_t) C.vkattn_status {
	return using(unsafe.Pointer(h), C.KIND_REQUIREMENTS, func(_ *object, r *requirements) error {
		if uuid == nil {
			return invalid("uuid is NULL")
		}
		devices, err := vk.Devices()
		if err != nil {
			return err
		}
		want := *(*[16]byte)(unsafe.Pointer(uuid))
		for i := range devices {
			if devices[i].UUID != want {
				continue
			}
			if missing := r.Missing(&devices[i]); missing != "" {
				return fmt.Errorf("%w: %s: %s", vk.ErrUnsupported, devices[i].Name, missing)
			}
			return nil
		}
		return fmt.Errorf("%w: none has the UUID %x", vk.ErrNoDevice, want)
	})
}
