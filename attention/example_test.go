package attention_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"

	"vkattn/attention"
	"vkattn/internal/half"
	"vkattn/vk"
)

// Without a device the operation computes on the CPU, on host memory.
func ExampleNew() {
	op, err := attention.New(nil, attention.Config{DType: attention.F32, HeadDim: 2, Causal: attention.TopLeft})
	if err != nil {
		log.Fatal(err)
	}
	defer op.Close()
	host := func(v ...float32) attention.Tensor {
		b := make([]byte, 4*len(v))
		half.EncodeF32(b, v)
		return attention.Tensor{Host: b}
	}
	args := attention.Args{
		Shape: attention.Shape{B: 1, Hq: 1, Sq: 2, Sk: 2},
		Q:     host(1, 0, 0, 1), K: host(1, 0, 1, 0), V: host(2, 4, 6, 8),
		O: host(0, 0, 0, 0), LSE: host(0, 0),
	}
	if err := op.Forward(nil, args); err != nil {
		log.Fatal(err)
	}
	o := make([]float32, 4)
	half.DecodeF32(o, args.O.Host)
	fmt.Println(o) // the first row sees one key, the second both alike
	// Output: [2 4 4 6]
}

// On a device tensors are buffers, and work is recorded into a stream.
func ExampleOp_Forward() {
	dev, err := vk.Open(vk.Options{})
	if err != nil {
		log.Print(err)
		return
	}
	defer dev.Close()
	op, err := attention.New(attention.On(dev), attention.Config{HeadDim: 64, Causal: attention.BottomRight})
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
	tensor := func(heads, seq int) attention.Tensor { // float16, packed BHSD
		b, err := dev.NewBuffer(uint64(shape.B*heads*seq*64*2), vk.BufferOptions{})
		if err != nil {
			log.Fatal(err)
		}
		return attention.Tensor{Buffer: b}
	}
	args := attention.Args{Shape: shape,
		Q: tensor(shape.Hq, shape.Sq), K: tensor(shape.Hkv, shape.Sk),
		V: tensor(shape.Hkv, shape.Sk), O: tensor(shape.Hq, shape.Sq)}
	q := make([]byte, args.Q.Buffer.Size())
	for _, err := range []error{
		stream.Upload(args.Q.Buffer, 0, q), // K and V likewise
		op.Forward(attention.OnStream(stream), args),
		stream.Wait(context.Background()),
	} {
		if err != nil {
			log.Print(err)
			return
		}
	}
	if plan, err := op.Plan(shape); err == nil {
		log.Print(plan) // the tier, the tile, and why the better tiers do not run
	}
}

// A program that runs one shape for hours tunes it once; later processes find the
// tile in the user's cache.
func ExampleOp_Tune() {
	dev, err := vk.Open(vk.Options{Stats: true})
	if err != nil {
		log.Print(err)
		return
	}
	defer dev.Close()
	op, err := attention.New(attention.On(dev), attention.Config{HeadDim: 128, Causal: attention.BottomRight})
	if err != nil {
		log.Print(err)
		return
	}
	defer op.Close()
	shape := attention.Shape{B: 1, Hq: 32, Hkv: 8, Sq: 4096, Sk: 4096}
	if plan, err := op.Plan(shape); err == nil && plan.Tuning == attention.TileHeuristic {
		report, err := op.Tune(context.Background(), shape, attention.TuneOptions{})
		if err != nil {
			log.Print(err)
			return
		}
		log.Printf("tile %s, %.0f %% faster than %s", report.Winner, 100*(report.Gain-1), report.Heuristic)
	}
}

// Two sequences of 3 keys and 1 key, in pages of 2 keys: key t of sequence b is row
// t % 2 of page table[b, t / 2]. The last entry of the table is not used.
func ExamplePages() {
	words := func(v ...float32) []byte {
		b := make([]byte, 4*len(v))
		half.EncodeF32(b, v)
		return b
	}
	ints := func(v ...uint32) attention.Vector {
		var b []byte
		for _, x := range v {
			b = binary.LittleEndian.AppendUint32(b, x)
		}
		return attention.Vector{Host: b}
	}
	op, err := attention.New(nil, attention.Config{DType: attention.F32, HeadDim: 1, Causal: attention.BottomRight})
	if err != nil {
		log.Fatal(err)
	}
	defer op.Close()
	args := attention.Args{
		Shape:  attention.Shape{B: 2, Hq: 1, Sq: 1, Sk: 3},
		Varlen: &attention.Varlen{UsedK: ints(3, 1)},
		Pages:  &attention.Pages{Table: ints(2, 0, 1, 99), PageSize: 2, Count: 3},
		Q:      attention.Tensor{Host: words(0, 0)},
		K:      attention.Tensor{Host: words(0, 0, 0, 0, 0, 0)},
		V:      attention.Tensor{Host: words(9, -1, 5, -1, 3, 6)}, // pages [3, 1 head, 2 keys, 1]
		O:      attention.Tensor{Host: words(0, 0)},
	}
	if err := op.Forward(nil, args); err != nil {
		log.Fatal(err)
	}
	o := make([]float32, 2)
	half.DecodeF32(o, args.O.Host)
	fmt.Println(o) // keys score alike: the means of 3, 6, 9 and of 5
	// Output: [6 5]
}

// K and V quantized to int8, with one scale for the elements of two keys of a head.
func ExampleEncodeKV() {
	data, scales, err := attention.EncodeKV(attention.KVInt8, 2, 1, 1, 4, 2, []float32{1, 2, 0, -127, 3, 0, 0, 254})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(data), "bytes and", len(scales)/4, "scales")
	x, err := attention.DecodeKV(attention.KVInt8, 2, 1, 1, 4, 2, data, scales)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(x)
	// Output:
	// 8 bytes and 2 scales
	// [1 2 0 -127 4 0 0 254]
}

// Errors name the field that is wrong.
func ExampleShapeError() {
	err := attention.Shape{B: 1, Hq: 8, Hkv: 3, Sq: 1, Sk: 1}.Validate()
	var wrong *attention.ShapeError
	fmt.Println(errors.As(err, &wrong), wrong.Field, errors.Is(err, attention.ErrInvalid))
	fmt.Println(err)
	// Output:
	// true Hkv true
	// attention: Hkv is 3, want a divisor of Hq (8)
}
