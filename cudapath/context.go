package cudapath

/*
#include "cua.h"

// What the steady state calls: arguments do not outlive the call.
#cgo noescape cua_launch
#cgo nocallback cua_launch
#cgo nocallback cua_signal
#cgo nocallback cua_wait
#cgo nocallback cua_event_record
#cgo nocallback cua_stream_poll
*/
import "C"

import (
	"sync"
	"sync/atomic"

	"vkattn/vk"
)

// Context is CUDA on a Vulkan device: the primary context of the CUDA device with
// the same UUID, which other users of CUDA in the process share. It belongs to the
// Vulkan device and is closed with it. It may be used by many goroutines, on any
// thread: each call makes the context current for as long as it takes.
type Context struct {
	dev    *vk.Device
	lib    *library
	info   DeviceInfo
	handle C.cua_handle
	table  *table

	// life is held for reading by every call and for writing by the end of the
	// device. No call of package vk is made with it held: the device's end waits for
	// those.
	life   sync.RWMutex
	closed bool
	dead   atomic.Pointer[Error] // the driver's first result that lost the device

	mu      sync.Mutex // guards what follows
	modules map[string]*module
	kernels map[*Kernel]*kernel
	owned   map[resource]struct{}
}

// resource is what a context destroys at its end, unless its owner did before. The
// context is entered, or closing.
type resource interface{ destroy() }

// contextKey is what a device's Context is attached by.
var contextKey any = new(struct{ _ int })

// Open gives the CUDA context of a Vulkan device, always the same one. It is closed
// with the device; there is nothing to close before. The error matches
// vk.ErrUnsupported where the machine has no CUDA, no CUDA device has the Vulkan
// device's UUID, or the two cannot share memory and semaphores.
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

// attached is a context as its device holds it.
type attached struct{ c *Context }

// Detach is the end of the device.
func (a attached) Detach() { a.c.end() }

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
	if err := lib.check("cuDevicePrimaryCtxRetain", C.cua_retain(lib.api, C.int(info.device), &c.handle)); err != nil {
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

// Device is the Vulkan device.
func (c *Context) Device() *vk.Device {
	if c == nil {
		return nil
	}
	return c.dev
}

// Handle is the CUcontext, the device's primary one.
func (c *Context) Handle() uint64 {
	if c == nil {
		return 0
	}
	return uint64(c.handle)
}

// enter starts a call: nil, or why the context cannot be used. After nil, leave has
// to follow. Calls do not nest.
func (c *Context) enter(op string) error {
	if c == nil || c.lib == nil {
		return unmade(op)
	}
	c.life.RLock()
	if c.closed {
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

// check turns a result into an error and remembers one after which the driver does
// nothing more.
func (c *Context) check(op string, code C.int) error {
	if code == C.CUDA_SUCCESS {
		return nil
	}
	err := c.lib.check(op, code)
	if lost(err) {
		c.dead.CompareAndSwap(nil, err.(*Error))
	}
	return err
}

// own notes what to destroy with the context. It is entered.
func (c *Context) own(r resource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owned[r] = struct{}{}
}

// drop destroys what own noted, once; nothing after the context's end.
func (c *Context) drop(r resource) {
	if c == nil {
		return // of an object that nobody made
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

// end destroys everything. A lost device may have left CUDA waiting for semaphores
// that nobody will signal: then it all stays as it is, since destroying it would
// wait for them.
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
	for r := range c.owned { // memory goes after the work that uses it
		if s, ok := r.(*Stream); ok {
			C.cua_stream_synchronize(c.lib.api, c.handle, s.handle)
		}
	}
	for r := range c.owned {
		r.destroy()
	}
	for _, m := range c.modules {
		m.unload(c)
	}
	c.owned, c.modules, c.kernels = nil, nil, nil
	C.cua_release(c.lib.api, C.int(c.info.device))
}
