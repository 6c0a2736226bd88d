// Command timing times a call by the device's clock: a timestamp before it, one behind it and a
// barrier between two calls. It is the least loop that does so, with which the command's own
// overhead is compared (scripts/bench-proof.sh).
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"vkattn/attention"
	"vkattn/vk"
)

func main() {
	var shape attention.Shape
	flags := flag.NewFlagSet("timing", flag.ExitOnError)
	flags.IntVar(&shape.B, "batch-size", 1, "sequences")
	flags.IntVar(&shape.Hq, "nheads", 8, "heads of Q, K and V")
	flags.IntVar(&shape.Sq, "seqlen", 256, "rows of Q")
	flags.IntVar(&shape.Sk, "seqlen-k", 256, "rows of K and V")
	headDim := flags.Int("headdim", 64, "elements of a row")
	runs := flags.Int("r", 30, "timed calls")
	warmup := flags.Duration("warmup", 500*time.Millisecond, "time of the calls before them")
	check(flags.Parse(os.Args[1:]))

	dev, err := vk.Open(vk.Options{})
	check(err)
	defer dev.Close()
	op, err := attention.New(attention.On(dev), attention.Config{DType: attention.F16, HeadDim: *headDim})
	check(err)
	defer op.Close()
	stream, err := dev.NewStream("timing")
	check(err)
	args := attention.Args{Shape: shape}
	for i, t := range []*attention.Tensor{&args.Q, &args.K, &args.V, &args.O} {
		rows := shape.Sk
		if i == 0 || i == 3 {
			rows = shape.Sq
		}
		host := random(shape.B*shape.Hq*rows**headDim, uint64(i))
		buffer, err := dev.NewBuffer(uint64(len(host)), vk.BufferOptions{})
		check(err)
		check(stream.Upload(buffer, 0, host))
		*t = attention.Tensor{Buffer: buffer}
	}

	for start := time.Now(); time.Since(start) < *warmup; {
		timed(stream, op, args, 32)
	}
	times := timed(stream, op, args, *runs)
	plan, err := op.PlanFor(args)
	check(err)
	slices.Sort(times)
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	fmt.Printf("median %.3f us, least %.3f us, %v\n", us(times[len(times)/2]+times[(len(times)-1)/2])/2, us(times[0]), plan)
}

// timed returns the times of n calls of one submission.
func timed(stream *vk.Stream, op *attention.Op, args attention.Args, n int) []time.Duration {
	marks := make([][2]vk.Mark, n)
	for i := range marks {
		var err error
		check(stream.Barrier())
		marks[i][0], err = stream.Timestamp()
		check(err)
		check(op.Forward(attention.OnStream(stream), args))
		marks[i][1], err = stream.Timestamp()
		check(err)
	}
	check(stream.Wait(context.Background()))
	times := make([]time.Duration, n)
	for i, m := range marks {
		var err error
		times[i], err = stream.Elapsed(m[0], m[1])
		check(err)
		if times[i] <= 0 {
			log.Fatal("the clock of the device stands still")
		}
	}
	return times
}

// random returns n normal numbers in f16, little-endian.
func random(n int, seed uint64) []byte {
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
