//go:build cgo

// Command owndevice owns a Vulkan device, made with another binding, and records attention
// into its own command buffer between its own commands. The library wraps these objects
// and creates no device, memory or queue.
//
//	go run ./attention/examples/owndevice
//
// It compares the result with the float64 reference. It exits with 0 if the result is
// right, 1 if it is wrong or something fails, and 3 if there is no Vulkan device.
package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"runtime/debug"

	"vkattn/attention"
	_ "vkattn/cudapath" // tier cubin
	"vkattn/vk"
	"vkattn/vk/goki"
)

func main() {
	err := run(os.Stdout)
	switch {
	case err == nil:
	case errors.Is(err, vk.ErrNoDevice), errors.Is(err, vk.ErrUnsupported):
		fmt.Fprintln(os.Stderr, "owndevice: skipped:", err)
		os.Exit(3)
	default:
		fmt.Fprintln(os.Stderr, "owndevice:", err)
		os.Exit(1)
	}
}

// The problem: grouped heads, and a mask that ends at the last key.
var (
	shape  = attention.Shape{B: 2, Hq: 8, Hkv: 2, Sq: 100, Sk: 300}
	config = attention.Config{DType: attention.F16, HeadDim: 64, Causal: attention.BottomRight}
)

func run(w io.Writer) (err error) {
	// goki/vulkan frees the C memory of array arguments in finalizers, which may run while
	// Vulkan still reads it. This program is short and turns garbage collection off.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))

	// A program that draws or simulates has these anyway.
	own, err := openOwn()
	if err != nil {
		return err
	}
	defer own.close()

	// Wrap them for the library. Enabled lists what the device was created with and decides
	// which tiers can run: with timeline semaphores alone that is `scalar`, with cubins and
	// addresses of buffers `cubin` too. A program that enables cooperative matrices, the memory
	// model, 16-bit floats and subgroup size control, and lists them here, gets the others.
	dev, err := vk.Wrap(vk.External{
		Instance: goki.FromInstance(own.instance), PhysicalDevice: goki.FromPhysicalDevice(own.physical),
		Device: goki.FromDevice(own.device), Queue: goki.FromQueue(own.queue), QueueFamily: own.family,
		APIVersion: apiVersion, Enabled: vk.Caps{TimelineSemaphore: true, BinaryImport: own.cubins, BufferDeviceAddress: own.cubins},
	})
	if err != nil {
		return err
	}
	defer dev.Close() // before own.close: it destroys what it made, and nothing of ours
	// Tier cubin launches CUDA kernels inside the command buffer. Where it cannot, the error
	// says why, and the best tier of the others computes the same.
	cubin := config
	cubin.Tier = attention.TierCubin
	op, err := attention.New(attention.On(dev), cubin)
	if errors.Is(err, vk.ErrUnsupported) {
		fmt.Fprintln(w, "not by tier cubin:", err)
		op, err = attention.New(attention.On(dev), config)
	}
	if err != nil {
		return err
	}
	defer op.Close()
	plan, err := op.Plan(shape)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s: %v\n", dev.Info().Name, plan)

	// Tensors in the program's own buffers, here mapped ones.
	dims := [5]int{config.HeadDim, config.HeadDim, config.ValueDim(), config.ValueDim(), 1}
	args, host := attention.Args{Shape: shape}, attention.Args{Shape: shape}
	for i, t := range []struct{ device, host *attention.Tensor }{
		{&args.Q, &host.Q}, {&args.K, &host.K}, {&args.V, &host.V}, {&args.O, &host.O}, {&args.LSE, &host.LSE},
	} {
		rows, dtype := shape.B*shape.Hq*shape.Sq, config.DType
		switch i {
		case 1, 2:
			rows = shape.B * shape.KVHeads() * shape.Sk
		case 4:
			dtype = attention.F32
		}
		b, err := own.newBuffer(rows * dims[i] * dtype.Size())
		if err != nil {
			return err
		}
		if i < 3 {
			fillRandom(b.bytes, dtype, uint64(i))
		}
		wrapped, err := dev.WrapBuffer(vk.ExternalBuffer{Handle: b.handleNumber(), Size: uint64(len(b.bytes)), Address: b.address})
		if err != nil {
			return err
		}
		defer wrapped.Close()
		t.device.Buffer, t.host.Host = wrapped, b.bytes
	}

	// Into the program's own command buffer, and to its own queue.
	err = own.submit(func() error {
		commands, err := dev.WrapCommands(goki.FromCommandBuffer(own.commands))
		if err != nil {
			return err
		}
		own.whenDone(commands.Release)
		// Host writes before a submission are visible to it. Commands of the program
		// that write Q, K or V would need a barrier here, and those that read O one
		// behind:
		if err := op.Record(commands, args); err != nil {
			return err
		}
		return commands.Barrier()
	})
	if err != nil {
		return err
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
