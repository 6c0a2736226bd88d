package cudapath

// tensorParams is AttnTensor of kernels/attn.h.
type tensorParams struct {
	base             uint64
	batch, head, row int64
}

// backwardParams is AttnBackwardParams of kernels/attn_backward.h.
type backwardParams struct {
	q, k, v, o, dO, dQ, dK, dV tensorParams
	lse, dLSE, stats           uint64
	cuQ, cuK, usedQ, usedK     uint64
	first, hq, hkv             int32
	sq, sk, d, dv              int32
	totalQ, totalK             int32
	bottomRight, left, right   int32
	accumulate                 int32 // 1, and lseOfMoreKeys
	scale, softcap             float32
	b                          int32 // all sequences
}

// lseOfMoreKeys is a bit of accumulate.
const lseOfMoreKeys = 2

// statBytes are the bytes of the workspace for each row.
const statBytes = 16
