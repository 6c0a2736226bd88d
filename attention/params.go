package attention

import (
	"vkattn/attention/score"
	"vkattn/internal/dropout"
)

// The parameter blocks of the kernels. Each struct mirrors a block field by field. The tag
// glsl gives the GLSL names, one per element; a field without the tag has the same name in
// GLSL. A uvec2 address is one uint64 here: GLSL stores the low word first, and host and
// device have the same byte order.

// denseParams is the block Params of shaders/interface.glsl in dense modules.
type denseParams struct {
	addr   [5]uint64    `glsl:"addrQ addrK addrV addrO addrLSE"`
	stride [4][3]uint32 `glsl:"strideQBatch strideQHead strideQSeq strideKBatch strideKHead strideKSeq strideVBatch strideVHead strideVSeq strideOBatch strideOHead strideOSeq"`

	Sq, Sk, Hq, groupSize uint32
	scoreScale            float32
	causalOffset          int32
	unitHigh, unitLow     float32
}

// generalParams is the block Params in general and decode modules.
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

// bufferParams is the same with descriptors, where a buffer has the parameters: behind them are, of each table of
// modifiers, the first element in its binding and the sizes of its axes.
type bufferParams struct {
	generalParams
	tables [score.MaxTables][4]int32
}

// setAddress stores the start of a binding's tensor.
func (p *bufferParams) setAddress(binding int, at uint64) {
	if binding >= bindTables {
		p.tables[binding-bindTables][0] = int32(at)
		return
	}
	p.generalParams.setAddress(binding, at)
}

// setAddress stores the start of a binding's tensor. The address of the sparse tokens is in the first two strides of the
// mask, or, if the call has a mask, of the bias, where optionStrides moves them.
func (p *generalParams) setAddress(binding int, at uint64) {
	if binding == bindTokens {
		p.strideMap[0], p.strideMap[1] = uint32(at), uint32(at>>32)
		return
	}
	*p.address(binding) = at
}

// address returns the member that holds the start of a binding's tensor, other than the
// sparse tokens.
func (p *generalParams) address(binding int) *uint64 {
	if binding <= bindLSE {
		return &p.addr[binding]
	}
	return &p.addrOptions[binding-bindCuQ]
}

// setDropout stores the dropout mask in place of the addresses of the scales of K and V.
func (p *generalParams) setDropout(m dropout.Mask) {
	p.addrOptions[bindKScale-bindCuQ], p.addrOptions[bindVScale-bindCuQ] = m.Seed, uint64(m.Offset)|uint64(m.Threshold)<<32
}

// combineParams is the block Params of shaders/combine.comp.
type combineParams struct {
	addrSplitO, addrSplitStats, addrO, addrLSE, addrSinks uint64

	strideO [3]uint32 `glsl:"strideOBatch strideOHead strideOSeq"`

	splits, rows, Sq, Hq uint32
	naturalScores        uint32
	unitHigh, unitLow    float32
}
