package bench

import (
	"fmt"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/internal/hostmem"
)

// Problem is what a row computes. It leaves the tier open.
type Problem struct {
	Shape  attention.Shape
	Config attention.Config // without Tier
	Options
	Suite  string // the suite that it is of, whose table its rows stand in
	Line   string // name of the problem in its suite, if that has names
	Pass   Pass
	LSE    bool // the forward pass returns LSE too; the other passes always take it from there
	Layers int  // calls of a model, whose total a table shows; 0: none
	Ladder bool // each step of the kernel's development runs it
	// Ceiling is set if the problem is a ceiling of the device instead of attention.
	Ceiling Ceiling
}

// Same reports whether two problems are the same, of one suite or of two.
func (p Problem) Same(q Problem) bool {
	q.Suite = p.Suite
	return p == q
}

func (p Problem) String() string {
	switch {
	case p.Ceiling.typed():
		return fmt.Sprintf("%s %v", p.Ceiling, p.Config.DType)
	case p.Ceiling != "":
		return string(p.Ceiling)
	}
	s := fmt.Sprintf("%v %v", p.Config, p.Shape)
	if p.Options != (Options{}) {
		s += " " + p.Options.String()
	}
	if p.LSE {
		s += " with LSE"
	}
	if p.Pass != PassForward {
		s += " " + p.Pass.String()
	}
	return s
}

// row returns a row of the problem without results.
func (p Problem) row(device string) *Row {
	if p.Ceiling != "" {
		return &Row{Device: device, Ceiling: p.Ceiling, Call: fields.Call{DType: p.Config.DType}, problem: p}
	}
	c := p.Config
	row := &Row{Device: device, Call: fields.Of(p.Shape, c), KV: c.KV, Line: p.Line, Pass: p.Pass, LSE: p.LSE, Layers: p.Layers, problem: p}
	if p.Blocks == 0 { // with a block mask group.candidate does it, after a check of memory
		row.KVBytes = p.KVBytes()
	}
	if !p.Plain() || c.FixedSplit != 0 || p.LSE {
		row.OptionText = p.OptionText()
	}
	if p.Options != (Options{}) {
		row.Options = &p.Options
	}
	return row
}

// hasLSE reports whether the forward pass of the problem returns LSE.
func (p Problem) hasLSE() bool { return p.LSE || p.Pass != PassForward }

// tensors are the element counts of Q, K, V and O.
func (p Problem) tensors() (q, k, v, o uint64) {
	s, c := p.Shape, p.Config
	rows, keys := hostmem.Product(s.B, s.Hq, s.Sq), hostmem.Product(s.B, s.KVHeads(), s.Sk)
	d, dv := uint64(c.HeadDim), uint64(c.ValueDim())
	return hostmem.Product(rows, d), hostmem.Product(keys, d), hostmem.Product(keys, dv), hostmem.Product(rows, dv)
}

// TFLOPs is 2*B*Hq*(Dqk+Dv)*cells / ms, in 10^12 per second. cells is the number of
// unmasked (row, col) pairs. A backward pass counts as 2.5 times a forward pass, both as 3.5.
func TFLOPs(p Problem, ms float64) float64 {
	if ms <= 0 {
		return 0
	}
	s, c := p.Shape, p.Config
	flops := 2 * float64(s.Hq) * float64(c.HeadDim+c.ValueDim()) * p.cells() * p.Pass.flops()
	return flops / (ms * 1e-3) / 1e12
}
