package attention

import (
	"vkattn/internal/host"
	"vkattn/internal/oracle"
	"vkattn/internal/problem"
)

// Reference computes a call in float64 by the plain formula: all scores of a row, its
// softmax, then the weighted sum of V. It reads inputs in their storage type and neither
// reads nor writes a.O and a.LSE, which may be zero.
//
// It returns O packed [B, Hq, Sq, HeadDimV] and LSE packed [B, Hq, Sq]. Q, K, V and the
// memory of options must lie in host memory. The work runs on all CPUs and needs about
// 64 MiB on each, and the outputs. If the host lacks that memory, the error matches
// vk.ErrOutOfMemory.
//
// Row i of sequence b (see [Varlen]) is row i of batch b. Rows past the end of a sequence
// do not exist: they have O = 0 and LSE = -Inf. Quantized
// elements of K and V are exact: number times scale.
func Reference(cfg Config, a Args) (o, lse []float64, err error) {
	return oracle.Reference(problem.Config(cfg), a)
}

// ReferenceMaxLogits computes Args.MaxLogits in float64. Like [Reference] it reads the inputs alone.
func ReferenceMaxLogits(cfg Config, a Args) ([]float64, error) {
	return oracle.ReferenceMaxLogits(problem.Config(cfg), a)
}

// DropoutMask returns the mask of Config.Dropout for a call's Shape, DropoutSeed and
// DropoutOffset: bytes [B, Hq, Sq, Sk], 1 for a slot that keeps its weight and 0 for one that
// is dropped. Rows and keys count from the start of their sequence b, so packed, padded and
// paged calls, splits, and forward and backward on every tier have this mask. With
// probability 0 all bytes are 1. No tensor is read.
//
// The slot of row i and key j of query head h takes word j%4 of Philox4x32-10 with the
// counter (j/4, i, b*Hq+h, DropoutOffset) and the key DropoutSeed, low word first. It keeps its
// weight if the word is at least Dropout * 2^32. Counters have 32 bits: from 2^32 heads b*Hq+h on
// masks repeat. If the host lacks the memory, the error matches vk.ErrOutOfMemory.
func DropoutMask(cfg Config, a Args) ([]byte, error) { return host.DropoutMask(problem.Config(cfg), a) }

// ReferenceBackward computes the gradients of a call in float64 by the plain formula. With
// P the softmax of a row over its keys and its sink,
//
//	dV = Pᵀ dO    dP = dO Vᵀ    delta = Σ P dP    dS = P (dP - delta + dLSE)
//	dQ = scale dX K    dK = scale dXᵀ Q    dBias = dS    dSink = -P (delta - dLSE)
//
// where dX is dS times the derivative of the softcap, 1 - tanh². The gradient of an entry of a table
// is the sum over all slots of dS times the derivative of the score modifier with respect to it. Everything is computed
// from Q, K, V and the options of the call: a.O and a.LSE are neither read nor written and
// may be zero. ALiBi slopes have no gradient.
//
// It returns the gradients whose outputs a has, or all of them (dBias with Bias, dSinks
// with Sinks, DTables of each table with a gradient) if a has none. The outputs are never written. They are read with
// a.Accumulate, which adds what DQ, DK and DV hold for rows and keys that exist. All
// tensors must lie in host memory.
//
// The rows and keys of sequence b are rows 0 and on of batch b, as in [Reference]. The
// gradient is 0 for those past its end. A row that attends to nothing has gradient 0 and
// adds nothing to another gradient, with one exception: its LSE is its sink, so it adds
// its dLSE to dSink. A slot that is masked, out of length or of weight 0 adds nothing to
// any gradient, whatever the tensors hold there, NaN and Inf included. A token that a list
// of [SparseTokens] has twice counts twice. A row whose LSE is NaN makes its own gradient
// and the gradients of all its keys NaN.
//
// The bits do not depend on the number of CPUs. The work is spread over (batch, key head)
// pairs; pairs that add to the same elements of dBias are computed one after the other.
// It needs about 32 MiB for each CPU, and the results; where the host lacks that memory,
// the error matches vk.ErrOutOfMemory. Paged or quantized K and V give an error that
// matches [ErrUnsupported].
func ReferenceBackward(cfg Config, a BackwardArgs) (g Gradients, err error) {
	return oracle.ReferenceBackward(problem.Config(cfg), a)
}

// ReferenceSample is Reference of some rows, for problems too large to verify whole: O
// packed [rows, HeadDimV] and LSE [rows], in the order of the sample. Each row has the
// bits that Reference gives it.
func ReferenceSample(cfg Config, a Args, sample []Rows) (o, lse []float64, err error) {
	return oracle.ReferenceSample(problem.Config(cfg), a, sample)
}
