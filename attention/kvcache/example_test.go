package kvcache_test

import (
	"fmt"
	"log"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	"vkattn/internal/half"
)

// One step of decoding. The new token's key and value go behind the keys and values of the
// cache. Its key and query are rotated by their position, and its query attends to all
// keys. On a device both calls come in this order.
func ExampleAppend() {
	words := func(v ...float32) []byte {
		b := make([]byte, 4*len(v))
		half.EncodeF32(b, v)
		return b
	}
	host := func(v ...float32) attention.Tensor { return attention.Tensor{Host: words(v...)} }
	add, err := kvcache.NewAppend(nil, kvcache.AppendConfig{DType: attention.F32, HeadDim: 2, Rotary: kvcache.Rotary{Dim: 2}})
	if err != nil {
		log.Fatal(err)
	}
	defer add.Close()
	op, err := attention.New(nil, attention.Config{DType: attention.F32, HeadDim: 2})
	if err != nil {
		log.Fatal(err)
	}
	defer op.Close()

	const capacity, used = 4, 1
	cache := attention.BHSD(1, capacity, 2) // of which the first key is there
	k, v := host(0, 1, 0, 0, 0, 0, 0, 0), host(2, 4, 0, 0, 0, 0, 0, 0)
	k.Strides, v.Strides = cache, cache
	q, o := host(0, -1), host(0, 0)
	for _, err := range []error{
		add.Forward(nil, kvcache.AppendArgs{B: 1, Hkv: 1, Hq: 1, New: 1, K: host(3, 0), V: host(6, 8),
			KCache: k, VCache: v, Capacity: capacity, Used: attention.Vector{Host: []byte{used, 0, 0, 0}},
			// A quarter turn a position; Rotary.Tables has the usual angles.
			Cos: attention.Vector{Host: words(1, 0)}, Sin: attention.Vector{Host: words(0, 1)}, Positions: 2,
			Q: q, QOut: q}),
		op.Forward(nil, attention.Args{Shape: attention.Shape{B: 1, Hq: 1, Sq: 1, Sk: used + 1}, Q: q, K: k, V: v, O: o}),
	} {
		if err != nil {
			log.Fatal(err)
		}
	}
	values := make([]float32, 4)
	half.DecodeF32(values[:2], q.Host)
	half.DecodeF32(values[2:], o.Host)
	fmt.Println(values[:2], values[2:]) // both keys lie across the query
	// Output: [1 0] [4 6]
}
