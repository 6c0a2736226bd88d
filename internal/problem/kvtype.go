package problem

import (
	"vkattn/internal/enum"
	"vkattn/internal/quant"
)

// KVType is attention.KVType, whose comment documents it.
type KVType uint8

// Storage of K and V.
const (
	KVSame KVType = iota // as DType
	KVInt8               // signed bytes
	KVFP8                // float8 e4m3 (OCP, finite only): 1 sign, 4 exponent (bias 7), 3 mantissa bits
	KVQ8_0               // 34 bytes for 32 elements: an f16 scale, then 32 signed bytes
	KVQ4_0               // 18 bytes for 32 elements: an f16 scale, then 16 bytes; byte i has element i in its low half and i+16 in its high one, each less 8
)

var kvNames = []string{"same", "int8", "fp8", "q8_0", "q4_0"}

// KVTypes lists every KVType.
func KVTypes() []KVType { return []KVType{KVSame, KVInt8, KVFP8, KVQ8_0, KVQ4_0} }

// Valid reports whether t is one of the named types.
func (t KVType) Valid() bool { return int(t) < len(kvNames) }

// Scaled reports whether elements have separate scales.
func (t KVType) Scaled() bool { return t == KVInt8 || t == KVFP8 }

// Blocked reports whether rows are blocks of 32 elements, each with its scale.
func (t KVType) Blocked() bool { return t == KVQ8_0 || t == KVQ4_0 }

// PairedWith reports whether K and V may be stored as t and u: both as DType, both Scaled or
// both Blocked.
func (t KVType) PairedWith(u KVType) bool {
	return t.Scaled() == u.Scaled() && t.Blocked() == u.Blocked()
}

// KVName names the types of K and V: "q8_0", or "q8_0/q4_0" if they differ.
func KVName(k, v KVType) string {
	if k == v {
		return k.String()
	}
	return k.String() + "/" + v.String()
}

// RowBytes is the number of bytes of the given number of elements, a multiple of 32 for
// Blocked types. d is the storage type for KVSame.
func (t KVType) RowBytes(d DType, elements int) int {
	switch t {
	case KVInt8, KVFP8:
		return elements
	case KVQ8_0:
		return elements / quant.BlockElements * 34
	case KVQ4_0:
		return elements / quant.BlockElements * 18
	}
	return elements * d.Size()
}

// String is "same", "int8", "fp8", "q8_0" or "q4_0".
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
