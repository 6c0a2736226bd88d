package ranks

import (
	"fmt"

	"vkattn/attention"
	"vkattn/attention/parallel"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/internal/accuracy"
)

// judgeGradients is judge of dQ, dK and dV: this rank's rows of dQ and keys of dK and dV are
// compared with those of one device, and take their place before the float64 reference.
func (v *verification) judgeGradients(found *finding, mine, one [][]byte) error {
	cfg, p := &v.cfg.Config, &v.problem
	size := cfg.DType.Size()
	list := [3]struct {
		name  string
		spans []parallel.Span
		heads int // of the batch
		rows  int
		bytes int
		diff  *Diff
	}{
		{"dQ", v.rows, p.B * p.Hq, p.Sq, cfg.HeadDim * size, &found.DQ},
		{"dK", v.keys, p.B * p.KVHeads(), p.Sk, cfg.HeadDim * size, &found.DK},
		{"dV", v.keys, p.B * p.KVHeads(), p.Sk, cfg.ValueDim() * size, &found.DV},
	}
	for i := range list {
		x := &list[i]
		x.diff.Max = bench.Number(difference(cfg.DType, mine[i], cut(one[i], x.spans, x.heads, x.rows, x.bytes)))
		paste(one[i], mine[i], x.spans, x.heads, x.rows, x.bytes)
	}
	host := func(b []byte) attention.Tensor { return attention.Tensor{Host: b} }
	n := sizes(cfg, p, v.pass, p.Sq, p.Sk)
	verdict, err := accuracy.VerifyBackward(*cfg, attention.BackwardArgs{
		Args: attention.Args{Shape: p.Shape, Q: host(v.in[0]), K: host(v.in[1]), V: host(v.in[2]),
			O: host(make([]byte, n[tensorO])), LSE: host(make([]byte, n[tensorLSE]))}, // not read
		DO: host(v.in[3]), DQ: host(one[0]), DK: host(one[1]), DV: host(one[2])},
		accuracy.Options{Rows: sampled, Seed: v.seed + uint64(v.Rank())})
	if err != nil {
		return err
	}
	found.Rows = verdict.Rows
	if !verdict.Pass() {
		found.Reasons = append(found.Reasons, verdict.String())
	}
	for i := range list {
		x := &list[i]
		x.diff.Limit = bench.Number(2 * verdict.Gradients[i].Whole.LimMax)
		if !(x.diff.Max <= x.diff.Limit) {
			found.Reasons = append(found.Reasons, fmt.Sprintf("%s differs from one device by %.3g, limit %.3g", x.name, float64(x.diff.Max), float64(x.diff.Limit)))
		}
	}
	return nil
}
