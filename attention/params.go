package attention

import "unsafe"

// The parameter blocks of the kernels, field by field as the GLSL declares them. The
// tag glsl has the names there, one for each element; a field without has its own.
// An address of uvec2 is one uint64 here: the kernel's low word comes first, and the
// device has the byte order of the host.

// denseParams is Params of shaders/interface.glsl in modules that take no options.
type denseParams struct {
	addr   [5]uint64    `glsl:"addrQ addrK addrV addrO addrLSE"`
	stride [4][3]uint32 `glsl:"strideQBatch strideQHead strideQSeq strideKBatch strideKHead strideKSeq strideVBatch strideVHead strideVSeq strideOBatch strideOHead strideOSeq"`

	Sq, Sk, Hq, groupSize uint32
	scoreScale            float32
	causalOffset          int32
	unitHigh, unitLow     float32
}

// generalParams is Params in modules that take options.
type generalParams struct {
	denseParams
	addrOptions [11]uint64 `glsl:"addrCuQ addrCuK addrUsedQ addrUsedK addrBlockTable addrALiBi addrSinks addrBias addrMask addrKScale addrVScale"`
	strideBias  [3]uint32  `glsl:"strideBiasBatch strideBiasHead strideBiasRow"`
	strideMap   [3]uint32  `glsl:"strideMaskBatch strideMaskHead strideMaskRow"`

	totalQ, totalK          uint32
	windowLeft, windowRight int32
	blockTableStride        uint32
	softcap                 float32
}

// setAddress says where the tensor of a binding starts. The tokens of sparse lists
// exclude a mask, and their address is where its strides would be.
func (p *generalParams) setAddress(binding int, at uint64) {
	switch {
	case binding <= bindLSE:
		p.addr[binding] = at
	case binding < bindTokens:
		p.addrOptions[binding-bindCuQ] = at
	default:
		p.strideMap[0], p.strideMap[1] = uint32(at), uint32(at>>32)
	}
}

// mergeParams is Params of shaders/merge.comp.
type mergeParams struct {
	addrFirst, addrSecond, addrFirstLSE, addrSecondLSE, addrO, addrLSE uint64

	strideFirst  [3]uint32 `glsl:"strideFirstBatch strideFirstHead strideFirstSeq"`
	strideSecond [3]uint32 `glsl:"strideSecondBatch strideSecondHead strideSecondSeq"`
	strideO      [3]uint32 `glsl:"strideOBatch strideOHead strideOSeq"`

	stepFirst, stepSecond, stepFirstLSE, stepSecondLSE uint32

	firstCount, states, Sq, Hq uint32
}

// appendParams is Params of shaders/append.comp.
type appendParams struct {
	addr   [appendBindings]uint64 `glsl:"addrIn addrOut addrScale addrUsed addrLengths addrBlockTable addrCos addrSin"`
	stride [2][3]uint32           `glsl:"strideInBatch strideInHead strideInSeq strideOutBatch strideOutHead strideOutSeq"`

	rows, heads, sequences, limit, pageRows, pages, blockTableStride, flags uint32
}

// combineParams is Params of shaders/combine.comp.
type combineParams struct {
	addrSplitO, addrSplitLSE, addrO, addrLSE uint64

	strideO [3]uint32 `glsl:"strideOBatch strideOHead strideOSeq"`

	splits, rows, Sq, Hq uint32
}

// paramBytes is the memory of a block, n bytes as the module has it: Go rounds a
// structure up to a multiple of 8.
func paramBytes[T denseParams | generalParams | mergeParams | appendParams | combineParams](p *T, n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), n)
}
