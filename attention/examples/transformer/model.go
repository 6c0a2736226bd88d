package main

import (
	"math"
	"math/rand/v2"
)

// The sizes of the model.
const (
	layers, heads, headsKV, dim = 2, 4, 2, 32
	width, hidden, vocabulary   = 128, 256, 256
)

// model is a transformer as LLaMA's: RMSNorm, grouped heads with a rotary embedding, and a gated MLP. Matrices are
// [outputs, inputs].
type model struct {
	embedding, head, gain []float32
	layers                [layers]layer
}

type layer struct{ attentionGain, mlpGain, q, k, v, o, gate, up, down []float32 }

// newModel has random weights, the same in every run: those of a seed with which rounding changes no token.
func newModel() *model {
	r := rand.New(rand.NewPCG(191, 0))
	matrix := func(out, in int) []float32 {
		w := make([]float32, out*in)
		for i := range w {
			w[i] = float32(r.NormFloat64() / math.Sqrt(float64(in)))
		}
		return w
	}
	m := &model{embedding: matrix(vocabulary, width), head: matrix(vocabulary, width), gain: matrix(width, 1)}
	for i := range m.layers {
		m.layers[i] = layer{attentionGain: matrix(width, 1), mlpGain: matrix(width, 1), q: matrix(heads*dim, width),
			k: matrix(headsKV*dim, width), v: matrix(headsKV*dim, width), o: matrix(width, heads*dim),
			gate: matrix(hidden, width), up: matrix(hidden, width), down: matrix(width, hidden)}
	}
	return m
}

// linear returns x wᵀ: a loop is enough at these sizes. A real model needs a GEMM here, on the device.
func linear(x, w []float32, in int) (y []float32) {
	for ; len(x) > 0; x = x[in:] {
		for row := w; len(row) > 0; row = row[in:] {
			var sum float32
			for i, a := range row[:in] {
				sum += a * x[i]
			}
			y = append(y, sum)
		}
	}
	return y
}

// norm divides each row by its root mean square.
func norm(x, gain []float32) (y []float32) {
	for ; len(x) > 0; x = x[len(gain):] {
		var sum float32
		for _, a := range x[:len(gain)] {
			sum += a * a
		}
		scale := float32(1 / math.Sqrt(float64(sum)/float64(len(gain))+1e-5))
		for i, g := range gain {
			y = append(y, x[i]*scale*g)
		}
	}
	return y
}

// gated returns silu(gate) * up, in the memory of gate.
func gated(gate, up []float32) []float32 {
	for i, a := range gate {
		gate[i] = a / float32(1+math.Exp(-float64(a))) * up[i]
	}
	return gate
}

func add(x, y []float32) {
	for i := range x {
		x[i] += y[i]
	}
}
