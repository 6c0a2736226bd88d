package attention

// KVType is how K and V are stored. The zero value stores them as Q and O are;
// the others are quantised and are turned into the storage type in the kernel.
type KVType uint8

// Storage of K and V. Int8 and FP8 take scales of their own, [Args].KScale and
// VScale: an element is the stored number times its scale. Tiers of cooperative
// matrices never round the product; a scale of V below 2^-96 counts as 2^-96 there.
// The others have a scale for every 32 elements of a row, inside of the row, as
// local inference stores them; HeadDim and HeadDimV are multiples of 32 then.
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

// Scaled reports whether elements have scales outside of the rows.
func (t KVType) Scaled() bool { return t == KVInt8 || t == KVFP8 }

// Blocked reports whether rows are blocks of 32 elements with their scale.
func (t KVType) Blocked() bool { return t == KVQ8_0 || t == KVQ4_0 }

// blockElements are the elements of a block of a Blocked type.
const blockElements = 32

// RowBytes is the number of bytes of so many elements, a multiple of 32 for
// Blocked types; d is the type for KVSame.
func (t KVType) RowBytes(d DType, elements int) int {
	switch t {
	case KVInt8, KVFP8:
		return elements
	case KVQ8_0:
		return elements / blockElements * 34
	case KVQ4_0:
		return elements / blockElements * 18
	}
	return elements * d.Size()
}

// String is "same", "int8", "fp8", "q8_0" or "q4_0".
func (t KVType) String() string { return nameOf("KVType", kvNames, uint8(t)) }

// ParseKVType reads what String writes, in any case. Another word is an error that
// lists the names and matches [ErrInvalid].
func ParseKVType(s string) (KVType, error) {
	v, err := parseName("K/V type", kvNames, s)
	return KVType(v), err
}

// Set makes *KVType a flag.Value.
func (t *KVType) Set(s string) error {
	v, err := ParseKVType(s)
	if err == nil {
		*t = v
	}
	return err
}

// Type names the flag's kind, for flag packages that ask.
func (t KVType) Type() string { return "kv-dtype" }

// MarshalText writes String.
func (t KVType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText is Set.
func (t *KVType) UnmarshalText(text []byte) error { return t.Set(string(text)) }
