package cases

import (
	"encoding/binary"
	"math"
	"slices"

	"vkattn/internal/enum"
	"vkattn/internal/half"
	"vkattn/internal/inputs"
	"vkattn/internal/problem"
	"vkattn/internal/quant"
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

// OtherKVType is another type that V may have where K has a type: the next, after the last one the first.
func OtherKVType(kv problem.KVType) problem.KVType {
	types := slices.DeleteFunc(problem.KVTypes(), func(t problem.KVType) bool { return !t.PairedWith(kv) })
	return types[(slices.Index(types, kv)+1)%len(types)]
}

// valueType is how V is stored.
func (c *Case) valueType() problem.KVType {
	if c.VInK || c.ValueType == problem.KVSame {
		return c.KeyType
	}
	return c.ValueType
}

// encodeRow stores a row of K or V. What a row stands for is said by DecodeRow, which shares no code with package quant.
func (c *Case) encodeRow(kv problem.KVType, x []float32, dtype problem.DType, id, row int) []byte {
	b := make([]byte, kv.RowBytes(dtype, len(x)))
	// Random numbers contain too few subnormal float8s.
	float8 := func(nearest func(float32) byte, subnormals byte) {
		for i, f := range x {
			b[i] = nearest(f * fp8Gain)
			if r := c.mix(mixFP8, id, row, i); r%32 == 0 {
				b[i] = byte(r>>8) & subnormals
			}
		}
	}
	switch kv {
	case problem.KVInt8:
		for i, f := range x {
			b[i] = byte(int8(max(-128, min(127, math.RoundToEven(float64(f)*int8Gain)))))
		}
	case problem.KVFP8:
		float8(quant.FP8FromFloat32, 0x87)
	case problem.KVFP8E5M2:
		float8(quant.E5M2FromFloat32, 0x83)
	case problem.KVSame:
		dtype.Encode(b, x)
	default:
		problem.FormatOf(kv).Encode(b, x)
	}
	return b
}

// A nibbleBlock is a block type with 16 bytes of two codes each at the end. A code is the index of a
// number.
type nibbleBlock struct {
	bytes   int
	minimum bool // an f16 behind the scale
	numbers []float64
}

var nibbleBlocks = map[problem.KVType]nibbleBlock{
	problem.KVQ4_0:  {18, false, numbersFrom(-8, 16)},
	problem.KVQ4_1:  {20, true, numbersFrom(0, 16)},
	problem.KVQ5_0:  {22, false, numbersFrom(-16, 32)},
	problem.KVQ5_1:  {24, true, numbersFrom(0, 32)},
	problem.KVIQ4NL: {18, false, []float64{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}},
}

func numbersFrom(first float64, n int) (list []float64) {
	for i := range n {
		list = append(list, first+float64(i))
	}
	return list
}

func (f *nibbleBlock) scales(b []byte) (scale, minimum float64) {
	if f.minimum {
		minimum = float64(half.F16ToFloat32(binary.LittleEndian.Uint16(b[2:])))
	}
	return float64(half.F16ToFloat32(binary.LittleEndian.Uint16(b))), minimum
}

// element is element i of a block.
func (f *nibbleBlock) element(b []byte, i int) float64 {
	code := b[f.bytes-16+i%16] >> (i / 16 * 4) & 15
	if len(f.numbers) > 16 {
		code |= b[f.bytes-20+i/8] >> (i % 8) & 1 << 4
	}
	d, m := f.scales(b)
	return d*f.numbers[code] + m
}

// e4m3 and e5m2 are the values of the 128 float8 without a sign.
var e4m3, e5m2 = float8s(3, 7, 0x7e), float8s(2, 15, 0x7b)

func float8s(fractionBits, bias, largest int) (values [128]float64) {
	for b := range values {
		exp, fraction := b>>fractionBits, math.Ldexp(float64(b), -fractionBits)
		switch fraction -= float64(exp); {
		case b > largest && fractionBits == 2 && fraction == 0:
			values[b] = math.Inf(1)
		case b > largest:
			values[b] = math.NaN()
		case exp == 0:
			values[b] = math.Ldexp(fraction, 1-bias)
		default:
			values[b] = math.Ldexp(1+fraction, exp-bias)
		}
	}
	return values
}

func float8(values *[128]float64, b byte) float64 {
	return math.Copysign(values[b&0x7f], 0.5-float64(b>>7))
}

// BlockNumbers returns the numbers that the codes of a block stand for, of types with two codes
// in a byte, and whether a minimum follows the scale. Of other types numbers is nil.
func BlockNumbers(kv problem.KVType) (numbers []float64, minimum bool) {
	f := nibbleBlocks[kv]
	return f.numbers, f.minimum
}

// DecodeRow returns the exact values of a stored row, of KVFP8DSMLA what float32 makes of them, as
// the reference does. scale is the scale of a key, for Scaled types.
func DecodeRow(kv problem.KVType, b []byte, dtype problem.DType, n int, scale float32) []float64 {
	x := make([]float64, n)
	d := float64(scale)
	for i := range x {
		switch kv {
		case problem.KVInt8:
			x[i] = float64(int8(b[i])) * d
		case problem.KVFP8:
			x[i] = float8(&e4m3, b[i]) * d
		case problem.KVFP8E5M2:
			x[i] = float8(&e5m2, b[i]) * d
		case problem.KVQ8_0:
			block := b[i/32*34:]
			x[i] = float64(int8(block[2+i%32])) * float64(half.F16ToFloat32(binary.LittleEndian.Uint16(block)))
		case problem.KVFP8DSMLA: // of 656 bytes 512 are numbers, 16 their scales, 128 the rest
			if i >= 512 {
				x[i] = float64(decodeFloats(b[528+2*(i-512):][:2], problem.BF16)[0])
			} else {
				x[i] = float64(float32(float8(&e4m3, b[i])) * decodeFloats(b[512+i/128*4:][:4], problem.F32)[0])
			}
		case problem.KVSame:
		default:
			f := nibbleBlocks[kv]
			x[i] = f.element(b[i/32*f.bytes:], i%32)
		}
	}
	if kv == problem.KVSame {
		for i, f := range decodeFloats(b[:n*dtype.Size()], dtype) {
			x[i] = float64(f)
		}
	}
	return x
}

// scaleOf is the scale of a key.
func (c *Case) scaleOf(stored problem.KVType, stream, id, kv, t int) float32 {
	if x, ok := c.extremeScale(stream, id, kv, t); ok {
		return x
	}
	gain := float32(fp8Gain)
	if stored == problem.KVInt8 {
		gain = int8Gain
	}
	return (0.5 + float32(c.uniform(stream, id, kv, t))) / gain
}

// DataKind is a distribution of the numbers of a problem.
type DataKind uint8

const (
	Normal  DataKind = iota // mean 0, variance 1
	Uniform                 // [-1, 1)
	Large                   // normal, with scores to about +-1e4
	Rising                  // each score about 10 above the one before, up to 1e4: the maximum moves at every key
	Falling                 // the reverse: the first key decides
	Equal                   // all keys the same: O is the mean of V
	DataKinds
)

var dataNames = []string{"normal", "uniform", "large", "rising", "falling", "equal"}

func (k DataKind) String() string { return dataNames[k] }

// Set sets the kind by its name.
func (k *DataKind) Set(s string) error {
	return enum.Set(k, s, func(s string) (DataKind, error) { return enum.Parse[DataKind]("data", dataNames, s) })
}

// randomFloats are n random numbers.
func randomFloats(n int64, d inputs.Distribution, seed uint64) []float32 {
	x := make([]float32, n)
	half.DecodeF32(x, inputs.New(n, problem.F32, d, seed))
	return x
}

// makeData makes Q, K and V of a case.
func makeData(c Case) (q, k, v []float32) {
	s := c.Shape
	kv := int64(s.B) * int64(s.KVHeads()) * int64(s.Sk)
	d := inputs.Normal
	if c.Data == Uniform {
		d = inputs.Uniform
	}
	seed := c.SeedValue()
	q = randomFloats(s.Rows()*int64(c.D), d, seed)
	k = randomFloats(kv*int64(c.D), d, seed+1)
	v = randomFloats(kv*int64(c.Dv), d, seed+2)
	scale := math.Abs(float64(c.Config(Target{}).ScaleValue()))
	if scale == 0 {
		scale = 1 // all scores are 0 anyway
	}
	switch c.Data {
	case Large:
		// A score has standard deviation scale*a*a*sqrt(d); four of them are 1e4.
		a := float32(min(math.Sqrt(2500/(scale*math.Sqrt(float64(c.D)))), 1000))
		multiply(q, a)
		multiply(k, a)
	case Rising, Falling:
		ramp(q, k, c, scale)
	case Equal:
		for i := range k {
			k[i] = k[i%c.D]
		}
	}
	return q, k, v
}

// ramp makes the first elements of Q and K produce a score of 10 times the key's index,
// counted from the first or the last key. The other elements add a little noise.
func ramp(q, k []float32, c Case, scale float64) {
	step := min(10, 1e4/float64(c.Shape.Sk))
	const gain = 16 // keeps K within the range of f16
	for i := range q {
		if i%c.D == 0 {
			q[i] = gain
		}
	}
	for i := range k {
		if i%c.D != 0 {
			continue
		}
		key := i / c.D % c.Shape.Sk
		if c.Data == Falling {
			key = -key
		}
		k[i] = float32(float64(key) * step / (scale * gain))
	}
}

func multiply(v []float32, a float32) {
	for i := range v {
		v[i] *= a
	}
}
