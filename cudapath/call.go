package cudapath

// What the C side takes for a launch. cua_cgo.go compares the layouts with those of cua.h.

// cudaCall is cua_call.
type cudaCall struct {
	function               uint64
	grid                   [3]uint32
	threads, shared, count uint32 // count of maps
	early                  uint32 // may start before the kernel before it on the stream ends, for which it waits itself
	maps                   [4]cudaMap
	params                 callParams
}

// cudaMap is cua_map: dimensions are dim, row, head, batch.
type cudaMap struct {
	base          uint64
	dims          [4]uint64
	strides       [3]uint64 // bytes, of row, head, batch
	box           [4]uint32
	kind, swizzle int32 // as the driver numbers them
}

// callParams is cua_params, and AttnParams of kernels/attn.h.
type callParams struct {
	q, k, v, o                              tensorParams
	lse                                     uint64
	b, hq, hkv, sq, sk, d, dv, causalOffset int32
	scale, scaleLog2, unitHigh, unitLow     float32
}

// Results of the driver.
const (
	cudaSuccess  = 0
	cudaNotReady = 600
)
