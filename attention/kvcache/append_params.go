package kvcache

// appendParams is the block Params of shaders/append.comp.
type appendParams struct {
	addr   [appendBindings]uint64 `glsl:"addrIn addrOut addrScale addrUsed addrLengths addrBlockTable addrCos addrSin"`
	stride [2][3]uint32           `glsl:"strideInBatch strideInHead strideInSeq strideOutBatch strideOutHead strideOutSeq"`

	rows, heads, sequences, limit, pageRows, pages, blockTableStride, flags uint32
}
