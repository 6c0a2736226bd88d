package vk

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Options are the options of Open. The zero value opens the best device.
type Options struct {
	// Device selects the device: "" or "auto" for the best usable one (see [Order]), an
	// index in the loader's list, a UUID, or part of a name, ignoring case. A name that
	// several devices have is an error that lists them. The automatic choice passes over a
	// device that cannot be opened (see [Device.PassedOver]).
	Device string
	// GPUOnly leaves drivers of the CPU out of the automatic choice. The error matches
	// ErrNoDevice if there is no GPU that can be used.
	GPUOnly bool
	// Validation loads VK_LAYER_KHRONOS_validation, as does VKATTN_VALIDATION=1 in the
	// environment (see [ValidationEnv]). The error matches ErrUnsupported if the layer is
	// not installed.
	// SyncValidation adds hazard checks, GPUValidation checks inside shaders; both
	// are slow and imply Validation.
	Validation, SyncValidation, GPUValidation bool
	// OnMessage is called with each validation message, one at a time, on a goroutine
	// that uses the device. It must not use the device. nil: standard error.
	OnMessage func(Message)
	// Debug names objects and labels commands for tools (VK_EXT_debug_utils).
	// Implied by Validation.
	Debug bool
	// PipelineCache is the folder of compiled pipelines: "" is the folder "pipelines" in
	// CacheDir, "off" disables the cache.
	PipelineCache string
	// Stats makes Pipeline.Statistics available.
	Stats bool
	// RobustBufferAccess checks the bounds of every access through a descriptor, which
	// makes kernels slower.
	RobustBufferAccess bool
	// Extensions are further device extensions to enable. The error matches
	// ErrUnsupported if the device, or the best one, lacks one, and ErrInvalid for an
	// empty name.
	Extensions []string
	// Timeout bounds the waits of calls that take no context: Close of a Device, a Stream and
	// a Recording, WaitIdle, Stream.Finish, and Upload if staging memory is full. They return an error that
	// matches ErrTimeout when no submission to the device has finished for so long. 0:
	// DefaultTimeout; negative: no bound.
	Timeout time.Duration
}

// DefaultTimeout is the Timeout of Options and External that name none.
const DefaultTimeout = 30 * time.Second

// Device is an open device with one queue. It is safe for concurrent use.
type Device struct {
	c        *hostDevice
	instance *hostInstance
	log      *messageLog // nil without validation
	info     DeviceInfo
	over     []DeviceInfo // better devices that Open passed over
	owned    bool         // made by Open: Close destroys it
	debug    bool
	stats    bool

	// Every call holds life for reading and Close holds it for writing, so that no call
	// uses a destroyed device.
	life    sync.RWMutex
	closed  atomic.Bool
	closing atomic.Bool // waits end early, and no call begins
	lost    atomic.Bool
	timeout time.Duration // of Options; negative: none
	hung    atomic.Uint64 // 1 + what finished was when a wait ended by the timeout; 0: none has

	queue                  sync.Mutex
	worked                 atomic.Bool // work may have been submitted to the queue
	direct                 atomic.Bool // the caller may have submitted work to it
	lockQueue, unlockQueue func()      // of External, around each use of the queue
	unguarded              bool        // wrapped without LockQueue

	mem       allocator
	pipelines pipelineSet
	scratch   scratchPool
	batches   atomic.Uint64 // the last batch id given out

	attached attachments
	launches atomic.Bool // a launch of a cubin was recorded

	mu         sync.Mutex // guards the sets below
	streams    map[*Stream]struct{}
	timelines  map[*Timeline]struct{}
	wrapped    map[*Commands]struct{}
	recordings map[*Recording]struct{}
	cubins     map[*Cubin]struct{}
	functions  map[*CubinFunction]struct{}
}

// Open opens a device with one queue of the first queue family that has compute. On all
// hardware seen so far that is the main family, with 64 valid timestamp bits.
func Open(o Options) (*Device, error) {
	byEnvironment, err := ValidationByEnv()
	if err != nil {
		return nil, err
	}
	for _, name := range o.Extensions {
		if name == "" || strings.Contains(name, "\x00") { // either ends the list that C gets
			return nil, invalid("Open", "an extension with the name %q", name)
		}
	}
	if byEnvironment || o.SyncValidation || o.GPUValidation {
		o.Validation = true
	}
	var flags uint32
	var log *messageLog
	if o.Validation {
		log = newMessageLog(o.OnMessage)
		flags |= instanceValidation
		o.Debug = true
	}
	if o.Debug {
		flags |= instanceDebug
	}
	if o.SyncValidation {
		flags |= instanceSync
	}
	if o.GPUValidation {
		flags |= instanceGPUAssisted
	}
	in, err := newInstance(flags, log)
	if err != nil {
		log.close()
		return nil, err
	}
	d, err := open(in, log, o)
	if err != nil {
		closeInstance(in)
		log.close()
		return nil, err
	}
	return d, nil
}

func open(in *hostInstance, log *messageLog, o Options) (*Device, error) {
	probes, err := probeAll(in)
	if err != nil {
		return nil, err
	}
	infos := make([]DeviceInfo, len(probes))
	for i, p := range probes {
		infos[i] = p.info
	}
	order, err := choose(infos, o.Device)
	if err != nil {
		return nil, err
	}
	auto := isAuto(o.Device)
	for _, i := range order {
		if auto && o.GPUOnly && infos[i].Type == DeviceCPU {
			break
		}
		d, failed := create(in, probes[i], log, o)
		if failed == nil {
			for j := range infos {
				if auto && infos[j].Unusable != "" && better(&infos[j], &infos[i]) {
					d.over = append(d.over, infos[j])
				}
			}
			d.loadPipelineCache(o.PipelineCache)
			return d, nil
		}
		lacking := failed.Result == ResultExtensionNotPresent && len(o.Extensions) > 0 // what the caller asks for
		if infos[i].fail(failed); !auto || lacking {
			return nil, failed
		}
	}
	return nil, noneOpens(infos, o.GPUOnly)
}

// create creates the device.
func create(in *hostInstance, p *probe, log *messageLog, o Options) (*Device, *Error) {
	enable := p.info.Caps
	enable.Robustness2 = false
	enable.RobustBufferAccess = enable.RobustBufferAccess && o.RobustBufferAccess
	enable.PipelineExecutable = enable.PipelineExecutable && o.Stats

	c, missing, r := hostCreateDevice(in, p, enable.bits(), o.Extensions)
	switch {
	case len(missing) > 0:
		return nil, functionsError("vkGetDeviceProcAddr", missing, false).(*Error)
	case r != ResultSuccess:
		return nil, &Error{Op: "vkCreateDevice", Result: r}
	}
	d := newDevice(in, c, p, enable)
	d.timeout = timeoutOf(o.Timeout)
	d.owned, d.log, d.debug, d.stats = true, log, o.Debug && enable.DebugUtils, enable.PipelineExecutable
	return d, nil
}

func newDevice(in *hostInstance, c *hostDevice, p *probe, enabled Caps) *Device {
	d := &Device{c: c, instance: in, info: p.info,
		streams: map[*Stream]struct{}{}, timelines: map[*Timeline]struct{}{}, wrapped: map[*Commands]struct{}{}, recordings: map[*Recording]struct{}{},
		cubins: map[*Cubin]struct{}{}, functions: map[*CubinFunction]struct{}{}}
	d.info.Caps.setBits(enabled.bits())
	d.mem.init(d, p)
	d.pipelines.init()
	return d
}

// Info describes the device. Its Caps are the enabled capabilities, as Caps returns them.
// Do not change it.
func (d *Device) Info() *DeviceInfo {
	if d == nil {
		return &DeviceInfo{}
	}
	return &d.info
}

// PassedOver lists devices that are better than this one by [Order] and cannot be used, with
// the reason in Unusable, if Open chose the device automatically.
func (d *Device) PassedOver() []DeviceInfo {
	if d == nil {
		return nil
	}
	return d.over
}

// Caps are the capabilities that the device has and that are enabled. Do not change it.
func (d *Device) Caps() *Caps { return &d.Info().Caps }

// Stats reports whether pipelines keep compiler statistics.
func (d *Device) Stats() bool { return d != nil && d.stats }

// enter starts a call and returns an error if the device cannot be used. After nil, leave
// must follow. Calls must not nest: while Close waits, a second enter would wait for the
// first to leave.
func (d *Device) enter(op string) error {
	if d == nil {
		return unmade(op)
	}
	if d.closing.Load() {
		return closed(op)
	}
	d.life.RLock()
	if d.closed.Load() {
		d.life.RUnlock()
		return closed(op)
	}
	if d.c == nil {
		d.life.RUnlock()
		return unmade(op)
	}
	if d.lost.Load() {
		d.life.RUnlock()
		return &Error{Op: op, Result: ResultDeviceLost, Detail: "the device was lost earlier"}
	}
	return nil
}

// stay is enter for calls that work on a lost device too. If it reports true,
// d.life.RUnlock must follow.
func (d *Device) stay() bool {
	if d == nil || d.closing.Load() {
		return false
	}
	d.life.RLock()
	if d.closed.Load() || d.c == nil {
		d.life.RUnlock()
		return false
	}
	return true
}

func (d *Device) leave() {
	d.log.pump()
	d.life.RUnlock()
}

// check converts a VkResult into an error and records that the device is lost.
func (d *Device) check(op string, r Result) error {
	if r >= 0 {
		return nil
	}
	if r == ResultDeviceLost {
		d.lost.Store(true)
	}
	return &Error{Op: op, Result: r}
}

// withQueue runs f while it has exclusive use of the queue.
func (d *Device) withQueue(f func() Result) Result {
	d.queue.Lock()
	defer d.queue.Unlock()
	if d.lockQueue != nil {
		d.lockQueue()
		defer d.unlockQueue()
	}
	return f()
}

// WaitIdle waits until all submitted work has finished, within Options.Timeout. It does not
// submit recorded work. On a wrapped device it waits only for the streams of this Device.
func (d *Device) WaitIdle() error {
	const op = "WaitIdle"
	if err := d.enter(op); err != nil {
		return err
	}
	defer d.leave()
	return d.idle(d.limit(op))
}

// Closed reports whether Close has begun.
func (d *Device) Closed() bool { return d != nil && d.closing.Load() }

// Lost reports whether a call has returned ErrDeviceLost.
func (d *Device) Lost() bool { return d != nil && d.lost.Load() }

// Close waits until the device is idle, saves the pipeline cache and destroys everything
// made from the device. Waits in other goroutines return ErrClosed. Mapped memory
// (Buffer.Bytes) is unmapped. Further calls do nothing. Close returns the error of the
// wait. It closes a lost device too.
//
// Close waits within Options.Timeout: before Close, signal the timelines that submitted work
// waits for. If the device does not become idle, or a call of another goroutine does not return
// from the driver, the error matches ErrTimeout. The device and what was made from it are closed
// then, but nothing is destroyed: destroying what a device uses is undefined.
func (d *Device) Close() error {
	if d == nil || d.closing.Swap(true) {
		return nil
	}
	ctx := d.limit("Device.Close")
	ctx.closes = true
	defer d.closed.Store(true)
	if err := d.lockLife(ctx); err != nil {
		return err
	}
	defer d.life.Unlock()
	if d.c == nil { // a zero Device
		return nil
	}
	err := d.idle(ctx)
	if err == nil {
		err = d.attached.wait(ctx)
	}
	if errors.Is(err, ErrTimeout) {
		d.log.pump()
		return err
	}
	for s := range d.streams {
		s.destroy()
	}
	for c := range d.wrapped {
		c.destroy()
	}
	for r := range d.recordings {
		r.free()
	}
	d.destroyCubins()
	d.pipelines.destroy(d)
	d.mem.destroy()
	for t := range d.timelines {
		t.destroy()
	}
	d.streams, d.wrapped, d.recordings, d.timelines = nil, nil, nil, nil
	d.attached.detach()
	d.log.pump()
	hostDestroyDevice(d.c)
	closeInstance(d.instance)
	d.log.close()
	d.c, d.instance = nil, nil
	return err
}

// VulkanInstance returns the VkInstance, like VulkanPhysicalDevice, VulkanDevice and
// VulkanQueue for the other handles; all return 0 after Close. Streams use the queue
// too: use it directly only inside WithQueue.
func (d *Device) VulkanInstance() VkInstance {
	if !d.stay() {
		return 0
	}
	defer d.life.RUnlock()
	return d.instance.handle
}

// VulkanPhysicalDevice returns the VkPhysicalDevice.
func (d *Device) VulkanPhysicalDevice() VkPhysicalDevice {
	if !d.stay() {
		return 0
	}
	defer d.life.RUnlock()
	return d.c.physical
}

// VulkanDevice returns the VkDevice.
func (d *Device) VulkanDevice() VkDevice {
	if !d.stay() {
		return 0
	}
	defer d.life.RUnlock()
	return d.c.device
}

// VulkanQueue returns the VkQueue and its family.
func (d *Device) VulkanQueue() (queue VkQueue, family uint32) {
	if !d.stay() {
		return 0, 0
	}
	defer d.life.RUnlock()
	d.worked.Store(true)
	d.direct.Store(true)
	return d.c.queue, d.info.queueFamily
}

// WithQueue runs f while no stream submits to the queue; on a wrapped device it also holds
// the lock of External. f must not use d. The error matches ErrInvalid if f is nil.
func (d *Device) WithQueue(f func(queue VkQueue)) error {
	const op = "WithQueue"
	if err := d.enter(op); err != nil {
		return err
	}
	defer d.leave()
	if f == nil {
		return invalid(op, "no function")
	}
	d.worked.Store(true)
	d.direct.Store(true)
	d.withQueue(func() Result { f(d.c.queue); return ResultSuccess })
	return nil
}

// setName names an object for debugging tools.
func (d *Device) setName(kind uint32, handle uint64, name string) {
	if !d.debug || name == "" {
		return
	}
	hostSetName(d.c, kind, handle, name)
}
