// Command quickstart computes attention on the best GPU, or on the CPU.
package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"

	"vkattn/attention"
	"vkattn/vk"
)

var options = vk.Options{GPUOnly: true} // tier cpu is faster than a driver of the CPU

func main() {
	dev, err := vk.Open(options)
	if err != nil {
		log.Print(err, ": computing on the CPU") // dev is nil
	}
	defer dev.Close()
	op, err := attention.New(dev, attention.Config{DType: attention.F16, HeadDim: 64, Causal: attention.BottomRight})
	check(err)
	defer op.Close()

	q := random(1*8*100*64, 1)                           // [B, Hq, Sq, HeadDim]
	k, v := random(1*2*300*64, 2), random(1*2*300*64, 3) // [B, Hkv, Sk, HeadDim]
	o := make([]byte, len(q))
	args := attention.Args{Shape: attention.Shape{B: 1, Hq: 8, Hkv: 2, Sq: 100, Sk: 300}, Q: attention.Tensor{Host: q},
		K: attention.Tensor{Host: k}, V: attention.Tensor{Host: v}, O: attention.Tensor{Host: o}}
	if dev == nil {
		check(op.Forward(nil, args))
	} else {
		stream, err := dev.NewStream("attention")
		check(err)
		for _, t := range []*attention.Tensor{&args.Q, &args.K, &args.V, &args.O} {
			buffer, err := dev.NewBuffer(uint64(len(t.Host)), vk.BufferOptions{})
			check(err)
			check(stream.Upload(buffer, 0, t.Host))
			*t = attention.Tensor{Buffer: buffer}
		}
		check(op.Forward(stream, args))
		check(stream.Download(context.Background(), o, args.O.Buffer, 0)) // submits and waits
	}
	plan, err := op.PlanFor(args)
	check(err)
	first := make([]float32, 4)
	attention.F16.Decode(first, o)
	fmt.Println(plan, first)
}

func random(n int, seed uint64) []byte { // f16, little-endian
	r, data := rand.New(rand.NewPCG(seed, 0)), make([]byte, 2*n)
	for i := range n {
		attention.F16.Encode(data[2*i:], []float32{float32(r.NormFloat64())})
	}
	return data
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
