package vk

// #include "host.h"
// #include <stdlib.h>
import "C"

import (
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	vulkan "github.com/goki/vulkan"
)

// Options for Open. The zero value opens the best device.
type Options struct {
	// Device: "" or "auto" takes the best usable one (discrete before integrated,
	// virtual, CPU); "0" an index in the loader's list; a UUID; or a part of a
	// name, in any case. A name that fits several devices is an error listing them.
	Device string
	// Validation loads VK_LAYER_KHRONOS_validation (VKATTN_VALIDATION=1 in the
	// environment does too, see [ValidationEnv]); ErrUnsupported where it is not
	// installed.
	// SyncValidation adds hazard checks, GPUValidation checks inside shaders; both
	// are slow and imply Validation.
	Validation, SyncValidation, GPUValidation bool
	// OnMessage receives validation messages, one at a time, on a goroutine that
	// uses the device, and must not use the device itself. nil: standard error.
	OnMessage func(Message)
	// Debug names objects and labels commands for tools (VK_EXT_debug_utils).
	// Implied by Validation.
	Debug bool
	// PipelineCache is the folder of compiled pipelines: "" is pipelines in
	// CacheDir, "off" keeps none.
	PipelineCache string
	// Stats has pipelines keep what the driver's compiler says about them.
	Stats bool
	// RobustBufferAccess bounds every access through a descriptor, at a cost.
	RobustBufferAccess bool
	// Extensions are further device extensions to enable; ErrUnsupported when one
	// is missing.
	Extensions []string
}

// Device is an opened device with one queue. It may be used by many goroutines.
type Device struct {
	c        *C.vka_device
	instance *C.vka_instance
	log      *messageLog // nil without validation
	info     DeviceInfo
	owned    bool // made by Open: Close destroys it
	debug    bool
	stats    bool

	// life is held for reading by every call and for writing by Close, so that no
	// call meets a destroyed device.
	life    sync.RWMutex
	closed  bool
	closing atomic.Bool // waits end early
	lost    atomic.Bool

	queue                  sync.Mutex
	worked                 atomic.Bool // the queue was, or may have been, given something
	lockQueue, unlockQueue func()      // the caller's, around queue use of a wrapped device
	unguarded              bool        // wrapped, and the caller gave none

	mem       allocator
	pipelines pipelineSet
	scratch   scratchPool
	batches   atomic.Uint64 // the last batch id given out

	attached attachments

	mu        sync.Mutex // guards the sets below
	streams   map[*Stream]struct{}
	timelines map[*Timeline]struct{}
	wrapped   map[*Commands]struct{}
}

// Open opens a device. It takes the first queue family with compute: on the
// hardware seen so far that is the main one, with the same clocks and 64 valid
// timestamp bits.
func Open(o Options) (*Device, error) {
	byEnvironment, err := ValidationByEnv()
	if err != nil {
		return nil, err
	}
	if byEnvironment || o.SyncValidation || o.GPUValidation {
		o.Validation = true
	}
	var flags C.uint32_t
	var log *messageLog
	if o.Validation {
		if log, err = newMessageLog(o.OnMessage); err != nil {
			return nil, err
		}
		flags |= C.VKA_INSTANCE_VALIDATION
		o.Debug = true
	}
	if o.Debug {
		flags |= C.VKA_INSTANCE_DEBUG
	}
	if o.SyncValidation {
		flags |= C.VKA_INSTANCE_SYNC
	}
	if o.GPUValidation {
		flags |= C.VKA_INSTANCE_GPU_ASSISTED
	}
	in, get, err := newInstance(flags, log)
	if err != nil {
		log.close()
		return nil, err
	}
	d, err := open(in, get, log, o)
	if err != nil {
		closeInstance(in)
		log.close()
		return nil, err
	}
	return d, nil
}

func open(in *C.vka_instance, get unsafe.Pointer, log *messageLog, o Options) (*Device, error) {
	if err := hookGoki(get, vulkan.Instance(unsafe.Pointer(in.handle))); err != nil {
		return nil, &Error{Op: "goki/vulkan InitInstance", Err: err}
	}
	probes, err := probeAll(in)
	if err != nil {
		return nil, err
	}
	infos := make([]DeviceInfo, len(probes))
	for i, p := range probes {
		defer p.free()
		infos[i] = p.info
	}
	i, err := choose(infos, o.Device)
	if err != nil {
		return nil, err
	}
	p := probes[i]
	enable := p.info.Caps
	enable.Robustness2 = false
	enable.RobustBufferAccess = enable.RobustBufferAccess && o.RobustBufferAccess
	enable.PipelineExecutable = enable.PipelineExecutable && o.Stats

	extra := C.CString(strings.Join(o.Extensions, "\x00") + "\x00")
	defer C.free(unsafe.Pointer(extra))
	var c *C.vka_device
	r := C.vka_create_device(in, p.handle, p.c, C.uint64_t(enable.bits()), extra, &c)
	if r != C.VK_SUCCESS {
		return nil, &Error{Op: "vkCreateDevice", Result: goResult(r), Detail: p.info.Name}
	}
	d := newDevice(in, c, p, enable)
	d.owned, d.log, d.debug, d.stats = true, log, o.Debug && enable.DebugUtils, enable.PipelineExecutable
	d.loadPipelineCache(o.PipelineCache)
	return d, nil
}

func newDevice(in *C.vka_instance, c *C.vka_device, p *probe, enabled Caps) *Device {
	d := &Device{c: c, instance: in, info: p.info,
		streams: map[*Stream]struct{}{}, timelines: map[*Timeline]struct{}{}, wrapped: map[*Commands]struct{}{}}
	d.info.Caps.setBits(enabled.bits())
	d.mem.init(d, p)
	d.pipelines.init()
	return d
}

// Info describes the device; Caps in it hold what is enabled. Do not change it.
func (d *Device) Info() *DeviceInfo {
	if d == nil {
		return &DeviceInfo{}
	}
	return &d.info
}

// Caps is what the device can do and has enabled. Do not change it.
func (d *Device) Caps() *Caps { return &d.Info().Caps }

// Stats reports whether pipelines keep compiler statistics.
func (d *Device) Stats() bool { return d != nil && d.stats }

// enter starts a call: nil, or why the device cannot be used. After nil, leave
// has to follow. Calls do not nest: with Close waiting, a second enter would wait
// for the first to leave.
func (d *Device) enter(op string) error {
	if d == nil {
		return unmade(op)
	}
	d.life.RLock()
	if d.closed {
		d.life.RUnlock()
		return closed(op)
	}
	if d.c == nil {
		d.life.RUnlock()
		return unmade(op)
	}
	if d.lost.Load() {
		d.life.RUnlock()
		return &Error{Op: op, Result: vulkan.ErrorDeviceLost, Detail: "the device was lost earlier"}
	}
	return nil
}

// stay is enter for what works on a lost device too: d.life.RUnlock follows where it
// reports true.
func (d *Device) stay() bool {
	if d == nil {
		return false
	}
	d.life.RLock()
	if d.closed || d.c == nil {
		d.life.RUnlock()
		return false
	}
	return true
}

func (d *Device) leave() {
	d.log.pump()
	d.life.RUnlock()
}

// check turns a result into an error and remembers a lost device.
func (d *Device) check(op string, r C.VkResult) error {
	if r >= 0 {
		return nil
	}
	if goResult(r) == vulkan.ErrorDeviceLost {
		d.lost.Store(true)
	}
	return &Error{Op: op, Result: goResult(r)}
}

// withQueue runs f with the queue to itself.
func (d *Device) withQueue(f func() C.VkResult) C.VkResult {
	d.queue.Lock()
	defer d.queue.Unlock()
	if d.lockQueue != nil {
		d.lockQueue()
		defer d.unlockQueue()
	}
	return f()
}

// WaitIdle waits until the device has nothing left to do. Recorded work that was
// not submitted stays so. On a wrapped device it waits for the device's own streams.
func (d *Device) WaitIdle() error {
	if err := d.enter("WaitIdle"); err != nil {
		return err
	}
	defer d.leave()
	return d.idle()
}

// idle waits for the device; for our own streams when the device is the caller's,
// whose other queues are not ours to lock.
func (d *Device) idle() error {
	d.drainPeers()
	if !d.worked.Load() {
		return nil // there are drivers for no hardware at all that have no wait either
	}
	if d.owned {
		return d.check("vkDeviceWaitIdle", d.withQueue(func() C.VkResult { return C.vka_wait_idle(d.c) }))
	}
	d.mu.Lock()
	var streams []*Stream
	for s := range d.streams {
		streams = append(streams, s)
	}
	d.mu.Unlock()
	for _, s := range streams {
		r := C.vka_timeline_wait(d.c, C.uint64_t(s.timeline.handle), C.uint64_t(s.submitted.Load()), ^C.uint64_t(0))
		if err := d.check("vkWaitSemaphores", r); err != nil {
			return err
		}
	}
	return nil
}

// Closed reports whether Close has begun.
func (d *Device) Closed() bool { return d != nil && d.closing.Load() }

// Lost reports whether a call has met a lost device.
func (d *Device) Lost() bool { return d != nil && d.lost.Load() }

// Close waits for the device to be idle, saves the pipeline cache and destroys
// everything made from the device; waits in other goroutines end with ErrClosed.
// It waits without limit, so work that waits on a timeline nobody signals has to
// be released first. Mapped memory (Buffer.Bytes) is gone afterwards. Further
// calls do nothing. The error is that of the wait: a lost device is closed too.
func (d *Device) Close() error {
	if d == nil || d.closing.Swap(true) {
		return nil
	}
	d.life.Lock()
	if d.c == nil { // a zero Device
		d.closed = true
		d.life.Unlock()
		return nil
	}
	err := d.idle()
	for s := range d.streams {
		s.destroy()
	}
	for c := range d.wrapped {
		c.destroy()
	}
	d.pipelines.destroy(d)
	d.mem.destroy()
	for t := range d.timelines {
		t.destroy()
	}
	d.streams, d.wrapped, d.timelines = nil, nil, nil
	d.attached.detach()
	d.log.pump()
	C.vka_destroy_device(d.c)
	closeInstance(d.instance)
	d.log.close()
	d.c, d.instance = nil, nil
	d.closed = true
	d.life.Unlock()
	return err
}

// VulkanInstance, VulkanPhysicalDevice, VulkanDevice and VulkanQueue return the
// handles, nil once the device is closed. The queue is shared: using it directly
// while streams submit breaks Vulkan's rules, unless within WithQueue.
func (d *Device) VulkanInstance() vulkan.Instance {
	if !d.stay() {
		return nil
	}
	defer d.life.RUnlock()
	return vulkan.Instance(unsafe.Pointer(d.instance.handle))
}

// VulkanPhysicalDevice returns the VkPhysicalDevice.
func (d *Device) VulkanPhysicalDevice() vulkan.PhysicalDevice {
	if !d.stay() {
		return nil
	}
	defer d.life.RUnlock()
	return vulkan.PhysicalDevice(unsafe.Pointer(d.c.physical))
}

// VulkanDevice returns the VkDevice.
func (d *Device) VulkanDevice() vulkan.Device {
	if !d.stay() {
		return nil
	}
	defer d.life.RUnlock()
	return vulkan.Device(unsafe.Pointer(d.c.handle))
}

// VulkanQueue returns the VkQueue and its family.
func (d *Device) VulkanQueue() (queue vulkan.Queue, family uint32) {
	if !d.stay() {
		return nil, 0
	}
	defer d.life.RUnlock()
	d.worked.Store(true)
	return vulkan.Queue(unsafe.Pointer(d.c.queue)), d.info.queueFamily
}

// WithQueue runs f while no stream submits to the queue, under the locks of External
// for a wrapped device. f must not use d. ErrInvalid without f.
func (d *Device) WithQueue(f func(queue vulkan.Queue)) error {
	const op = "WithQueue"
	if err := d.enter(op); err != nil {
		return err
	}
	defer d.leave()
	if f == nil {
		return invalid(op, "no function")
	}
	d.worked.Store(true)
	d.withQueue(func() C.VkResult { f(vulkan.Queue(unsafe.Pointer(d.c.queue))); return C.VK_SUCCESS })
	return nil
}

// setName names an object for tools.
func (d *Device) setName(kind C.uint32_t, handle uint64, name string) {
	if !d.debug || name == "" {
		return
	}
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	C.vka_set_name(d.c, kind, C.uint64_t(handle), s)
}
