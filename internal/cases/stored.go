package cases

import (
	"encoding/binary"
	"math"
	"sort"

	"vkattn/internal/half"
	"vkattn/internal/problem"
)

// sequence holds the numbers of one sequence.
type sequence struct {
	q    []float32 // [Hq, Rows, D], as stored
	k, v [][]byte  // [Hkv * Keys] rows, as stored
}

// prefixID owns the keys that all sequences share.
const prefixID = -1

// mix is a hash of its arguments and of the case's seed.
func (c *Case) mix(parts ...int) uint64 {
	h := c.seed
	for _, p := range parts {
		h += 0x9e3779b97f4a7c15 + uint64(p)
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		h ^= h >> 31
	}
	return h
}

// uniform is a hash in [0, 1).
func (c *Case) uniform(parts ...int) float64 {
	return float64(c.mix(parts...)>>11) / (1 << 53)
}

// Streams of mix.
const (
	mixSequence = iota
	mixSparse
	mixShuffle
	mixBlocks
	mixMask
	mixMaskRow
	mixBias
	mixSinks
	mixKScale
	mixVScale
	mixPages
	mixFP8
	mixSpoil
	mixExtremeBias
	mixExtremeScale
	mixNonFinite
	mixMods
)

// makeSequence makes the numbers of a sequence.
func (c *Case) makeSequence(id, rows, keys int, dtype problem.DType) sequence {
	q, k, v := makeData(Case{
		D: c.D, Dv: c.Dv, Scale: c.Scale, Data: c.Data, Seed: c.mix(mixSequence, id) | 1,
		Shape: problem.Shape{B: 1, Hq: c.Hq, Hkv: c.Hkv, Sq: max(rows, 1), Sk: max(keys, 1)},
	})
	c.Extremes.multiply(q, k, v)
	c.plantNonFinite(id, q[:c.Hq*rows*c.D], k[:c.KVHeads()*keys*c.D], v[:c.KVHeads()*keys*c.Dv])
	s := sequence{q: q[:c.Hq*rows*c.D]}
	stored := encodeFloats(s.q, dtype)
	s.q = decodeFloats(stored, dtype)
	for i := range c.KVHeads() * keys {
		s.k = append(s.k, c.encodeRow(c.KeyType, k[i*c.D:][:c.D], dtype, id, i))
		if c.VInK {
			s.v = append(s.v, s.k[i][:c.KeyType.RowBytes(dtype, c.Dv)])
		} else {
			s.v = append(s.v, c.encodeRow(c.valueType(), v[i*c.Dv:][:c.Dv], dtype, id, -1-i))
		}
	}
	return s
}

func encodeFloats(x []float32, dtype problem.DType) []byte {
	b := make([]byte, len(x)*dtype.Size())
	dtype.Encode(b, x)
	return b
}

func decodeFloats(b []byte, dtype problem.DType) []float32 {
	x := make([]float32, len(b)/dtype.Size())
	dtype.Decode(x, b)
	return x
}

// Numbers of variance 1 are multiplied by these before they become an int8 or a float8.
// Scales are about the inverse.
const (
	int8Gain = 40
	fp8Gain  = 8
)

// OtherKVType is another type that V may have where K has a type, or that type if there is none.
func OtherKVType(kv problem.KVType) problem.KVType {
	for _, other := range problem.KVTypes() {
		if other != kv && other.PairedWith(kv) {
			return other
		}
	}
	return kv
}

// valueType is how V is stored.
func (c *Case) valueType() problem.KVType {
	if c.VInK || c.ValueType == problem.KVSame {
		return c.KeyType
	}
	return c.ValueType
}

// encodeRow stores a row of K or V.
func (c *Case) encodeRow(kv problem.KVType, x []float32, dtype problem.DType, id, row int) []byte {
	b := make([]byte, kv.RowBytes(dtype, len(x)))
	switch kv {
	case problem.KVInt8:
		for i, f := range x {
			b[i] = byte(int8(clamp(f*int8Gain, -128, 127)))
		}
	case problem.KVFP8:
		for i, f := range x {
			b[i] = toE4M3(f * fp8Gain)
			// Random numbers contain too few subnormal ones.
			if r := c.mix(mixFP8, id, row, i); r%32 == 0 {
				b[i] = byte(r>>8) & 0x87
			}
		}
	case problem.KVQ8_0:
		for i := 0; i < len(x); i += 32 {
			encodeQ8(b[i/32*34:], x[i:i+32])
		}
	case problem.KVQ4_0:
		for i := 0; i < len(x); i += 32 {
			encodeQ4(b[i/32*18:], x[i:i+32])
		}
	default:
		return encodeFloats(x, dtype)
	}
	return b
}

func clamp(f float32, lo, hi float64) float64 {
	return max(lo, min(hi, math.RoundToEven(float64(f))))
}

func encodeQ8(b []byte, x []float32) {
	var most float32
	for _, f := range x {
		most = max(most, f, -f)
	}
	d := half.F16FromFloat32(most / 127)
	binary.LittleEndian.PutUint16(b, d)
	for i, f := range x {
		b[2+i] = 0
		if scale := half.F16ToFloat32(d); scale != 0 {
			b[2+i] = byte(int8(clamp(f/scale, -127, 127)))
		}
	}
}

func encodeQ4(b []byte, x []float32) {
	var most float32 // by magnitude, with its sign
	for _, f := range x {
		if math.Abs(float64(f)) > math.Abs(float64(most)) {
			most = f
		}
	}
	d := half.F16FromFloat32(most / -8)
	binary.LittleEndian.PutUint16(b, d)
	clear(b[2:18])
	for i, f := range x {
		n := byte(8)
		if scale := half.F16ToFloat32(d); scale != 0 {
			n = byte(clamp(f/scale+8, 0, 15))
		}
		b[2+i%16] |= n << (i / 16 * 4)
	}
}

// e4m3 are the values of the 127 non-negative float8.
var e4m3 = func() (values [127]float64) {
	for b := range values {
		exp, fraction := b>>3, float64(b&7)/8
		if exp == 0 {
			values[b] = math.Ldexp(fraction, -6)
		} else {
			values[b] = math.Ldexp(1+fraction, exp-7)
		}
	}
	return values
}()

// toE4M3 is the float8 nearest to f.
func toE4M3(f float32) byte {
	x := math.Abs(float64(f))
	best := min(sort.SearchFloat64s(e4m3[:], x), len(e4m3)-1)
	if best > 0 && x-e4m3[best-1] < e4m3[best]-x {
		best--
	}
	if f < 0 {
		best |= 0x80
	}
	return byte(best)
}

// decodeRow returns the exact values of a stored row. scale is the scale of int8 and
// float8.
func decodeRow(kv problem.KVType, b []byte, dtype problem.DType, n int, scale float32) []float64 {
	x := make([]float64, n)
	d := float64(scale)
	for i := range x {
		switch kv {
		case problem.KVInt8:
			x[i] = float64(int8(b[i])) * d
		case problem.KVFP8:
			x[i] = e4m3[b[i]&0x7f] * d
			if b[i] >= 0x80 {
				x[i] = -x[i]
			}
		case problem.KVQ8_0:
			block := b[i/32*34:]
			x[i] = float64(int8(block[2+i%32])) * float64(half.F16ToFloat32(binary.LittleEndian.Uint16(block)))
		case problem.KVQ4_0:
			block := b[i/32*18:]
			x[i] = float64(int(block[2+i%16]>>(i%32/16*4)&15)-8) * float64(half.F16ToFloat32(binary.LittleEndian.Uint16(block)))
		}
	}
	if kv == problem.KVSame {
		for i, f := range decodeFloats(b[:n*dtype.Size()], dtype) {
			x[i] = float64(f)
		}
	}
	return x
}

// scaleOf is the scale of a key of int8 or float8.
func (c *Case) scaleOf(stored problem.KVType, stream, id, kv, t int) float32 {
	if x, ok := c.extremeScale(stream, id, kv, t); ok {
		return x
	}
	gain := float32(int8Gain)
	if stored == problem.KVFP8 {
		gain = fp8Gain
	}
	return (0.5 + float32(c.uniform(stream, id, kv, t))) / gain
}
