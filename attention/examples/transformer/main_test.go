package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/testdevices"
)

// On the CPU and on the device logits are those of a naive computation in float64, and so near that tokens are the same.
func TestTransformerIsRight(t *testing.T) {
	m := newModel()
	want := make([][][]float64, len(users))
	for _, dev := range testdevices.All(t) {
		got, err := generate(dev, m)
		require.NoError(t, err)
		for i, u := range got {
			require.Len(t, u.logits, generated)
			require.Len(t, u.text, len(users[i].text)+generated)
			if want[i] == nil {
				want[i] = naive(m, system+u.text)
			}
			require.Greater(t, u.margin, float32(0.012))
			for n, logits := range u.logits {
				require.InDeltaSlice(t, want[i][len(system+users[i].text)-1+n], logits, 0.005, "%v, user %d, token %d", dev, i, n)
			}
		}
	}
}

// naive returns the logits behind each token of a text, computed without a cache in float64.
func naive(m *model, text string) (logits [][]float64) {
	product := func(x []float64, w []float32) []float64 {
		y := make([]float64, len(w)/len(x))
		for i := range y {
			for j, a := range x {
				y[i] += a * float64(w[i*len(x)+j])
			}
		}
		return y
	}
	norm := func(x []float64, gain []float32) []float64 {
		sum, y := 0.0, make([]float64, len(x))
		for _, a := range x {
			sum += a * a
		}
		for i, a := range x {
			y[i] = a / math.Sqrt(sum/float64(len(x))+1e-5) * float64(gain[i])
		}
		return y
	}
	rotate := func(x []float64, position int) {
		for ; len(x) > 0; x = x[dim:] {
			for i := range dim / 2 {
				sin, cos := math.Sincos(float64(position) * math.Pow(10000, -2*float64(i)/dim))
				x[i], x[i+dim/2] = x[i]*cos-x[i+dim/2]*sin, x[i+dim/2]*cos+x[i]*sin
			}
		}
	}
	var k, v [layers][][]float64
	for position, token := range []byte(text) {
		x := product([]float64{1}, m.embedding[int(token)*width:][:width])
		for n, l := range m.layers {
			h := norm(x, l.attentionGain)
			q, key := product(h, l.q), product(h, l.k)
			rotate(q, position)
			rotate(key, position)
			k[n], v[n] = append(k[n], key), append(v[n], product(h, l.v))
			o := make([]float64, heads*dim)
			for head := range heads {
				kv, sum := head/(heads/headsKV)*dim, 0.0
				for t := range k[n] {
					score := 0.0
					for i := range dim {
						score += q[head*dim+i] * k[n][t][kv+i]
					}
					p := math.Exp(score / math.Sqrt(dim))
					sum += p
					for i := range dim {
						o[head*dim+i] += p * v[n][t][kv+i]
					}
				}
				for i := range dim {
					o[head*dim+i] /= sum
				}
			}
			for i, a := range product(o, l.o) {
				x[i] += a
			}
			h = norm(x, l.mlpGain)
			gate, up := product(h, l.gate), product(h, l.up)
			for i, a := range gate {
				gate[i] = a / (1 + math.Exp(-a)) * up[i]
			}
			for i, a := range product(gate, l.down) {
				x[i] += a
			}
		}
		logits = append(logits, product(norm(x, m.gain), m.head))
	}
	return logits
}
