//go:build cgo

// Command owndevice owns a Vulkan device, made with another binding, and records attention and its gradients
// into its own command buffer. attention.Requirements says what to create the device with. The tensors lie in
// one buffer of the program, whose queue it shares with the library. The library creates no device, no memory
// for tensors and no queue.
//
//	go run ./attention/examples/owndevice [-tier coopmat]
//
// It compares the results with the float64 reference. It exits with 0 if they are right, 1 if they are wrong
// or something fails, and 3 if there is no Vulkan device, or none that the tier runs on.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"runtime/debug"

	"vkattn/attention"
	"vkattn/vk"
	"vkattn/vk/goki"
)

func main() {
	var tier attention.Tier
	flag.Var(&tier, "tier", "scalar, coopmat or coopmat2; auto is the best that the device supports")
	flag.Parse()
	err := run(os.Stdout, tier)
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

func run(w io.Writer, tier attention.Tier) (err error) {
	// goki/vulkan frees the C memory of array arguments in finalizers, which may run while
	// Vulkan still reads it. This program is short and turns garbage collection off.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))

	// What to create the device with. The program takes the first device that Vulkan lists.
	devices, err := vk.Devices()
	if err != nil {
		return err
	}
	config := config
	need, err := choose(w, &devices[0], tier, &config)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s needs:\n%v\n", config.Tier, need)

	// A program that draws or simulates creates its device with more than that.
	own, err := openOwn(&need, min(devices[0].APIVersion, apiVersion))
	if err != nil {
		return err
	}
	defer own.close()
	dev, err := vk.Wrap(vk.External{
		Instance: goki.FromInstance(own.instance), PhysicalDevice: goki.FromPhysicalDevice(own.physical),
		Device: goki.FromDevice(own.device), Queue: goki.FromQueue(own.queue), QueueFamily: own.family,
		APIVersion: apiVersion, Enabled: need.Enabled,
		// The library uses the queue for its own streams, and only with the lock.
		LockQueue: own.queueLock.Lock, UnlockQueue: own.queueLock.Unlock,
	})
	if err != nil {
		return err
	}
	defer dev.Close() // before own.close: it destroys what it made, and nothing of ours
	op, err := attention.New(attention.On(dev), config)
	if err != nil {
		return err
	}
	defer op.Close()
	plan, err := op.Plan(shape)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s: %v\n", dev.Info().Name, plan)

	// Tensors in one mapped buffer of the program.
	args, size := layOut(dev.Caps().Limits.MinStorageBufferOffsetAlignment)
	memory, err := own.newBuffer(size)
	if err != nil {
		return err
	}
	buffer, err := dev.WrapBuffer(vk.ExternalBuffer{Handle: memory.number(), Size: uint64(size)})
	if err != nil {
		return err
	}
	defer buffer.Close()
	host := args
	for i, t := range tensorsOf(&args) {
		t.Buffer, tensorsOf(&host)[i].Host = buffer, memory.bytes
	}
	fillRandom(memory.bytes)

	// Forward and backward in the program's own command buffer, submitted to its own queue. Submission makes
	// writes of the host visible. Commands of the program that write Q, K, V or dO would need a barrier here.
	err = own.submit(func() error {
		commands, err := dev.WrapCommands(goki.FromCommandBuffer(own.commands))
		if err != nil {
			return err
		}
		own.whenDone(commands.Release)
		if err := op.Record(commands, args.Args); err != nil {
			return err
		}
		if err := commands.Barrier(); err != nil { // Backward reads O and LSE
			return err
		}
		return op.RecordBackward(commands, args)
	})
	if err != nil {
		return err
	}
	return compare(w, config, host)
}

// choose returns the requirements of a tier, or for TierAuto of the best that the device supports, which it
// stores in c.
func choose(w io.Writer, device *vk.DeviceInfo, tier attention.Tier, c *attention.Config) (need vk.Requirements, err error) {
	tiers := []attention.Tier{attention.TierCoopMat2, attention.TierCoopMat, attention.TierScalar}
	if tier != attention.TierAuto {
		tiers = []attention.Tier{tier}
	}
	for _, c.Tier = range tiers {
		if need, err = attention.Requirements(c.Tier, *c); err != nil {
			return need, err
		}
		missing := need.Missing(device)
		if missing == "" {
			return need, nil
		}
		fmt.Fprintf(w, "not by tier %v on %s: %s\n", c.Tier, device.Name, missing)
	}
	return need, fmt.Errorf("%w: no tier runs on %s", vk.ErrUnsupported, device.Name)
}

// tensorsOf lists the tensors of a call: inputs first.
func tensorsOf(a *attention.BackwardArgs) []*attention.Tensor {
	return []*attention.Tensor{&a.Q, &a.K, &a.V, &a.DO, &a.O, &a.DQ, &a.DK, &a.DV, &a.LSE}
}

// layOut gives each tensor its place in a buffer, and returns the size of the buffer in bytes.
func layOut(alignment uint64) (args attention.BackwardArgs, size int) {
	args.Shape = shape
	rows, keys := shape.B*shape.Hq*shape.Sq, shape.B*shape.KVHeads()*shape.Sk
	elements := []int{rows * config.HeadDim, keys * config.HeadDim, keys * config.ValueDim(), rows * config.ValueDim(),
		rows * config.ValueDim(), rows * config.HeadDim, keys * config.HeadDim, keys * config.ValueDim(), rows}
	for i, t := range tensorsOf(&args) {
		dtype := config.DType
		if t == &args.LSE {
			dtype = attention.F32
		}
		align := int(max(alignment, 16))
		size = (size + align - 1) / align * align
		t.Offset = int64(size / dtype.Size())
		size += elements[i] * dtype.Size()
	}
	return args, size
}

// fillRandom stores normal numbers.
func fillRandom(data []byte) {
	r := rand.New(rand.NewPCG(1, 2))
	numbers := make([]float32, len(data)/config.DType.Size())
	for i := range numbers {
		numbers[i] = float32(r.NormFloat64())
	}
	config.DType.Encode(data, numbers)
}

// compare compares O and the gradients with the float64 reference.
func compare(w io.Writer, config attention.Config, host attention.BackwardArgs) error {
	o, _, err := attention.Reference(config, host.Args)
	if err != nil {
		return err
	}
	g, err := attention.ReferenceBackward(config, host)
	if err != nil {
		return err
	}
	for _, x := range []struct {
		name string
		got  attention.Tensor
		want []float64
	}{{"O", host.O, o}, {"dQ", host.DQ, g.DQ}, {"dK", host.DK, g.DK}, {"dV", host.DV, g.DV}} {
		got := make([]float32, len(x.want))
		config.DType.Decode(got, x.got.Host[int(x.got.Offset)*config.DType.Size():])
		worst := 0.0
		for i, want := range x.want {
			worst = max(worst, math.Abs(float64(got[i])-want))
		}
		fmt.Fprintf(w, "%s differs from the float64 reference by at most %.1e\n", x.name, worst)
		if !(worst < 1e-2) { // NaN is no match
			return errors.New("the result is wrong")
		}
	}
	return nil
}
