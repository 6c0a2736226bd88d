// Command quickstart computes attention on the best GPU, or on the CPU.
package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"

	"vkattn/attention"
	_ "vkattn/cudapath" // tiers cubin and cuda, where they are faster
)

var options attention.Options

func main() {
	dev, err := attention.Open(options) // the best GPU, or the CPU
	check(err)
	defer dev.Close()
	op, err := attention.New(dev, attention.Config{DType: attention.F16, HeadDim: 64, Causal: attention.BottomRight})
	check(err)
	defer op.Close()
	args := attention.Args{
		Q: random(dev, 1, 8, 100, 64), // batch, heads, rows, head dim
		K: random(dev, 1, 2, 300, 64), // two heads of K and V for eight of Q
		V: random(dev, 1, 2, 300, 64),
		O: random(dev, 1, 8, 100, 64),
	}
	check(op.Forward(nil, args))
	o, err := args.O.Floats(context.Background()) // waits
	check(err)
	plan, err := op.PlanFor(args)
	check(err)
	fmt.Println(dev, plan, o[:4])
}

func random(dev *attention.Device, shape ...int) attention.Tensor {
	t, err := dev.Tensor(attention.F16, shape...)
	check(err)
	r, x := rand.New(rand.NewPCG(1, uint64(shape[2]))), make([]float32, shape[0]*shape[1]*shape[2]*shape[3])
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	check(t.SetFloats(x))
	return t
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
