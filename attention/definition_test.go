package attention_test

import (
	"errors"
	"fmt"
	"math"

	"vkattn/attention"
	"vkattn/attention/accuracy"
)

// Weights are how often each key of a row's sequence counts: 0 or 1, more where a
// list has it more than once.
func (p *composed) Weights(b, h, row int) []int {
	rows, keys := p.RowsOf(b), p.KeysOf(b)
	n := make([]int, keys)
	if p.Sparse == keptTokens || p.Sparse == sortedKept {
		for _, token := range p.keptList(b, h/p.Shape.Group()) {
			if token >= 0 && int(token) < keys {
				n[token]++
			}
		}
	} else {
		for key := range n {
			n[key] = 1
		}
	}
	var mask, blocks []bool
	switch p.Sparse {
	case maskBytes:
		mask = p.maskRow(b, h, row)
	case blockBits:
		blocks = p.blockRow(b, h, row/p.BlockQ)
	}
	i := position(p.align(), row, rows, keys)
	for j := range n {
		left, right := p.Window.Left(), p.Window.Right()
		switch {
		case mask != nil && !mask[j],
			blocks != nil && !blocks[j/p.BlockK],
			p.Causal != attention.CausalNone && j > i,
			left >= 0 && j < i-left,
			right >= 0 && j > i+right:
			n[j] = 0
		}
	}
	return n
}

// Define computes a row from the definition in float64: no code is shared with the
// package under test, nor memory read that a call reads.
func (p *composed) Define(b, h, row int) (o []float64, lse float64) {
	group := p.Shape.Group()
	weights := p.Weights(b, h, row)
	var bias []float32
	if p.Bias {
		bias = p.biasRow(b, h, row)
	}
	var slope float64
	if p.ALiBi {
		slope = float64(p.slopes()[h])
	}
	i := position(p.align(), row, p.RowsOf(b), p.KeysOf(b))
	q := p.qRow(b, h, row)
	scale := float64(p.Config(attention.TierCPU).ScaleValue())
	scores := make([]float64, len(weights))
	var sum float64
	most := math.Inf(-1)
	if p.Sinks {
		most = float64(p.sinks()[h])
		sum = 1 // e^(sink - sink)
		if math.IsInf(most, -1) {
			sum = 0
		}
	}
	for j, n := range weights {
		if n == 0 {
			continue
		}
		var s float64
		for d, x := range p.element(ofK, b, h/group, j) {
			s += x * float64(q[d])
		}
		s *= scale
		if p.Softcap != 0 {
			s = float64(p.Softcap) * math.Tanh(s/float64(p.Softcap))
		}
		if bias != nil {
			s += float64(bias[j])
		}
		s -= slope * math.Abs(float64(i-j))
		scores[j] = s
		if s > most {
			sum *= math.Exp(most - s)
			most = s
		}
		if !math.IsInf(s, -1) {
			sum += float64(n) * math.Exp(s-most)
		}
	}
	o = make([]float64, p.Dv)
	if sum == 0 {
		return o, math.Inf(-1)
	}
	for j, n := range weights {
		if n == 0 || math.IsInf(scores[j], -1) {
			continue
		}
		w := float64(n) * math.Exp(scores[j]-most) / sum
		for d, x := range p.element(ofV, b, h/group, j) {
			o[d] += w * x
		}
	}
	return o, most + math.Log(sum)
}

// Judge holds what a call left in O and LSE to the rules of package accuracy, and
// everything else there to be as it was.
func (p *composed) Judge() error {
	v, err := accuracy.Verify(p.Config(attention.TierCPU), p.Args, accuracy.Options{Rows: -1})
	switch {
	case err != nil:
		return err
	case !v.Pass():
		return fmt.Errorf("%v", v)
	case !p.Untouched():
		return errors.New("something besides the rows of O and LSE was written")
	}
	return nil
}

// element is the row of a key, dequantised.
func (p *composed) element(kind, b, kv, key int) []float64 {
	at := [4]int{kind, b, kv, key}
	if x := p.rows[at]; x != nil {
		return x
	}
	_, numbers := p.kvRow(kind, b, kv, key)
	scale := 1.0
	if p.KV.Scaled() {
		scale = float64(p.keyScale(kind, b, kv, key))
	}
	x := make([]float64, len(numbers))
	for i, n := range numbers {
		x[i] = scale * float64(n)
	}
	p.rows[at] = x
	return x
}

func (c *composition) align() attention.Causal { return max(c.Causal, c.Align) }

// position is where a row lies among the keys: bottom-right puts the last row at
// the last key.
func position(align attention.Causal, row, rows, keys int) int {
	if align == attention.BottomRight {
		return row + keys - rows
	}
	return row
}
