package cases

import (
	"fmt"
	"hash/fnv"

	"vkattn/attention"
)

// Target is a tier for one storage type.
type Target struct {
	Tier  attention.Tier
	DType attention.DType
}

// On is the Target of a tier and a storage type.
func On(tier attention.Tier, dtype attention.DType) Target { return Target{tier, dtype} }

// String is such as "coopmat/f16".
func (t Target) String() string { return fmt.Sprintf("%v/%v", t.Tier, t.DType) }

// Case is a problem apart from tier and storage type.
type Case struct {
	D, Dv     int // elements of a row of Q and K, and of V and O
	Causal    attention.Causal
	Scale     attention.Scale
	Shape     attention.Shape
	Layout    LayoutKind
	Data      DataKind
	LSE       bool
	Access    attention.Access // devices only
	Seed      uint64           // 0: from the name
	SampleMax int              // about how many rows the float64 reference is computed for; 0: all
}

// String names everything but the seed, in the form -run takes.
func (c Case) String() string {
	s := fmt.Sprintf("d%d", c.D)
	if c.Dv != c.D {
		s += fmt.Sprintf("v%d", c.Dv)
	}
	s += fmt.Sprintf(".%v.B%d.H%d", c.Causal, c.Shape.B, c.Shape.Hq)
	if kv := c.Shape.KVHeads(); kv != c.Shape.Hq {
		s += fmt.Sprintf("k%d", kv)
	}
	s += fmt.Sprintf(".%dx%d.%v.%v", c.Shape.Sq, c.Shape.Sk, c.Layout, c.Data)
	if !c.Scale.IsDefault() {
		s += ".scale" + c.Scale.String()
	}
	if c.LSE {
		s += ".lse"
	}
	if c.Access != attention.AccessAuto {
		s += "." + c.Access.String()
	}
	return s
}

// SeedValue depends on the problem alone, not on its place in the table.
func (c Case) SeedValue() uint64 {
	if c.Seed != 0 {
		return c.Seed
	}
	h := fnv.New64a()
	fmt.Fprint(h, c.String())
	return h.Sum64()
}

// Config is the Config of the case on a tier.
func (c Case) Config(tt Target) attention.Config {
	cfg := attention.Config{
		DType: tt.DType, HeadDim: c.D, HeadDimV: c.Dv, Causal: c.Causal, Scale: c.Scale, Tier: tt.Tier,
		Tuning: attention.TuningOff, // what this machine was tuned to must not change what is tested
	}
	if tt.Tier != attention.TierCPU {
		cfg.Access = c.Access
	}
	return cfg
}

// Dims are the elements of a row of Q and one of V together.
func (c Case) Dims() int { return c.D + c.Dv }

// Flops is the number of operations, those of masked cells too.
func (c Case) Flops() int64 {
	return 2 * c.Shape.Rows() * int64(c.Shape.Sk) * int64(c.D+c.Dv)
}

// Cost is the work of a case in flops, with what kernels compute beyond the
// last row and key of a tile.
func (c Case) Cost() int64 {
	rows := int64(c.Shape.B) * int64(c.Shape.Hq) * RoundUp(int64(c.Shape.Sq), 16)
	return 2 * rows * RoundUp(int64(c.Shape.Sk), 32) * int64(c.D+c.Dv)
}

// Hidden is the first key that no row attends to.
func (c Case) Hidden() int {
	return c.Causal.Visible(c.Shape.Sq-1, c.Shape.Sq, c.Shape.Sk)
}

// HalfSeen is how many keys the middle row attends to.
func (c Case) HalfSeen() int {
	return c.Causal.Visible((c.Shape.Sq-1)/2, c.Shape.Sq, c.Shape.Sk)
}
