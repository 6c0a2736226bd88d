package problem

import (
	"strconv"
	"strings"

	"vkattn/internal/enum"
	"vkattn/internal/half"
	"vkattn/internal/quant"
)

// DType is attention.DType, whose comment documents it.
type DType uint8

// Storage types. The zero value is F16.
const (
	F16  DType = iota // IEEE 754 binary16
	BF16              // bfloat16: the upper half of a float32
	F32               // IEEE 754 binary32
)

var dtypeNames = []string{"f16", "bf16", "f32"}

var dtypeAliases = map[string]DType{
	"fp16": F16, "half": F16, "float16": F16,
	"bfloat16": BF16,
	"fp32":     F32, "float": F32, "float32": F32,
}

// DTypes lists every storage type.
func DTypes() []DType { return []DType{F16, BF16, F32} }

// Size is the number of bytes of one element; 0 for an invalid DType.
func (t DType) Size() int {
	switch t {
	case F16, BF16:
		return 2
	case F32:
		return 4
	}
	return 0
}

// Decode widens len(dst) elements of src, which are little-endian as in a device's
// memory. It panics where src is shorter.
func (t DType) Decode(dst []float32, src []byte) {
	switch t {
	case F16:
		half.DecodeF16(dst, src)
	case BF16:
		half.DecodeBF16(dst, src)
	default:
		half.DecodeF32(dst, src)
	}
}

// Encode rounds src to elements in dst, to nearest even. It panics where dst is shorter.
func (t DType) Encode(dst []byte, src []float32) {
	switch t {
	case F16:
		half.EncodeF16(dst, src)
	case BF16:
		half.EncodeBF16(dst, src)
	default:
		half.EncodeF32(dst, src)
	}
}

// Valid reports whether t is one of the named types.
func (t DType) Valid() bool { return int(t) < len(dtypeNames) }

// String is "f16", "bf16" or "f32".
func (t DType) String() string { return enum.Name("DType", dtypeNames, uint8(t)) }

// ParseDType is attention.ParseDType.
func ParseDType(s string) (DType, error) {
	if t, ok := dtypeAliases[strings.ToLower(s)]; ok {
		return t, nil
	}
	return enum.Parse[DType]("dtype", dtypeNames, s)
}

// Set makes *DType a flag.Value.
func (t *DType) Set(s string) error { return enum.Set(t, s, ParseDType) }

// Type names the flag's kind, for flag packages that ask.
func (t DType) Type() string { return "dtype" }

// MarshalText writes String.
func (t DType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText is Set.
func (t *DType) UnmarshalText(text []byte) error { return t.Set(string(text)) }

// KVType is attention.KVType, whose comment documents it.
type KVType uint8

// Storage of K and V: the type of Q, then quant.Formats in its order.
const (
	KVSame     KVType = iota // as DType
	KVInt8                   // signed bytes
	KVFP8                    // float8 e4m3 (OCP, finite only): 1 sign, 4 exponent (bias 7), 3 mantissa bits
	KVQ8_0                   // 34 bytes for 32 elements: an f16 scale, then 32 signed bytes
	KVQ4_0                   // 18 bytes for 32 elements: an f16 scale, then 16 bytes; byte i has element i in its low half and i+16 in its high one, each less 8
	KVQ4_1                   // 20 bytes for 32 elements: an f16 scale, an f16 minimum, then 16 bytes as in KVQ4_0; element = scale * number + minimum
	KVQ5_0                   // 22 bytes for 32 elements: an f16 scale, 32 fifth bits, then 16 bytes as in KVQ4_0; each number less 16
	KVQ5_1                   // 24 bytes for 32 elements: an f16 scale, an f16 minimum, 32 fifth bits, then 16 bytes; element = scale * number + minimum
	KVIQ4NL                  // 18 bytes for 32 elements as KVQ4_0, but numbers are entries of a table from -127 to 113
	KVFP8E5M2                // float8 e5m2: 1 sign, 5 exponent (bias 15), 2 mantissa bits, with Inf and NaN
	KVFP8DSMLA               // 656 bytes for a row of K of 576 elements, whose first 512 are V: 512 float8 e4m3, 4 float32 scales of 128 each, 64 bfloat16
)

// Values of Config.KVBlock, other than a number of keys.
const (
	KVBlockHead   = -1 // a scale for each KV head, of all keys of all sequences
	KVBlockTensor = -2 // one scale
)

// KVBlockName is the text of a KVBlock: head, tensor or the number of keys.
func KVBlockName(block int) string {
	switch block {
	case KVBlockHead:
		return "head"
	case KVBlockTensor:
		return "tensor"
	}
	return strconv.Itoa(block)
}

var kvNames = func() (names []string) {
	names = append(names, "same")
	for _, f := range quant.Formats {
		names = append(names, f.Name)
	}
	return names
}()

// KVTypes lists every KVType.
func KVTypes() (list []KVType) {
	for t := range kvNames {
		list = append(list, KVType(t))
	}
	return list
}

// ListKVTypes names the types that are chosen, nil for all: "int8, fp8 or q8_0".
func ListKVTypes(chosen func(KVType) bool) string {
	var names []string
	for _, t := range KVTypes() {
		if chosen == nil || chosen(t) {
			names = append(names, t.String())
		}
	}
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// FormatOf is the format of a quantized type, nil for KVSame and for what is not Valid.
func FormatOf(t KVType) *quant.Format {
	if t == KVSame || !t.Valid() {
		return nil
	}
	return quant.Formats[t-1]
}

// Valid reports whether t is one of the named types.
func (t KVType) Valid() bool { return int(t) < len(kvNames) }

// Scaled reports whether elements have separate scales.
func (t KVType) Scaled() bool { return FormatOf(t).Scaled() }

// Blocked reports whether rows are blocks of Unit elements, with their scales: 32 elements, or a Latent row.
func (t KVType) Blocked() bool { f := FormatOf(t); return f != nil && !f.Scaled() }

// Latent reports whether a block is a row of K of latent attention, 576 elements whose first 512 are V.
func (t KVType) Latent() bool { return FormatOf(t).Row() }

// PairedWith reports whether K and V may be stored as t and u: both as DType, both Scaled, both
// Blocked, or both Latent.
func (t KVType) PairedWith(u KVType) bool {
	return t.Scaled() == u.Scaled() && t.Blocked() == u.Blocked() && t.Latent() == u.Latent()
}

// Unit is the elements of the smallest unit that is stored: 1, or a block of a Blocked type.
func (t KVType) Unit() int {
	if f := FormatOf(t); f != nil {
		return f.Elements
	}
	return 1
}

// KVName names the types of K and V: "q8_0", or "q8_0/q4_0" if they differ.
func KVName(k, v KVType) string {
	if k == v {
		return k.String()
	}
	return k.String() + "/" + v.String()
}

// RowBytes is the number of bytes of the given number of elements, a multiple of Unit but for V
// of a Latent type, which is in a row of K. d is the storage type for KVSame.
func (t KVType) RowBytes(d DType, elements int) int {
	if f := FormatOf(t); f != nil {
		return (elements + f.Elements - 1) / f.Elements * f.Bytes
	}
	return elements * d.Size()
}

// String is the name of the type, "q8_0" or "same".
func (t KVType) String() string { return enum.Name("KVType", kvNames, uint8(t)) }

// ParseKVType is attention.ParseKVType.
func ParseKVType(s string) (KVType, error) { return enum.Parse[KVType]("K/V type", kvNames, s) }

// Set makes *KVType a flag.Value.
func (t *KVType) Set(s string) error { return enum.Set(t, s, ParseKVType) }

// Type names the flag's kind, for flag packages that ask.
func (t KVType) Type() string { return "kv-dtype" }

// MarshalText writes String.
func (t KVType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText is Set.
func (t *KVType) UnmarshalText(text []byte) error { return t.Set(string(text)) }
