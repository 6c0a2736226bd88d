package quant

// Format is a storage type of quantized numbers.
type Format struct {
	Name string

	// Elements and bytes of the smallest unit that is stored: a number, a block of
	// BlockElements numbers with their scale, or a row.
	Elements, Bytes int

	// Encode encodes whole units: len(src) is a multiple of Elements. It returns the scale
	// that the numbers share if it is not in the unit, else 0. Decode decodes whole units, of
	// a row as many elements as dst has, without a scale that is not in the unit. Both panic,
	// like copy loops over slices, if dst or src is too short.
	Encode func(dst []byte, src []float32) (scale float32)
	Decode func(dst []float32, src []byte)

	number  func(x float64) byte // of a type with separate scales: the nearest number, at most largest in magnitude
	largest float64
}

// Scaled reports whether numbers have a scale that is stored elsewhere. A nil Format has none.
func (f *Format) Scaled() bool { return f != nil && f.Elements == 1 }

// Row reports whether a unit is a row of K. A nil Format has none.
func (f *Format) Row() bool { return f != nil && f.Elements > BlockElements }

// Formats lists all formats. Value n of problem.KVType and of the shaders' K_TYPE, V_TYPE and
// CACHE_TYPE is entry n - 1, as is entry n - 1 of the quantized types in internal/simd.
var Formats = []*Format{Int8, FP8, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4NL, FP8E5M2, FP8DSMLA}

// The formats.
var (
	Int8     = scaledFormat("int8", 127, int8Of, decodeInt8)
	FP8      = scaledFormat("fp8", MaxFP8, func(x float64) byte { return FP8FromFloat32(float32(x)) }, decodeFP8)
	FP8E5M2  = scaledFormat("fp8-e5m2", MaxE5M2, func(x float64) byte { return E5M2FromFloat32(float32(x)) }, decodeE5M2)
	FP8DSMLA = &Format{Name: "fp8_ds_mla", Elements: LatentElements, Bytes: latentBytes, Encode: encodeLatent, Decode: decodeLatent}
	Q8_0     = &Format{Name: "q8_0", Elements: BlockElements, Bytes: q8Bytes, Encode: encodeQ8, Decode: decodeQ8}
	Q4_0     = formatOf("q4_0", &blocks{numbers: steps(-8, 7)})
	Q4_1     = formatOf("q4_1", &blocks{numbers: steps(0, 15), hasMin: true})
	Q5_0     = formatOf("q5_0", &blocks{numbers: steps(-16, 15)})
	Q5_1     = formatOf("q5_1", &blocks{numbers: steps(0, 31), hasMin: true})
	IQ4NL    = formatOf("iq4_nl", &blocks{numbers: []float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}})
)
