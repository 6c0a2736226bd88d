package problem

import (
	"strings"

	"vkattn/internal/enum"
	"vkattn/internal/half"
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
