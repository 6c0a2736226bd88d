// Command cudashare keeps Q, K and V in CUDA memory, runs attention of a Vulkan tier on
// that memory, and reads O in CUDA. No tensor is copied between the two, and the host
// waits once, at the end. A timeline semaphore orders CUDA and Vulkan.
//
//	go run ./attention/examples/cudashare
//
// It compares the result with the float64 reference. It exits with 0 if the result is
// right, 1 if it is wrong or something fails, and 3 if the machine has no NVIDIA GPU that
// shares memory between CUDA and Vulkan.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"time"

	"vkattn/attention"
	"vkattn/cudapath"
	"vkattn/vk"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := run(ctx, os.Stdout)
	switch {
	case err == nil:
	case errors.Is(err, vk.ErrNoDevice), errors.Is(err, vk.ErrUnsupported):
		fmt.Fprintln(os.Stderr, "cudashare: skipped:", err)
		os.Exit(3)
	default:
		fmt.Fprintln(os.Stderr, "cudashare:", err)
		os.Exit(1)
	}
}

// The problem: grouped heads, a causal mask that ends at the last key, and lengths that
// are multiples of nothing.
var (
	shape  = attention.Shape{B: 2, Hq: 8, Hkv: 2, Sq: 1000, Sk: 1500}
	config = attention.Config{DType: attention.F16, HeadDim: 128, Causal: attention.BottomRight}
)

// Values of the timeline.
const (
	filled = 1 + iota // by CUDA
	computed
)

func run(ctx context.Context, w io.Writer) error {
	if err := cudapath.Available(); err != nil {
		return err
	}
	dev, err := vk.Open(vk.Options{})
	if err != nil {
		return err
	}
	defer dev.Close()
	cuda, err := cudapath.Open(dev) // the CUDA device that is the Vulkan device
	if err != nil {
		return err
	}
	op, err := attention.New(attention.On(dev), config) // the best Vulkan tier
	if err != nil {
		return err
	}
	defer op.Close()
	plan, err := op.Plan(shape)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s in CUDA and Vulkan: %v\n", cuda.Info().Name, plan)

	// CUDA's memory, and the same memory as Vulkan buffers.
	keys := shape.B * shape.KVHeads() * shape.Sk
	rows := shape.B * shape.Hq * shape.Sq
	args, host := attention.Args{Shape: shape}, attention.Args{Shape: shape}
	tensors := []struct {
		elements     int
		device, host *attention.Tensor
		memory       *cudapath.Memory
	}{
		{rows * config.HeadDim, &args.Q, &host.Q, nil}, {keys * config.HeadDim, &args.K, &host.K, nil},
		{keys * config.ValueDim(), &args.V, &host.V, nil}, {rows * config.ValueDim(), &args.O, &host.O, nil},
	}
	for i := range tensors {
		t := &tensors[i]
		size := t.elements * config.DType.Size()
		if t.memory, err = cuda.Alloc(uint64(size)); err != nil {
			return err
		}
		defer t.memory.Close()
		b, err := t.memory.Buffer(dev)
		if err != nil {
			return err
		}
		defer b.Close()
		t.device.Buffer, t.host.Host = b, make([]byte, size)
	}
	timeline, err := dev.NewTimeline(true)
	if err != nil {
		return err
	}
	defer timeline.Close()
	semaphore, err := cuda.ImportTimeline(timeline)
	if err != nil {
		return err
	}
	defer semaphore.Close()
	producer, err := cuda.NewStream()
	if err != nil {
		return err
	}
	defer producer.Close()
	stream, err := dev.NewStream("attention")
	if err != nil {
		return err
	}
	defer stream.Close()

	// CUDA fills Q, K and V; a program would launch kernels here. O is set to NaN, so that
	// rows that are not written show.
	for i, t := range tensors {
		if i < 3 {
			fillRandom(t.host.Host, config.DType, uint64(i))
			err = producer.CopyFromHost(t.memory.Address(), t.host.Host)
		} else {
			err = producer.Fill(t.memory.Address(), 0x7fff7fff, uint64(len(t.host.Host)))
		}
		if err != nil {
			return err
		}
	}
	o := tensors[3]
	for _, step := range []func() error{
		func() error { return producer.SignalTo(semaphore, filled) },
		// Vulkan waits for the semaphore on the device, computes, and signals it.
		func() error { return stream.WaitFor(timeline, filled) },
		func() error { return op.Forward(attention.OnStream(stream), args) },
		func() error { return stream.SignalTo(timeline, computed) },
		func() error { _, err := stream.Submit(); return err },
		// CUDA can continue with O on the device. This program looks at it: the copy to the host
		// is its only wait.
		func() error { return producer.WaitFor(semaphore, computed) },
		func() error { return producer.CopyToHost(o.host.Host, o.memory.Address()) },
		func() error { return stream.Wait(ctx) },
	} {
		if err := step(); err != nil {
			return err
		}
	}

	return compare(w, host)
}

// fillRandom stores normal numbers.
func fillRandom(data []byte, dtype attention.DType, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	numbers := make([]float32, len(data)/dtype.Size())
	for i := range numbers {
		numbers[i] = float32(r.NormFloat64())
	}
	dtype.Encode(data, numbers)
}

// compare compares O with the float64 reference.
func compare(w io.Writer, host attention.Args) error {
	want, _, err := attention.Reference(config, host)
	if err != nil {
		return err
	}
	got := make([]float32, len(want))
	config.DType.Decode(got, host.O.Host)
	worst := 0.0
	for i, x := range want {
		worst = max(worst, math.Abs(float64(got[i])-x))
	}
	fmt.Fprintf(w, "O differs from the float64 reference by at most %.1e\n", worst)
	if !(worst < 4e-3) { // NaN is no match
		return errors.New("the result is wrong")
	}
	return nil
}
