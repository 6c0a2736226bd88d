package attention

import (
	"fmt"

	"vkattn/attention/half"
	"vkattn/attention/internal/par"
	"vkattn/attention/quant"
)

// EncodeKV quantises K or V. x is packed [batches, heads, keys, dim], and so is data. For
// pages, batches are pages and keys is PageSize; for packed sequences, batches is 1 and keys
// is TotalK. For Scaled types scales are the float32 of Args.KScale or VScale, one for block
// consecutive keys of a head (0: 1, as in Config.KVBlock). Each maps the largest magnitude
// of its elements to the type's largest number. For other types scales is nil. Package
// quant documents the rounding.
func EncodeKV(t KVType, block, batches, heads, keys, dim int, x []float32) (data, scales []byte, err error) {
	k, err := newKVPacked(t, block, batches, heads, keys, dim)
	if err == nil && int64(len(x)) != k.rows*int64(keys)*int64(dim) {
		err = &ShapeError{"elements", len(x), fmt.Sprintf("%d*%d*%d*%d", batches, heads, keys, dim)}
	}
	if err != nil {
		return nil, nil, err
	}
	data = make([]byte, k.rows*k.bytes)
	if t.Scaled() {
		scales = make([]byte, 4*k.rows*int64(k.groups))
	}
	k.each(func(data []byte, x []float32, scale []byte) {
		switch t {
		case KVInt8:
			half.EncodeF32(scale, []float32{quant.EncodeInt8(data, x)})
		case KVFP8:
			half.EncodeF32(scale, []float32{quant.EncodeFP8(data, x)})
		case KVQ8_0:
			quant.EncodeQ8_0(data, x)
		case KVQ4_0:
			quant.EncodeQ4_0(data, x)
		}
	}, data, x, scales)
	return data, scales, nil
}

// DecodeKV returns the elements that EncodeKV's result represents, in float32, packed
// [batches, heads, keys, dim]. Sizes that do not match give a *ShapeError.
func DecodeKV(t KVType, block, batches, heads, keys, dim int, data, scales []byte) ([]float32, error) {
	k, err := newKVPacked(t, block, batches, heads, keys, dim)
	if err != nil {
		return nil, err
	}
	if int64(len(data)) != k.rows*k.bytes {
		return nil, &ShapeError{"data", fmt.Sprintf("%d bytes", len(data)), fmt.Sprintf("%d", k.rows*k.bytes)}
	}
	if want := 4 * k.rows * int64(k.groups); t.Scaled() && int64(len(scales)) != want {
		return nil, &ShapeError{"scales", fmt.Sprintf("%d bytes", len(scales)), fmt.Sprintf("%d", want)}
	}
	x := make([]float32, k.rows*int64(keys)*int64(dim))
	k.each(func(data []byte, x []float32, scale []byte) {
		decodeKVRow(t, x, data)
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

// decodeKVRow widens the numbers of a row. It does not apply the scale of Scaled types.
func decodeKVRow(t KVType, x []float32, data []byte) {
	switch t {
	case KVInt8:
		quant.DecodeInt8(x, data)
	case KVFP8:
		quant.DecodeFP8(x, data)
	case KVQ8_0:
		quant.DecodeQ8_0(x, data)
	case KVQ4_0:
		quant.DecodeQ4_0(x, data)
	}
}

// kvPacked is a packed quantised tensor.
type kvPacked struct {
	t           KVType
	rows        int64 // heads of all batches
	bytes       int64 // of a head
	block, keys int
	groups, dim int // scales of a head, elements of a key
}

func newKVPacked(t KVType, block, batches, heads, keys, dim int) (*kvPacked, error) {
	for _, f := range []struct {
		name string
		n    int
	}{{"batches", batches}, {"heads", heads}, {"keys", keys}, {"dim", dim}} {
		if f.n < 1 || f.n > MaxLength {
			return nil, &ShapeError{f.name, f.n, fmt.Sprintf("1 to %d", MaxLength)}
		}
	}
	switch _, ok := product(batches, heads, keys, dim, 4); {
	case !t.Valid() || t == KVSame:
		return nil, &ShapeError{"KV", t, "int8, fp8, q8_0 or q4_0"}
	case t.Blocked() && dim%quant.BlockElements != 0:
		return nil, &ShapeError{"dim", dim, fmt.Sprintf("a multiple of 32 for %v", t)}
	case block < 0 || block > MaxLength:
		return nil, &ShapeError{"block", block, "at least 1, or 0 for 1"}
	case !ok:
		return nil, &ShapeError{"elements", fmt.Sprintf("%d*%d*%d*%d", batches, heads, keys, dim), "an extent below 2^63 bytes"}
	}
	block = max(1, block)
	return &kvPacked{
		t: t, rows: int64(batches) * int64(heads), bytes: int64(t.RowBytes(F32, dim)) * int64(keys),
		block: block, keys: keys, groups: ceilDivInt(keys, block), dim: dim,
	}, nil
}

// each visits the keys of every block of every head, from many goroutines.
func (k *kvPacked) each(visit func(data []byte, x []float32, scale []byte), data []byte, x []float32, scales []byte) {
	key := int64(k.t.RowBytes(F32, k.dim))
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
