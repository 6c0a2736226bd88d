package main

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Sizes of the model.
const (
	layers  = 2
	heads   = 4
	headDim = 16
	width   = heads * headDim
	hidden  = 4 * width
)

// parameter is a tensor that training changes, with its gradient and the moments of Adam.
type parameter struct {
	name                          string
	value, grad, moment1, moment2 []float32
}

// adam makes a step of Adam (Kingma and Ba, 2014) and clears the gradient.
func (p *parameter) adam(rate float64, step int) {
	const beta1, beta2 = 0.9, 0.99
	scale := float32(rate * math.Sqrt(1-math.Pow(beta2, float64(step))) / (1 - math.Pow(beta1, float64(step))))
	for i, g := range p.grad {
		p.moment1[i] += (1 - beta1) * (g - p.moment1[i])
		p.moment2[i] += (1 - beta2) * (g*g - p.moment2[i])
		p.value[i] -= scale * p.moment1[i] / (float32(math.Sqrt(float64(p.moment2[i]))) + 1e-8)
	}
	clear(p.grad)
}

// model is a transformer: embeddings of characters and positions, layers, a norm and the
// logits of the next character.
type model struct {
	parameters      []*parameter // all of them
	token, position *parameter
	layers          [layers]*layer
	gain, out       *parameter

	x, normed, logits          []float32 // rows of the residual stream after the layers, [batch * window, ...]
	dX, dNormed, dLogits, temp []float32
}

// layer is x += attention(norm(x)), x += mlp(norm(x)), with what the backward pass takes of
// the forward pass.
type layer struct {
	gain1, proj, gain2, up, down *parameter
	qkv                          [3]*parameter
	attention                    *attentionLayer

	x1, normed1, projections, o []float32 // projections: Q, K and V, each [batch * window, width]
	x2, normed2, h, activated   []float32
	dProjections, dO, dH        []float32
}

func newModel(a *attend, batch int, seed uint64) (*model, error) {
	rng, rows := rand.New(rand.NewPCG(seed, 1)), batch*window
	m := &model{}
	parameter := func(name string, n int, deviation float64) *parameter {
		p := &parameter{name, make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)}
		for i := range p.value {
			p.value[i] = float32(deviation * rng.NormFloat64())
			if deviation == 0 {
				p.value[i] = 1 // a gain
			}
		}
		m.parameters = append(m.parameters, p)
		return p
	}
	inside := 1 / math.Sqrt(width)
	m.token, m.position = parameter("token", alphabet*width, 0.5), parameter("position", window*width, 0.5)
	for i := range m.layers {
		name := func(s string) string { return fmt.Sprintf("layer %d %s", i, s) }
		l := &layer{
			gain1: parameter(name("gain1"), width, 0), proj: parameter(name("proj"), width*width, inside/2),
			gain2: parameter(name("gain2"), width, 0), up: parameter(name("up"), width*hidden, inside), down: parameter(name("down"), hidden*width, inside/4),
		}
		for j, s := range []string{"q", "k", "v"} {
			l.qkv[j] = parameter(name(s), width*width, inside)
		}
		for _, s := range []*[]float32{&l.x1, &l.normed1, &l.o, &l.x2, &l.normed2, &l.dO} {
			*s = make([]float32, rows*width)
		}
		l.projections, l.dProjections = make([]float32, rows*3*width), make([]float32, rows*3*width)
		l.h, l.activated, l.dH = make([]float32, rows*hidden), make([]float32, rows*hidden), make([]float32, rows*hidden)
		var err error
		if l.attention, err = a.newLayer(); err != nil {
			return nil, err
		}
		m.layers[i] = l
	}
	m.gain, m.out = parameter("gain", width, 0), parameter("out", width*alphabet, inside)
	for _, s := range []*[]float32{&m.x, &m.normed, &m.dX, &m.dNormed, &m.temp} {
		*s = make([]float32, rows*width)
	}
	m.logits, m.dLogits = make([]float32, rows*alphabet), make([]float32, rows*alphabet)
	return m, nil
}

// size is the number of parameters.
func (m *model) size() (n int) {
	for _, p := range m.parameters {
		n += len(p.value)
	}
	return n
}

// forward returns the loss and the fraction of mirrored letters that are predicted.
func (m *model) forward(input, target []int) (loss, mirrored float64, err error) {
	parallel(len(input), func(n int) {
		row := m.x[n*width:][:width]
		copy(row, m.token.value[input[n]*width:])
		addScaled(row, 1, m.position.value[n%window*width:])
	})
	for _, l := range m.layers {
		copy(l.x1, m.x)
		norm(l.normed1, l.x1, l.gain1.value)
		for j, p := range l.qkv {
			linear(third(l.projections, j), l.normed1, p.value, width)
		}
		if err := l.attention.forward(l.o, l.projections); err != nil {
			return 0, 0, err
		}
		linear(m.temp, l.o, l.proj.value, width)
		addScaled(m.x, 1, m.temp)

		copy(l.x2, m.x)
		norm(l.normed2, l.x2, l.gain2.value)
		linear(l.h, l.normed2, l.up.value, width)
		silu(l.activated, l.h)
		linear(m.temp, l.activated, l.down.value, hidden)
		addScaled(m.x, 1, m.temp)
	}
	norm(m.normed, m.x, m.gain.value)
	linear(m.logits, m.normed, m.out.value, width)
	loss, right := crossEntropy(m.dLogits, m.logits, target)
	count, of := 0, 0
	for n := range right {
		if mirrors(n % window) {
			of++
			if right[n] {
				count++
			}
		}
	}
	return loss, float64(count) / float64(of), nil
}

// backward adds the gradients of the last forward's loss to the gradients of the
// parameters.
func (m *model) backward(input []int) error {
	linearBackward(m.dNormed, m.out.grad, m.dLogits, m.normed, m.out.value, width)
	clear(m.dX)
	normBackward(m.dX, m.gain.grad, m.dNormed, m.x, m.gain.value)
	for i := layers - 1; i >= 0; i-- {
		l := m.layers[i]
		linearBackward(l.dH, l.down.grad, m.dX, l.activated, l.down.value, hidden)
		siluBackward(l.dH, l.h)
		linearBackward(m.dNormed, l.up.grad, l.dH, l.normed2, l.up.value, width)
		normBackward(m.dX, l.gain2.grad, m.dNormed, l.x2, l.gain2.value)

		linearBackward(l.dO, l.proj.grad, m.dX, l.o, l.proj.value, width)
		if err := l.attention.backward(l.dProjections, l.dO); err != nil {
			return err
		}
		clear(m.dNormed)
		for j, p := range l.qkv {
			linearBackward(m.temp, p.grad, third(l.dProjections, j), l.normed1, p.value, width)
			addScaled(m.dNormed, 1, m.temp)
		}
		normBackward(m.dX, l.gain1.grad, m.dNormed, l.x1, l.gain1.value)
	}
	for n, c := range input {
		addScaled(m.token.grad[c*width:][:width], 1, m.dX[n*width:])
		addScaled(m.position.grad[n%window*width:][:width], 1, m.dX[n*width:])
	}
	return nil
}

// third returns one of three arrays that lie one after the other.
func third(x []float32, j int) []float32 {
	n := len(x) / 3
	return x[j*n:][:n]
}
