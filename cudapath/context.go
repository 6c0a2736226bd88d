package cudapath

import (
	"context"
	"sync"
	"sync/atomic"

	"vkattn/internal/ccall"
	"vkattn/vk"
)

// Context is the CUDA side of a Vulkan device: the primary context of the CUDA device with
// the same UUID, which all users of CUDA in the process share. It belongs to the Vulkan
// device and is closed with it. A device that OpenDevice opened has one too. It is safe for
// concurrent use, on any thread: each call makes the context current while it runs.
type Context struct {
	dev     *vk.Device // nil: OpenDevice made it
	lib     *library
	info    DeviceInfo
	handle  uint64
	foreign bool // handle is the caller's context
	table   *table

	// Every call holds life for reading; the end of the device holds it for writing. Do
	// not call package vk with it held: the end of the device waits for such calls.
	life    sync.RWMutex
	closed  bool
	closing atomic.Bool           // no call begins
	dead    atomic.Pointer[Error] // the first error that lost the device

	mu      sync.Mutex // guards what follows
	modules map[string]*module
	kernels map[*Kernel]*kernel
	owned   map[resource]struct{}
}

// resource is an object that the context destroys at its end unless its owner has done so.
// The context is entered, or closing.
type resource interface{ destroy() }

// contextKey is the key of a Context attached to a device.
var contextKey any = new(struct{ _ int })

// Open returns the CUDA context of a Vulkan device. All calls for a device return the same
// one, which is closed with the device. The error matches vk.ErrUnsupported if the machine
// has no CUDA, if no CUDA device has the UUID of the Vulkan device, or if the two cannot
// share memory and semaphores.
func Open(dev *vk.Device) (*Context, error) {
	const op = "Open"
	if dev == nil {
		return nil, invalid(op, "no device")
	}
	if a, ok := dev.Attached(contextKey).(attached); ok {
		return a.c, nil
	}
	v, err := dev.Attach(contextKey, func() (vk.Attached, error) {
		c, err := newContext(dev)
		return attached{c}, err
	})
	if err != nil {
		return nil, err
	}
	return v.(attached).c, nil
}

// attached is the vk.Attached of a context.
type attached struct{ c *Context }

// Detach closes the context at the end of the device.
func (a attached) Detach() { a.c.end() }

// Wait is vk.Waiter's: the work of all CUDA streams ends before the device does.
func (a attached) Wait(ctx context.Context) error { return a.c.drain(ctx) }

func newContext(dev *vk.Device) (*Context, error) {
	info, lib, err := match(dev.Info())
	if err != nil {
		return nil, err
	}
	t, err := embedded()
	if err != nil {
		return nil, err
	}
	c := &Context{dev: dev, lib: lib, info: info, table: t,
		modules: map[string]*module{}, kernels: map[*Kernel]*kernel{}, owned: map[resource]struct{}{}}
	if err := lib.check("cuDevicePrimaryCtxRetain", lib.api.retainContext(int32(info.device), &c.handle)); err != nil {
		return nil, err
	}
	return c, nil
}

// Info describes the CUDA device. Do not change it.
func (c *Context) Info() *DeviceInfo {
	if c == nil {
		return &DeviceInfo{}
	}
	return &c.info
}

// Device is the Vulkan device, nil if OpenDevice made the context.
func (c *Context) Device() *vk.Device {
	if c == nil {
		return nil
	}
	return c.dev
}

// Handle is the CUcontext: the device's primary one, or the one that OpenDevice was given.
func (c *Context) Handle() uint64 {
	if c == nil {
		return 0
	}
	return uint64(c.handle)
}

// enter starts a call and returns an error if the context cannot be used. After nil, leave
// must follow. Calls must not nest.
func (c *Context) enter(op string) error {
	if c == nil || c.lib == nil {
		return unmade(op)
	}
	c.life.RLock()
	if c.closed || c.closing.Load() {
		c.life.RUnlock()
		return closed(op)
	}
	if e := c.dead.Load(); e != nil {
		c.life.RUnlock()
		return &Error{Op: op, Code: e.Code, Name: e.Name, Detail: "the device was lost earlier, in " + e.Op}
	}
	return nil
}

func (c *Context) leave() { c.life.RUnlock() }

// check converts a CUresult into an error and records one that loses the device.
func (c *Context) check(op string, code int32) error {
	if code == cudaSuccess {
		return nil
	}
	err := c.lib.check(op, code)
	if lost(err) {
		c.dead.CompareAndSwap(nil, err.(*Error))
	}
	return err
}

// call calls a function of the driver, which op names in an error, as driver.in does.
//
//go:uintptrescapes
func (c *Context) call(op string, fn uintptr, args ...uintptr) error {
	return c.check(op, c.lib.api.in(c.handle, fn, args...))
}

// own registers a resource to be destroyed with the context. The context is entered.
func (c *Context) own(r resource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owned[r] = struct{}{}
}

// drop destroys a resource of own once. After the context's end it does nothing.
func (c *Context) drop(r resource) {
	if c == nil {
		return // of a zero object
	}
	c.life.RLock()
	defer c.life.RUnlock()
	c.mu.Lock()
	_, mine := c.owned[r]
	delete(c.owned, r)
	c.mu.Unlock()
	if mine && !c.closed {
		r.destroy()
	}
}

// drain waits for the work of all streams, and ends the calls on the context.
func (c *Context) drain(ctx context.Context) error {
	c.closing.Store(true)
	var streams []*Stream
	c.mu.Lock()
	for r := range c.owned {
		if s, ok := r.(*Stream); ok {
			streams = append(streams, s)
		}
	}
	c.mu.Unlock()
	for _, s := range streams {
		for !c.dev.Lost() && c.dead.Load() == nil && s.unfinished() {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

// end destroys everything. After a lost device CUDA may wait for semaphores that nobody
// will signal; end then destroys nothing, as that would wait for them too.
func (c *Context) end() {
	c.life.Lock()
	defer c.life.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	if c.dev.Lost() {
		return
	}
	for r := range c.owned {
		r.destroy()
	}
	for _, m := range c.modules {
		m.unload(c)
	}
	c.mu.Lock() // against kernelOf, which holds no life
	c.owned, c.modules, c.kernels = nil, nil, nil
	c.mu.Unlock()
	if !c.foreign {
		ccall.Call(c.lib.api.cuDevicePrimaryCtxRelease_v2, uintptr(c.info.device))
	}
}
