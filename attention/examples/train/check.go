package main

import (
	"fmt"
	"io"
	"math"

	"vkattn/attention"
)

// Limits of the relative errors. Differences of a float32 loss are less exact than gradients.
const (
	attentionLimit  = 1e-5
	differenceLimit = 1e-3
)

// check verifies the gradients of the last backward call.
func check(w io.Writer, m *model, input, target []int) error {
	for i, l := range m.layers {
		e, err := l.attention.error()
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "check: layer %d   dQ, dK and dV differ from float64 by %.1e of the largest\n", i, e)
		if !(e <= attentionLimit) {
			return fmt.Errorf("gradients of attention in layer %d are wrong", i)
		}
	}
	for _, p := range m.parameters {
		at := largest(p.grad)
		want, err := m.difference(p, at, input, target)
		if err != nil {
			return err
		}
		got := float64(p.grad[at])
		e := math.Abs(got-want) / math.Abs(want)
		fmt.Fprintf(w, "check: %-14s gradient %+.6f, by differences of the loss %+.6f\n", p.name, got, want)
		if !(e <= differenceLimit) {
			return fmt.Errorf("the gradient of %s is wrong", p.name)
		}
	}
	return nil
}

// error returns the largest difference of dQ, dK and dV from the float64 reference, over
// their largest element.
func (l *attentionLayer) error() (float64, error) {
	host := *l
	for _, x := range []*array{&host.qkv, &host.o, &host.lse, &host.dO, &host.dQKV} {
		x.buffer = nil
	}
	a := host.args()
	ref, err := attention.ReferenceBackward(l.config, a)
	if err != nil {
		return 0, err
	}
	var worst, most float64
	for _, g := range []struct {
		tensor attention.Tensor
		ref    []float64 // [B, heads, Sq, headDim]
	}{{a.DQ, ref.DQ}, {a.DK, ref.DK}, {a.DV, ref.DV}} {
		view, err := attention.ViewHost(g.tensor, attention.F32, heads, l.shape.Sq, headDim)
		if err != nil {
			return 0, err
		}
		row := make([]float32, headDim)
		for n := range len(g.ref) / headDim {
			view.ReadRow(row, n/l.shape.Sq/heads, n/l.shape.Sq%heads, n%l.shape.Sq)
			for i, x := range row {
				want := g.ref[n*headDim+i]
				worst, most = max(worst, math.Abs(float64(x)-want)), max(most, math.Abs(want))
			}
		}
	}
	return worst / most, nil
}

// difference returns the derivative of the loss by a parameter: central differences of two
// steps, combined so that their error is of the fourth order.
func (m *model) difference(p *parameter, at int, input, target []int) (float64, error) {
	const step = 1.0 / 32
	was := p.value[at]
	defer func() { p.value[at] = was }()
	var d [2]float64
	for i, h := range []float32{step, 2 * step} {
		p.value[at] = was + h
		up, _, err := m.forward(input, target)
		if err != nil {
			return 0, err
		}
		p.value[at] = was - h
		down, _, err := m.forward(input, target)
		if err != nil {
			return 0, err
		}
		d[i] = (up - down) / float64(2*h)
	}
	return (4*d[0] - d[1]) / 3, nil
}

// largest returns the index of the element of largest magnitude.
func largest(x []float32) (at int) {
	for i, v := range x {
		if math.Abs(float64(v)) > math.Abs(float64(x[at])) {
			at = i
		}
	}
	return at
}
