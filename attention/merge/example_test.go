package merge_test

import (
	"fmt"
	"log"

	"vkattn/attention"
	"vkattn/attention/merge"
	"vkattn/internal/half"
)

// Attention over a prefix that many sequences share and over what follows it, as two
// states that are merged: here one row and two keys, without a device.
func ExampleMerge() {
	host := func(v ...float32) attention.Tensor {
		b := make([]byte, 4*len(v))
		half.EncodeF32(b, v)
		return attention.Tensor{Host: b}
	}
	op, err := attention.New(nil, attention.Config{DType: attention.F32, HeadDim: 2})
	if err != nil {
		log.Fatal(err)
	}
	defer op.Close()
	merger, err := merge.NewMerge(nil, merge.MergeConfig{DType: attention.F32, HeadDim: 2})
	if err != nil {
		log.Fatal(err)
	}
	defer merger.Close()

	shape := attention.Shape{B: 1, Hq: 1, Sq: 1, Sk: 1}
	prefix := merge.States{O: host(0, 0), LSE: host(0)}
	suffix := merge.States{O: host(0, 0), LSE: host(0)}
	q := host(1, 0)
	for _, err := range []error{
		op.Forward(nil, attention.Args{Shape: shape, Q: q, K: host(0, 1), V: host(2, 4), O: prefix.O, LSE: prefix.LSE}),
		op.Forward(nil, attention.Args{Shape: shape, Q: q, K: host(0, 3), V: host(6, 8), O: suffix.O, LSE: suffix.LSE}),
		// In place of the suffix.
		merger.Forward(nil, merge.MergeArgs{Shape: shape, First: prefix, Second: suffix, O: suffix.O, LSE: suffix.LSE}),
	} {
		if err != nil {
			log.Fatal(err)
		}
	}
	o := make([]float32, 2)
	half.DecodeF32(o, suffix.O.Host)
	fmt.Println(o) // both keys score alike
	// Output: [4 6]
}
