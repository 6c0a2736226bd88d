package attention

import (
	"fmt"
	"slices"
)

// Config says what to compute, apart from sizes. It is comparable and can key
// a map. The zero value of each field but HeadDim means something useful.
type Config struct {
	DType    DType  // storage type of Q, K, V and O
	HeadDim  int    // elements of a row of Q and K
	HeadDimV int    // elements of a row of V and O; 0: HeadDim
	Causal   Causal // which keys a row attends to
	Scale    Scale  // factor on Q Kᵀ; zero value: 1/sqrt(HeadDim)
	Tier     Tier   // implementation; zero value: the best available
	Access   Access // how kernels reach tensors; zero value: as the buffers allow
	Tuning   Tuning // how tiles are chosen; zero value: tuned ones where the user's cache has them

	// AllowCUDA lets TierAuto take tier cuda where it can: on an NVIDIA GPU, in a
	// program that imports vkattn/cudapath, for calls of Forward whose buffers are all
	// made with vk.BufferOptions.Exportable (or are CUDA's own memory). What else is
	// asked of the Op runs on the other tiers, whose bits differ.
	AllowCUDA bool
	// Kernel is the family of kernels that TierCUDA uses, one of CUDAKernels; "": the
	// fastest that takes the problem. The Plan says which one that is.
	Kernel string
}

// MaxHeadDim bounds HeadDim and HeadDimV independently; a few larger pairs
// used by decoding with latent attention are accepted besides.
const MaxHeadDim = 256

// wideHeadDims are the (HeadDim, HeadDimV) pairs accepted beyond MaxHeadDim.
var wideHeadDims = [][2]int{{320, 256}, {512, 512}, {576, 512}}

// ValueDim is HeadDimV with its default, HeadDim, filled in.
func (c Config) ValueDim() int {
	if c.HeadDimV == 0 {
		return c.HeadDim
	}
	return c.HeadDimV
}

// ScaleValue is the factor on Q Kᵀ with its default filled in.
func (c Config) ScaleValue() float32 { return c.Scale.Value(c.HeadDim) }

// Validate reports the first field that no tier accepts, as a *ShapeError.
func (c Config) Validate() error {
	switch {
	case !c.DType.Valid():
		return &ShapeError{"DType", c.DType, "f16, bf16 or f32"}
	case !c.Causal.Valid():
		return &ShapeError{"Causal", c.Causal, "none, top-left or bottom-right"}
	case !c.Tier.Valid():
		return &ShapeError{"Tier", c.Tier, "auto, cpu, scalar, coopmat, coopmat2 or cuda"}
	case !c.Access.Valid():
		return &ShapeError{"Access", c.Access, "auto, addresses or descriptors"}
	case !c.Tuning.Valid():
		return &ShapeError{"Tuning", c.Tuning, "auto, off or on"}
	case !slices.Contains(cudaKernels, c.Kernel):
		return &ShapeError{"Kernel", c.Kernel, "fa3, fa2, ref or empty"}
	case c.Kernel != "" && c.Tier != TierCUDA:
		return &ShapeError{"Kernel", c.Kernel + " with tier " + c.Tier.String(), "a kernel of tier cuda only with that tier"}
	case c.HeadDim < 1:
		return &ShapeError{"HeadDim", c.HeadDim, "at least 1"}
	case c.HeadDimV < 0:
		return &ShapeError{"HeadDimV", c.HeadDimV, "at least 1, or 0 for HeadDim"}
	case !c.Scale.finite():
		return &ShapeError{"Scale", c.Scale, "a finite number"}
	}
	if c.HeadDim <= MaxHeadDim && c.ValueDim() <= MaxHeadDim {
		return nil
	}
	for _, p := range wideHeadDims {
		if c.HeadDim == p[0] && c.ValueDim() == p[1] {
			return nil
		}
	}
	return &ShapeError{"HeadDim/HeadDimV", fmt.Sprintf("%d/%d", c.HeadDim, c.ValueDim()),
		"each at most 256, or 320/256, 512/512 or 576/512"}
}

// String is a short form for logs, such as "f16 d128/64 top-left scale 0.5 scalar".
func (c Config) String() string {
	s := fmt.Sprintf("%v d%d", c.DType, c.HeadDim)
	if v := c.ValueDim(); v != c.HeadDim {
		s += fmt.Sprintf("/%d", v)
	}
	if c.Causal != CausalNone {
		s += " " + c.Causal.String()
	}
	if !c.Scale.IsDefault() {
		s += " scale " + c.Scale.String()
	}
	if c.Tier != TierAuto {
		s += " " + c.Tier.String()
	}
	if c.Kernel != "" {
		s += "/" + c.Kernel
	}
	if c.AllowCUDA {
		s += " allow cuda"
	}
	if c.Tuning != TuningAuto {
		s += " tuning " + c.Tuning.String()
	}
	return s
}
