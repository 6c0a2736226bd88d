package tests

import (
	"fmt"
	"hash/fnv"

	"vkattn/attention"
)

// testCase is one problem of the table, apart from tier and storage type.
type testCase struct {
	d, dv     int
	causal    attention.Causal
	scale     attention.Scale
	shape     attention.Shape
	layout    layoutKind
	data      dataKind
	lse       bool
	access    attention.Access // devices only
	seed      uint64           // 0: from the name
	sampleMax int              // rows verified; 0: all
}

// String names everything but the seed, in the form -run takes.
func (c testCase) String() string {
	s := fmt.Sprintf("d%d", c.d)
	if c.dv != c.d {
		s += fmt.Sprintf("v%d", c.dv)
	}
	s += fmt.Sprintf(".%v.B%d.H%d", c.causal, c.shape.B, c.shape.Hq)
	if kv := c.shape.KVHeads(); kv != c.shape.Hq {
		s += fmt.Sprintf("k%d", kv)
	}
	s += fmt.Sprintf(".%dx%d.%v.%v", c.shape.Sq, c.shape.Sk, c.layout, c.data)
	if !c.scale.IsDefault() {
		s += ".scale" + c.scale.String()
	}
	if c.lse {
		s += ".lse"
	}
	if c.access != attention.AccessAuto {
		s += "." + c.access.String()
	}
	return s
}

// seedValue depends on the problem alone, not on its place in the table.
func (c testCase) seedValue() uint64 {
	if c.seed != 0 {
		return c.seed
	}
	h := fnv.New64a()
	fmt.Fprint(h, c.String())
	return h.Sum64()
}

// config is the Config of the case on a tier.
func (c testCase) config(tt tierType) attention.Config {
	cfg := attention.Config{
		DType: tt.dtype, HeadDim: c.d, HeadDimV: c.dv, Causal: c.causal, Scale: c.scale, Tier: tt.tier,
		Tuning: attention.TuningOff, // what this machine was tuned to must not change what is tested
	}
	if tt.tier != attention.TierCPU {
		cfg.Access = c.access
	}
	return cfg
}

// flops counts masked cells too.
func (c testCase) flops() int64 {
	return 2 * c.shape.Rows() * int64(c.shape.Sk) * int64(c.d+c.dv)
}

// cost is the work of a case in flops, with what kernels compute beyond the
// last row and key of a tile.
func (c testCase) cost() int64 {
	rows := int64(c.shape.B) * int64(c.shape.Hq) * roundUp(int64(c.shape.Sq), 16)
	return 2 * rows * roundUp(int64(c.shape.Sk), 32) * int64(c.d+c.dv)
}
