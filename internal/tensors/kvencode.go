package tensors

import (
	"fmt"

	"vkattn/internal/arith"
	"vkattn/internal/half"
	"vkattn/internal/par"
	"vkattn/internal/problem"
	"vkattn/internal/quant"
)

// EncodeKV is attention.EncodeKV, which documents it.
func EncodeKV(t problem.KVType, block, batches, heads, keys, dim int, x []float32) (data, scales []byte, err error) {
	k, err := newKVPacked(t, block, batches, heads, keys, dim)
	if err == nil && int64(len(x)) != k.rows*int64(keys)*int64(dim) {
		err = &problem.ShapeError{Field: "elements", Got: len(x), Want: fmt.Sprintf("%d*%d*%d*%d", batches, heads, keys, dim)}
	}
	if err != nil {
		return nil, nil, err
	}
	data = make([]byte, k.rows*k.bytes)
	if t.Scaled() {
		scales = make([]byte, 4*k.rows*int64(k.groups))
	}
	f := problem.FormatOf(t)
	k.each(func(data []byte, x []float32, scale []byte) {
		if s := f.Encode(data, x); f.Scaled() {
			half.EncodeF32(scale, []float32{s})
		}
	}, data, x, scales)
	return data, scales, nil
}

// DecodeKV is attention.DecodeKV, which documents it.
func DecodeKV(t problem.KVType, block, batches, heads, keys, dim int, data, scales []byte) ([]float32, error) {
	k, err := newKVPacked(t, block, batches, heads, keys, dim)
	if err != nil {
		return nil, err
	}
	if int64(len(data)) != k.rows*k.bytes {
		return nil, &problem.ShapeError{Field: "data", Got: fmt.Sprintf("%d bytes", len(data)), Want: fmt.Sprintf("%d", k.rows*k.bytes)}
	}
	if want := 4 * k.rows * int64(k.groups); t.Scaled() && int64(len(scales)) != want {
		return nil, &problem.ShapeError{Field: "scales", Got: fmt.Sprintf("%d bytes", len(scales)), Want: fmt.Sprintf("%d", want)}
	}
	x, f := make([]float32, k.rows*int64(keys)*int64(dim)), problem.FormatOf(t)
	k.each(func(data []byte, x []float32, scale []byte) {
		f.Decode(x, data)
		if t.Scaled() {
			var s [1]float32
			half.DecodeF32(s[:], scale)
			for i := range x {
				x[i] *= s[0]
			}
		}
	}, data, x, scales)
	return x, nil
}

// kvPacked is a packed quantized tensor.
type kvPacked struct {
	t           problem.KVType
	rows        int64 // heads of all batches
	bytes       int64 // of a head
	block, keys int
	groups, dim int // scales of a head, elements of a key
}

func newKVPacked(t problem.KVType, block, batches, heads, keys, dim int) (*kvPacked, error) {
	for _, f := range []struct {
		name string
		n    int
	}{{"batches", batches}, {"heads", heads}, {"keys", keys}, {"dim", dim}} {
		if f.n < 1 || f.n > problem.MaxLength {
			return nil, &problem.ShapeError{Field: f.name, Got: f.n, Want: fmt.Sprintf("1 to %d", problem.MaxLength)}
		}
	}
	switch _, ok := arith.Product(batches, heads, keys, dim, 4); {
	case !t.Valid() || t == problem.KVSame:
		return nil, &problem.ShapeError{Field: "KV", Got: t, Want: problem.ListKVTypes(func(t problem.KVType) bool { return t != problem.KVSame })}
	case t.Blocked() && dim%quant.BlockElements != 0:
		return nil, &problem.ShapeError{Field: "dim", Got: dim, Want: fmt.Sprintf("a multiple of 32 for %v", t)}
	case block < 0 || block > problem.MaxLength:
		return nil, &problem.ShapeError{Field: "block", Got: block, Want: "at least 1, or 0 for 1"}
	case !ok:
		return nil, &problem.ShapeError{Field: "elements", Got: fmt.Sprintf("%d*%d*%d*%d", batches, heads, keys, dim), Want: "an extent below 2^63 bytes"}
	}
	block = max(1, block)
	return &kvPacked{
		t: t, rows: int64(batches) * int64(heads), bytes: int64(t.RowBytes(problem.F32, dim)) * int64(keys),
		block: block, keys: keys, groups: arith.CeilDiv(keys, block), dim: dim,
	}, nil
}

// each visits the keys of every block of every head, from many goroutines.
func (k *kvPacked) each(visit func(data []byte, x []float32, scale []byte), data []byte, x []float32, scales []byte) {
	key := int64(k.t.RowBytes(problem.F32, k.dim))
	par.Each(k.rows, func() func(int64) {
		return func(row int64) {
			data, x := data[row*k.bytes:], x[row*int64(k.keys)*int64(k.dim):]
			for g := range k.groups {
				n := min(k.block, k.keys-g*k.block)
				var scale []byte
				if k.t.Scaled() {
					scale = scales[4*(row*int64(k.groups)+int64(g)):][:4]
				}
				visit(data[:int64(n)*key], x[:n*k.dim], scale)
				data, x = data[int64(n)*key:], x[n*k.dim:]
			}
		}
	})
}
