package problem

import (
	"fmt"

	"vkattn/internal/enum"
)

// Experiment changes the kernel for a measurement: to show what each step of its
// development gained and where its time goes. It is not for production. The zero value
// is the kernel as shipped.
type Experiment struct {
	Variant int // a step of the ladder, 1 to Variants; 0: the kernel as shipped
	Ablate  Ablation

	// HalfTerms lets tiers coopmat and coopmat2 multiply float32 as terms of float16 instead
	// of bfloat16, so that tests can run their kernel on devices without matrices of
	// bfloat16. Q, K and V must be in float16's range.
	HalfTerms bool

	// Tile changes the tile of the dense forward kernel: a list of field=number, such as
	// "kv_tile=32,group=4", with the names of the tuning cache. Fields without a number keep
	// their value. A tile that the kernel or the device cannot run refuses the tier. Results
	// are correct.
	Tile string

	// BackwardTiles changes tiles of the kernels of gradients: a list of
	// kernel.field=number, such as "q.kv_tile=32,kv.row_tile=48,kv.kv_step=16". The kernel is
	// the last part of its module's name (lse, q, kv, add or bias) and the field is named as
	// in the tuning cache. Fields without a number keep their value. A tile that the kernel
	// or the device cannot run refuses the tier. Results are correct.
	BackwardTiles string

	// ConvertKV says where quantized K and V are converted: 1 in a dispatch in front of the kernel, wherever there can be
	// one, -1 in the kernel; 0: where it takes less time by estimate. Results are correct.
	ConvertKV int
}

// Forward returns e without what only changes the backward kernels.
func (e Experiment) Forward() Experiment {
	e.BackwardTiles = ""
	return e
}

// Variants is the number of steps of the ladder.
const Variants = 8

// variantNames say what each step adds to the one before it.
var variantNames = [Variants + 1]string{
	"as shipped",
	"every tile masked",
	"causal range cut at the row block",
	"unmasked and masked tiles in separate loops",
	"exp2 softmax",
	"tuned tile sizes and launch parameters",
	"tuning that prunes invalid and hopeless candidates first",
	"tensor-layout (block) addressing",
	"alignment hints",
}

// VariantName describes what a step of the ladder adds; for 0, "as shipped". It returns
// "" for a number out of range.
func VariantName(v int) string {
	if v < 0 || v > Variants {
		return ""
	}
	return variantNames[v]
}

// Ablation leaves a part of the work out, to measure what the part costs. The results
// are wrong by design.
type Ablation uint8

// Ablations. The zero value leaves nothing out.
const (
	AblateNone    Ablation = iota
	AblateSoftmax          // no maximum, no exponential, no sum: two matrix products
	AblateBarrier          // no barriers around shared memory
	AblateLoad             // K and V are loaded once
)

var ablationNames = []string{"none", "softmax", "barrier", "load"}

// Ablations lists every ablation, AblateNone first.
func Ablations() []Ablation {
	return []Ablation{AblateNone, AblateSoftmax, AblateBarrier, AblateLoad}
}

// Valid reports whether a is one of the named ablations.
func (a Ablation) Valid() bool { return int(a) < len(ablationNames) }

// String is "none", "softmax", "barrier" or "load".
func (a Ablation) String() string { return enum.Name("Ablation", ablationNames, uint8(a)) }

// ParseAblation reads what String writes, in any case. Another word is an error that
// lists the names and matches [ErrInvalid].
func ParseAblation(s string) (Ablation, error) {
	return enum.Parse[Ablation]("ablation", ablationNames, s)
}

// Validate reports the first field out of range, as a *ShapeError.
func (e Experiment) Validate() error {
	switch {
	case e.Variant < 0 || e.Variant > Variants:
		return &ShapeError{"Variant", e.Variant, fmt.Sprintf("0 to %d", Variants)}
	case !e.Ablate.Valid():
		return &ShapeError{"Ablate", e.Ablate, "none, softmax, barrier or load"}
	}
	return nil
}
