// Command decode runs the attention of a decode loop: three prompts in one packed prefill, then 32 steps of one row for
// each sequence, over a paged cache with rotary embedding. The code is the same for a GPU and for the CPU.
package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	_ "vkattn/cudapath" // tiers cubin and cuda, where they are faster
)

const heads, headsKV, dim, steps = 8, 2, 64, 32

var prompts = []int{7, 33, 18} // rows of each

var options attention.Options

func main() {
	dev, err := attention.Open(options) // the best GPU, or the CPU
	check(err)
	defer dev.Close()
	outputs, err := decode(dev)
	check(err)
	last := outputs[len(outputs)-1]
	fmt.Printf("%v: %d steps, last row of each head from %.4f to %.4f\n", dev, len(outputs)-1, last[0], last[len(last)-1])
}

// decode returns O of the prefill and of each step, [heads, rows, dim].
func decode(dev *attention.Device) (outputs [][]float32, err error) {
	cache, err := kvcache.New(dev, kvcache.Config{HeadDim: dim, HeadsKV: headsKV, PageSize: 16, Pages: 16,
		Rotary: kvcache.Rotary{Dim: dim, Style: kvcache.RotaryHalfSplit}})
	if err != nil {
		return nil, err
	}
	defer cache.Close()
	op, err := attention.New(dev, attention.Config{HeadDim: dim, Causal: attention.BottomRight})
	if err != nil {
		return nil, err
	}
	defer op.Close()
	var rows []kvcache.NewRows
	for _, n := range prompts {
		rows = append(rows, kvcache.NewRows{Sequence: cache.Sequence(), Rows: n})
	}
	for i := range 1 + steps {
		step, err := cache.Begin(rows...)
		if err != nil {
			return nil, err
		}
		o, err := layer(dev, op, step, uint64(i))
		if err != nil {
			return nil, err
		}
		outputs = append(outputs, o)
		for j := range rows {
			rows[j].Rows = 1 // the token that a model would sample
		}
	}
	return outputs, nil
}

// layer is the attention of one layer; a model computes Q, K and V of the rows.
func layer(dev *attention.Device, op *attention.Op, step *kvcache.Step, seed uint64) ([]float32, error) {
	var list [4]attention.Tensor // Q, K, V, O
	for i, h := range []int{heads, headsKV, headsKV, heads} {
		t, err := dev.Tensor(attention.F16, 1, h, step.Rows(), dim)
		if err != nil {
			return nil, err
		}
		defer t.Close()
		if err := t.SetFloats(random(h*step.Rows()*dim, 4*seed+uint64(i))); err != nil {
			return nil, err
		}
		list[i] = t
	}
	q, k, v, o := list[0], list[1], list[2], list[3]
	if err := step.Append(0, kvcache.LayerRows{K: k, V: v, Q: q, QOut: q}); err != nil {
		return nil, err
	}
	args, err := step.Args(0, q, o, 0)
	if err != nil {
		return nil, err
	}
	if err := op.Forward(nil, args); err != nil {
		return nil, err
	}
	return o.Floats(context.Background()) // waits
}

func random(n int, seed uint64) []float32 {
	r, x := rand.New(rand.NewPCG(seed, 0)), make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
