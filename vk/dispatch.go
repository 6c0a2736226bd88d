package vk

// Dispatch records a dispatch of groups workgroups of a pipeline. buffers are bindings 0
// to n-1 of set 0; push is the whole block of push constants. Dispatch checks group
// counts, ranges, alignments and the sizes of both lists. It cannot check addresses
// inside push: pass the buffers that they point to as keep. If a group count is 0 nothing
// is recorded. The batch holds pipeline, buffers and keep until it has finished. Dispatch
// does not allocate once the stream has recorded a batch of the same size.
func (c *Commands) Dispatch(p *Pipeline, buffers []BufferRange, push []byte, groups [3]uint32, keep ...Resource) error {
	if c != nil && c.s != nil && c.s.observer != nil {
		return c.observed(Dispatched{Pipeline: p, Name: p.Name(), Groups: groups, LocalSize: p.LocalSize()},
			func() error { return c.dispatch(p, buffers, push, groups, keep...) })
	}
	return c.dispatch(p, buffers, push, groups, keep...)
}

func (c *Commands) dispatch(p *Pipeline, buffers []BufferRange, push []byte, groups [3]uint32, keep ...Resource) error {
	const op = "Dispatch"
	b, err := c.enter(op)
	if err != nil {
		return err
	}
	d := c.d
	defer d.leave()
	if err := d.checkDispatch(op, p, buffers, push, groups); err != nil {
		return err
	}
	if groups[0] == 0 || groups[1] == 0 || groups[2] == 0 {
		return nil
	}
	if p.closed.Load() {
		return closed(op + ": pipeline")
	}
	for _, r := range keep {
		if err := b.hold(r); err != nil {
			return err
		}
	}
	if err := b.hold(p.compiled); err != nil {
		return err
	}
	if len(buffers) > 0 {
		for i := range buffers {
			if err := b.hold(buffers[i].Buffer); err != nil {
				return err
			}
			at, size, _ := buffers[i].resolve()
			b.handles[i] = buffers[i].Buffer.handle
			b.starts[i] = buffers[i].Buffer.offset + at
			// Round up to a whole word within the buffer: see padding.
			b.ranges[i] = min(alignUp(size, 4), buffers[i].Buffer.capacity-at)
		}
		if err := b.descriptorSet(d, p.sets, uint32(len(buffers))); err != nil {
			return err
		}
	}
	hostCmdDispatch(d.c, &b.recorder, p.handle, p.layout, len(buffers) > 0, push, &groups)
	return nil
}

func (d *Device) checkDispatch(op string, p *Pipeline, buffers []BufferRange, push []byte, groups [3]uint32) error {
	l := &d.info.Caps.Limits
	if p.device() != d {
		return invalid(op, "no pipeline of this device")
	}
	for i, n := range groups {
		if n > l.MaxWorkGroupCount[i] {
			return invalid(op, "%s: %v groups, the device allows %v", p.name, groups, l.MaxWorkGroupCount)
		}
	}
	if uint32(len(push)) != p.push {
		return invalid(op, "%s: %d bytes of push constants for %d", p.name, len(push), p.push)
	}
	if uint32(len(buffers)) != p.nbindings {
		return invalid(op, "%s: %d buffers for %d bindings", p.name, len(buffers), p.nbindings)
	}
	for i := range buffers {
		at, size, err := d.checkRange(op, buffers[i])
		if err != nil {
			return err
		}
		if (buffers[i].Buffer.offset+at)%l.MinStorageBufferOffsetAlignment != 0 {
			return invalid(op, "%s: binding %d at offset %d, not a multiple of %d", p.name, i, at, l.MinStorageBufferOffsetAlignment)
		}
		if size > l.MaxStorageBufferRange {
			return invalid(op, "%s: binding %d of %d bytes, the device allows %d", p.name, i, size, l.MaxStorageBufferRange)
		}
	}
	return nil
}

// Reserve allocates descriptors for the given number of dispatches with the given number
// of buffers each, so that none of them fails for lack of descriptors: an operation of
// several dispatches is then recorded completely or not at all.
func (c *Commands) Reserve(dispatches, buffers int) error {
	const op = "Reserve"
	b, err := c.enter(op)
	if err != nil {
		return err
	}
	defer c.d.leave()
	switch {
	case dispatches < 0 || buffers < 0 || buffers > maxBindings:
		return invalid(op, "%d dispatches of %d buffers", dispatches, buffers)
	case buffers == 0:
		return nil
	}
	return b.reserve(c.d, dispatches, uint32(buffers))
}

// Limits of a launch on every NVIDIA GPU of compute capability 7.0 and up, from the tables
// of the CUDA programming guide. Vulkan does not report them.
const (
	maxParamBytes   = 4096
	maxCTAThreads   = 1024
	maxCTARegisters = 65536
	warpThreads     = 32
)

var (
	maxGrid  = [3]uint32{1<<31 - 1, 65535, 65535}
	maxBlock = [3]uint32{1024, 1024, 64}
)

// CubinLaunch has the dimensions of a launch.
type CubinLaunch struct {
	Grid, Block [3]uint32 // CTAs, and threads of a CTA
	SharedBytes uint32    // dynamic shared memory of a CTA
}

// Launch records a launch of a kernel. params are its parameters, one after the other
// without gaps, ParamBytes in total. Pointers among them are buffer device addresses: pass
// the buffers as keep. Launch compares everything with the limits of the device and with
// what the cubin declares, as a launch that fails on the device loses it. The batch holds
// the function and keep until it has finished. If a grid dimension is 0 nothing is
// recorded. Launch does not allocate.
//
// Static shared memory, with the KiB that the system reserves, and SharedBytes together are
// limited by Limits.MaxSharedBytes: an H200 ran 49152 bytes of such a sum and hung with 49156.
//
// The first launch of a Commands is preceded by a barrier of all commands. From then on
// every barrier of the device covers all commands, as the specification names no pipeline
// stage for launches.
func (c *Commands) Launch(f *CubinFunction, l CubinLaunch, params []byte, keep ...Resource) error {
	if c != nil && c.s != nil && c.s.observer != nil {
		return c.observed(Dispatched{Function: f, Name: f.Name(), Groups: l.Grid, LocalSize: l.Block, SharedBytes: l.SharedBytes},
			func() error { return c.launch(f, l, params, keep...) })
	}
	return c.launch(f, l, params, keep...)
}

func (c *Commands) launch(f *CubinFunction, l CubinLaunch, params []byte, keep ...Resource) error {
	const op = "Launch"
	b, err := c.enter(op)
	if err != nil {
		return err
	}
	d := c.d
	defer d.leave()
	if err := d.checkLaunch(op, f, &l, params); err != nil {
		return err
	}
	if l.Grid[0] == 0 || l.Grid[1] == 0 || l.Grid[2] == 0 {
		return nil
	}
	if f.closed.Load() { // hold sees only the first use in a batch
		return closed(op + ": function of a cubin")
	}
	for _, r := range keep {
		if err := b.hold(r); err != nil {
			return err
		}
	}
	if err := b.hold(f); err != nil {
		return err
	}
	d.launches.Store(true)
	if !c.launched {
		c.innerBarrier(b)
		c.launched = true
	}
	hostCmdLaunch(d.c, &b.recorder, f.handle, &l, params, f.kernel.offsets)
	return nil
}

// checkLaunch applies the limits of the device and of the kernel.
func (d *Device) checkLaunch(op string, f *CubinFunction, l *CubinLaunch, params []byte) error {
	if f.device() != d {
		return invalid(op, "no function of a cubin of this device")
	}
	k := f.kernel
	threads := uint64(1)
	for i := range 3 {
		if l.Grid[i] > maxGrid[i] {
			return invalid(op, "%s: grid %v, at most %v", f.name, l.Grid, maxGrid)
		}
		if l.Block[i] == 0 || l.Block[i] > maxBlock[i] {
			return invalid(op, "%s: block %v, at most %v", f.name, l.Block, maxBlock)
		}
		threads *= uint64(l.Block[i])
	}
	most := uint64(maxCTAThreads)
	if k.maxThreads > 0 {
		most = min(most, uint64(k.maxThreads))
	}
	if threads > most {
		return invalid(op, "%s: %d threads, at most %d", f.name, threads, most)
	}
	// The hardware allocates registers per warp, 8 per thread at a time.
	warps := (threads + warpThreads - 1) / warpThreads
	if n := warps * warpThreads * alignUp(uint64(k.registers), 8); n > maxCTARegisters {
		return invalid(op, "%s: %d threads of %d registers need %d, a CTA has %d", f.name, threads, k.registers, n, maxCTARegisters)
	}
	if n := k.shared + uint64(l.SharedBytes); n > uint64(d.info.Caps.Limits.MaxSharedBytes) {
		return invalid(op, "%s: %d bytes of static and dynamic shared memory, the device has %d", f.name, n, d.info.Caps.Limits.MaxSharedBytes)
	}
	if len(params) != int(k.paramBytes) {
		return invalid(op, "%s: %d bytes of parameters for %d", f.name, len(params), k.paramBytes)
	}
	return nil
}

// barrierScope reports whether barriers cover all commands, as they do once a launch was recorded.
func (d *Device) barrierScope() bool { return d.launches.Load() }
