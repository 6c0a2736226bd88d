package bench

import (
	"encoding/binary"
	"math"
	"runtime"
	"sync"

	"vkattn/attention"
	"vkattn/internal/half"
	"vkattn/internal/inputs"
	"vkattn/internal/quant"
)

// quantized is a tensor of random numbers in a quantized type, with the scale of each
// row if the type has separate scales.
type quantized struct{ rows, scales []byte }

// quantize returns a tensor [batch, heads, rows, dim] of normal numbers. Strides are in
// elements.
func quantize(kv attention.KVType, size [3]int, dim int, s attention.Strides, seed uint64) quantized {
	rowBytes := int64(kv.RowBytes(attention.F32, dim))
	n := size[0] * size[1] * size[2]
	q := quantized{rows: make([]byte, int64(n)*rowBytes)}
	if kv.Scaled() {
		q.scales = make([]byte, 4*n)
	}
	put := func(i int, row []float32) {
		b, h, r := i/(size[1]*size[2]), i/size[2]%size[1], i%size[2]
		at := (int64(b)*s.Batch + int64(h)*s.Head + int64(r)*s.Seq) / int64(dim) * rowBytes
		dst := q.rows[at : at+rowBytes]
		scale := float32(0)
		switch kv {
		case attention.KVInt8:
			scale = quant.EncodeInt8(dst, row)
		case attention.KVFP8:
			scale = quant.EncodeFP8(dst, row)
		case attention.KVQ8_0:
			quant.EncodeQ8_0(dst, row)
		case attention.KVQ4_0:
			quant.EncodeQ4_0(dst, row)
		}
		if kv.Scaled() {
			binary.LittleEndian.PutUint32(q.scales[4*i:], math.Float32bits(scale))
		}
	}
	// Each CPU encodes a range of rows at a time.
	const piece = 256
	var all sync.WaitGroup
	next := make(chan int)
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			wide := make([]float32, piece*dim)
			for first := range next {
				count := min(piece, n-first)
				half.DecodeF32(wide[:count*dim], inputs.New(int64(count*dim), attention.F32, inputs.Normal, seed+uint64(first)<<8))
				for i := range count {
					put(first+i, wide[i*dim:][:dim])
				}
			}
		})
	}
	for first := 0; first < n; first += piece {
		next <- first
	}
	close(next)
	all.Wait()
	return q
}
