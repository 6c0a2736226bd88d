package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/testdevices"
)

// The numbers are those of a naive computation in float64.
func TestDecodeIsRight(t *testing.T) {
	want := naive()
	for _, dev := range testdevices.All(t) {
		got, err := decode(dev)
		require.NoError(t, err)
		require.Len(t, got, 1+steps)
		for i := range want {
			require.InDeltaSlice(t, want[i], got[i], 5e-3, "%v, step %d", dev, i)
		}
	}
}

// naive is decode in float64, from rows as float16 holds them.
func naive() (outputs [][]float64) {
	k, v := make([][][][]float64, len(prompts)), make([][][][]float64, len(prompts)) // of a sequence, head and position
	for b := range prompts {
		k[b], v[b] = make([][][]float64, headsKV), make([][][]float64, headsKV)
	}
	for i := range 1 + steps {
		rows := make([]int, len(prompts))
		total := 0
		for b := range rows {
			rows[b] = 1
			if i == 0 {
				rows[b] = prompts[b]
			}
			total += rows[b]
		}
		// row returns a row of tensor n of the step, rotated at a position if that is not negative.
		row := func(n, heads, h, at, position int) []float64 {
			b, x := make([]byte, 2*heads*total*dim), make([]float32, heads*total*dim)
			attention.F16.Encode(b, random(len(x), uint64(4*i+n)))
			attention.F16.Decode(x, b)
			out := make([]float64, dim)
			for j, y := range x[(h*total+at)*dim:][:dim] {
				out[j] = float64(y)
			}
			for j := range dim / 2 {
				if position < 0 {
					break
				}
				sin, cos := math.Sincos(float64(position) * math.Pow(10000, -2*float64(j)/dim))
				out[j], out[j+dim/2] = out[j]*cos-out[j+dim/2]*sin, out[j+dim/2]*cos+out[j]*sin
			}
			return out
		}
		o := make([]float64, heads*total*dim)
		at := 0
		for b, n := range rows {
			for r := range n {
				position := len(k[b][0])
				for h := range headsKV {
					k[b][h] = append(k[b][h], row(1, headsKV, h, at+r, position))
					v[b][h] = append(v[b][h], row(2, headsKV, h, at+r, -1))
				}
				for h := range heads {
					q, kv := row(0, heads, h, at+r, position), h/(heads/headsKV)
					sum := 0.0
					out := o[(h*total+at+r)*dim:][:dim]
					for t := range k[b][kv] {
						score := 0.0
						for j := range q {
							score += q[j] * k[b][kv][t][j]
						}
						p := math.Exp(score / math.Sqrt(dim))
						sum += p
						for j := range out {
							out[j] += p * v[b][kv][t][j]
						}
					}
					for j := range out {
						out[j] /= sum
					}
				}
			}
			at += n
		}
		outputs = append(outputs, o)
	}
	return outputs
}
