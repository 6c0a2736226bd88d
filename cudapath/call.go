package cudapath

import (
	"sync"
	"unsafe"

	"vkattn/internal/ccall"
)

// cudaCall is a launch, but for its parameters.
type cudaCall struct {
	function               uint64
	grid                   [3]uint32
	threads, shared, count uint32 // count of maps
	early                  bool   // may start before the kernel before it on the stream ends, for which it waits itself
	maps                   [maxMaps]cudaMap
}

// cudaMap is a tensor map before it is encoded: dimensions are dim, row, head, batch.
type cudaMap struct {
	base          uint64
	dims          [4]uint64
	strides       [3]uint64 // bytes, of row, head, batch
	box           [4]uint32
	kind, swizzle int32 // as the driver numbers them
}

// callParams is AttnParams of kernels/attn.h.
type callParams struct {
	q, k, v, o                              tensorParams
	lse                                     uint64
	b, hq, hkv, sq, sk, d, dv, causalOffset int32
	scale, scaleLog2, unitHigh, unitLow     float32
}

// generalParams is AttnGeneralParams of kernels/attn_general.h.
type generalParams struct {
	callParams
	cuQ, cuK, usedQ, usedK       uint64
	table, alibi, sinks          uint64
	totalQ, totalK               int32
	left, right, bottomRight     int32
	pageSize, pages, tableStride int32
	firstBatch, firstHead        int32
	unaligned, changes           int32
	scoreScale, softcap          float32
	bias, mask                   uint64
	biasSteps, maskSteps         [3]int64 // of batch, head and row
	biasType                     int32
	dropOffset                   uint32
	dropSeed                     uint64
	dropThreshold                uint32
	dropScale                    float32
	dropState, maxLogits         uint64
	alibiBatch, _                int32
}

// latentParams is AttnLatentParams of kernels/attn_latent.h.
type latentParams struct {
	generalParams
	partial, tokens             uint64
	parts, topK, whole, entries int32
	offsets                     uint64
}

const (
	maxMaps    = 4
	maxParams  = 512 // bytes of a kernel's parameters, without its maps
	mapBytes   = 128 // CUtensorMap, which the driver wants at multiples of mapAlign
	mapAlign   = 64
	promote256 = 3 // CU_TENSOR_MAP_L2_PROMOTION_L2_256B
)

// launchAttribute is CUlaunchAttribute.
type launchAttribute struct {
	id, _ int32
	value [16]int32
}

// launchConfig is CUlaunchConfig.
type launchConfig struct {
	grid, block [3]uint32
	shared      uint32
	stream      uint64
	attributes  *launchAttribute
	count       uint32
}

// launchFrames are the calls of a launch, in one run: the context is made current, each map encoded, the kernel launched,
// and the context given back, also after a failure.
type launchFrames struct {
	push struct {
		ccall.Frame
		context uintptr
	}
	maps [maxMaps]struct {
		ccall.Frame
		to         unsafe.Pointer
		kind, rank uintptr
		base       uintptr
		dims       *[4]uint64
		strides    *[3]uint64
		box, ones  *[4]uint32

		interleave, swizzle, promotion, fill uintptr
	}
	plain struct {
		ccall.Frame
		function        uintptr
		grid            [3]uintptr
		block           [3]uintptr
		shared, stream  uintptr
		arguments, none *[maxMaps + 1]unsafe.Pointer
	}
	early struct {
		ccall.Frame
		config          *launchConfig
		function        uintptr
		arguments, none *[maxMaps + 1]unsafe.Pointer
	}
	pop struct {
		ccall.Frame
		was *uint64
	}

	was       uint64
	arguments [maxMaps + 1]unsafe.Pointer
	encoded   [maxMaps*mapBytes + mapAlign]byte
	call      cudaCall
	params    [maxParams / 8]uint64
	config    launchConfig
	attribute launchAttribute
	ones      [4]uint32
}

var launches = sync.Pool{New: func() any {
	f := new(launchFrames)
	f.push.Args, f.push.Fail = 1, ccall.End
	f.pop.Args, f.pop.was = 1, &f.was
	f.ones = [4]uint32{1, 1, 1, 1}
	at := unsafe.Pointer(&f.encoded)
	at = unsafe.Add(at, (mapAlign-uintptr(at)%mapAlign)%mapAlign)
	for i := range f.maps {
		m, from := &f.maps[i], &f.call.maps[i]
		m.Args, m.Fail = ccall.Size(unsafe.Sizeof(*m)), &f.pop.Frame
		m.to, m.rank, m.promotion = unsafe.Add(at, i*mapBytes), tensorMapRank, promote256
		m.dims, m.strides, m.box, m.ones = &from.dims, &from.strides, &from.box, &f.ones
	}
	f.plain.Args, f.plain.Next, f.plain.arguments = ccall.Size(unsafe.Sizeof(f.plain)), &f.pop.Frame, &f.arguments
	f.early.Args, f.early.Next, f.early.arguments = ccall.Size(unsafe.Sizeof(f.early)), &f.pop.Frame, &f.arguments
	f.early.config = &f.config
	f.attribute = launchAttribute{id: attributeEarly, value: [16]int32{1}}
	return f
}}

func (a *driver) launchesEarly() bool { return a.cuLaunchKernelEx != 0 }

// launch launches a kernel, whose parameters the driver copies. op names the function that failed. The stream is in use.
func launch[P any](s *Stream, call *cudaCall, params *P) (op string, code int32) {
	if s.recording != nil {
		s.recording.add(call, unsafe.Pointer(params), unsafe.Sizeof(*params))
		return "", cudaSuccess
	}
	a, context, stream := s.c.lib.api, s.c.handle, s.handle
	f := launches.Get().(*launchFrames)
	defer launches.Put(f)
	f.call = *call
	*(*P)(unsafe.Pointer(&f.params)) = *params
	f.push.Fn, f.push.context, f.pop.Fn = a.cuCtxPushCurrent_v2, uintptr(context), a.cuCtxPopCurrent_v2
	next := &f.push.Next
	for i := range f.maps[:call.count] {
		m := &f.maps[i]
		m.Fn, m.kind, m.base, m.swizzle = a.cuTensorMapEncodeTiled, uintptr(call.maps[i].kind), uintptr(call.maps[i].base), uintptr(call.maps[i].swizzle)
		f.arguments[i] = m.to
		*next, next = &m.Frame, &m.Next
	}
	f.arguments[call.count] = unsafe.Pointer(&f.params)
	kernel := &f.plain.Frame
	if call.early {
		kernel, op = &f.early.Frame, "cuLaunchKernelEx"
		f.early.Fn, f.early.function = a.cuLaunchKernelEx, uintptr(call.function)
		f.config = launchConfig{grid: call.grid, block: [3]uint32{call.threads, 1, 1}, shared: call.shared, stream: stream,
			attributes: &f.attribute, count: 1}
	} else {
		op = "cuLaunchKernel"
		f.plain.Fn, f.plain.function = a.cuLaunchKernel, uintptr(call.function)
		f.plain.grid = [3]uintptr{uintptr(call.grid[0]), uintptr(call.grid[1]), uintptr(call.grid[2])}
		f.plain.block, f.plain.shared, f.plain.stream = [3]uintptr{uintptr(call.threads), 1, 1}, uintptr(call.shared), uintptr(stream)
	}
	*next = kernel
	ccall.Run(&f.push.Frame)
	if r := int32(f.push.Result); r != cudaSuccess {
		return "cuCtxPushCurrent", r
	}
	for i := range f.maps[:call.count] {
		if r := int32(f.maps[i].Result); r != cudaSuccess {
			return "cuTensorMapEncodeTiled", r
		}
	}
	return op, first(int32(kernel.Result), int32(f.pop.Result))
}
