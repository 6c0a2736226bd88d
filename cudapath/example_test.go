package cudapath_test

import (
	"context"
	"log"

	"vkattn/attention"
	"vkattn/cudapath"
	"vkattn/vk"
)

// Tier cuda computes on buffers that the device shares; everything else is as on
// the Vulkan tiers.
func Example() {
	dev, err := vk.Open(vk.Options{})
	if err != nil {
		log.Print(err)
		return
	}
	defer dev.Close()
	op, err := attention.New(attention.On(dev), attention.Config{HeadDim: 128, Causal: attention.BottomRight, Tier: attention.TierCUDA})
	if err != nil {
		log.Print(err)
		return
	}
	defer op.Close()
	stream, err := dev.NewStream("attention")
	if err != nil {
		log.Print(err)
		return
	}
	defer stream.Close()
	shape := attention.Shape{B: 1, Hq: 8, Hkv: 2, Sq: 100, Sk: 300}
	tensor := func(heads, seq int) attention.Tensor {
		b, err := dev.NewBuffer(uint64(shape.B*heads*seq*128*2), vk.BufferOptions{Exportable: dev.Caps().ExternalMemoryFd})
		if err != nil {
			log.Fatal(err)
		}
		return attention.Tensor{Buffer: b}
	}
	args := attention.Args{Shape: shape, Q: tensor(shape.Hq, shape.Sq), K: tensor(shape.Hkv, shape.Sk),
		V: tensor(shape.Hkv, shape.Sk), O: tensor(shape.Hq, shape.Sq)}
	plan, err := op.PlanFor(args)
	if err != nil {
		log.Print(err)
		return
	}
	log.Print(plan) // tier cuda and its kernel, or why another tier runs
	for _, err := range []error{op.Forward(attention.OnStream(stream), args), stream.Wait(context.Background())} {
		if err != nil {
			log.Print(err)
			return
		}
	}
}

// A program with tensors in CUDA memory puts its own CUDA work and a Vulkan tier
// into one stream, and waits once.
func ExampleContext_Turn() {
	dev, err := vk.Open(vk.Options{})
	if err != nil {
		log.Print(err)
		return
	}
	defer dev.Close()
	cuda, err := cudapath.Open(dev)
	if err != nil {
		log.Print(err) // no CUDA here, or another device
		return
	}
	stream, err := dev.NewStream("attention")
	if err != nil {
		log.Print(err)
		return
	}
	defer stream.Close()
	op, err := attention.New(attention.On(dev), attention.Config{HeadDim: 64})
	if err != nil {
		log.Print(err)
		return
	}
	defer op.Close()
	args := attention.Args{Shape: attention.Shape{B: 1, Hq: 1, Sq: 16, Sk: 16}}
	const bytes = 16 * 64 * 2
	for _, t := range []*attention.Tensor{&args.Q, &args.K, &args.V, &args.O} {
		m, err := cuda.Alloc(bytes)
		if err != nil {
			log.Print(err)
			return
		}
		defer m.Close()
		if t.Buffer, err = m.Buffer(dev); err != nil {
			log.Print(err)
			return
		}
		defer t.Buffer.Close()
	}
	q, err := cuda.Address(args.Q.Buffer) // also the address of its Memory
	if err != nil {
		log.Print(err)
		return
	}
	cs, err := cuda.Turn(stream, args.Q.Buffer) // a CUDA stream; its Handle fits other libraries
	if err != nil {
		log.Print(err)
		return
	}
	o := make([]byte, bytes)
	for _, err := range []error{
		cs.CopyFromHost(q, make([]byte, bytes)),                    // or a kernel that makes Q
		op.Forward(attention.OnStream(stream), args),               // Vulkan waits for it on the device
		stream.Download(context.Background(), o, args.O.Buffer, 0), // or another turn of CUDA's
	} {
		if err != nil {
			log.Print(err)
			return
		}
	}
}
