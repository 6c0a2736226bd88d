package merge

// mergeParams is the block Params of shaders/merge.comp.
type mergeParams struct {
	addrFirst, addrSecond, addrFirstLSE, addrSecondLSE, addrO, addrLSE uint64

	strideFirst  [3]uint32 `glsl:"strideFirstBatch strideFirstHead strideFirstSeq"`
	strideSecond [3]uint32 `glsl:"strideSecondBatch strideSecondHead strideSecondSeq"`
	strideO      [3]uint32 `glsl:"strideOBatch strideOHead strideOSeq"`

	stepFirst, stepSecond, stepFirstLSE, stepSecondLSE uint32

	firstCount, states, Sq, Hq uint32
}
