package attention

import (
	"vkattn/attention/score"
	"vkattn/internal/plan"
)

// The parameter blocks of the backward kernels, which mirror their GLSL as params.go says.

// Sizes of the blocks of the kernels of row statistics, of dSinks and of the sums of tables, and
// their storage buffers.
const (
	deltaPushBytes = 96
	deltaBindings  = 5
	sinksPushBytes = 56
	sinksBindings  = 5

	tableSumPushBytes = 36
	tableSumBindings  = 2
)

// Bindings of the dQ, dK/dV and dBias kernels; see shaders/backward_interface.glsl.
const (
	bwdQ = iota
	bwdK
	bwdV
	bwdDO
	bwdStats
	bwdCuQ
	bwdCuK
	bwdUsedQ
	bwdUsedK
	bwdDX // dQ, dK or dBias
	bwdALiBi
	bwdDV
	bwdBias
	bwdMap
	bwdTokens
	// the parameters are the next binding

	bwdTables = plan.BackwardBindings // the first table
)

// backwardParams is the block Params of shaders/backward_interface.glsl.
type backwardParams struct {
	addr        [7]uint64 `glsl:"addrQ addrK addrV addrDO addrStats addrDX addrDV"`
	addrOptions [7]uint64 `glsl:"addrCuQ addrCuK addrUsedQ addrUsedK addrALiBi addrBias addrMask"`

	stride     [6][3]uint32 `glsl:"strideQBatch strideQHead strideQSeq strideKBatch strideKHead strideKSeq strideVBatch strideVHead strideVSeq strideDOBatch strideDOHead strideDOSeq strideDXBatch strideDXHead strideDXSeq strideDVBatch strideDVHead strideDVSeq"`
	strideBias [3]uint32    `glsl:"strideBiasBatch strideBiasHead strideBiasRow"`
	strideMap  [3]uint32    `glsl:"strideMaskBatch strideMaskHead strideMaskRow"`

	sequences, Sq, Sk, Hq, groupSize, totalQ, totalK uint32

	scoreScale                            float32
	causalOffset, windowLeft, windowRight int32
	softcap                               float32
}

// backwardBufferParams is the same with descriptors, as bufferParams is.
type backwardBufferParams struct {
	backwardParams
	tables [score.MaxTables][4]int32
}

// Rows of backwardParams.stride.
const (
	strideDX = 4 + iota
	strideDV
)

// address returns the member that holds the start of a binding's tensor, or nil for the
// sparse tokens, whose address is in the first two strides of the mask or of the bias.
func (p *backwardParams) address(binding int) *uint64 {
	switch {
	case binding <= bwdStats:
		return &p.addr[binding]
	case binding == bwdDX:
		return &p.addr[5]
	case binding == bwdDV:
		return &p.addr[6]
	case binding <= bwdUsedK:
		return &p.addrOptions[binding-bwdCuQ]
	case binding == bwdALiBi:
		return &p.addrOptions[4]
	case binding == bwdBias, binding == bwdMap:
		return &p.addrOptions[5+binding-bwdBias]
	}
	return nil
}

// deltaParams is the block Params of shaders/backward_delta.comp.
type deltaParams struct {
	addr     [deltaBindings]uint64 `glsl:"addrO addrDO addrLSE addrDLSE addrStats"`
	strideO  [3]uint32             `glsl:"strideOBatch strideOHead strideOSeq"`
	strideDO [3]uint32             `glsl:"strideDOBatch strideDOHead strideDOSeq"`

	Sq, Hq, rows, firstRow uint32
	dropout                [4]uint32 `glsl:"dropoutSeedLow dropoutSeedHigh dropoutOffset dropoutThreshold"`
}

// sinksParams is the block Params of shaders/backward_sinks.comp.
type sinksParams struct {
	addr [sinksBindings]uint64 `glsl:"addrStats addrSinks addrDSinks addrCuQ addrUsedQ"`

	sequences, Sq, Hq, totalQ uint32
}

// tableSumParams is the block Params of shaders/backward_table_sum.comp.
type tableSumParams struct {
	addr [tableSumBindings]uint64 `glsl:"addrParts addrDTable"`

	entries, stride, heads, Hq, parts uint32
}
