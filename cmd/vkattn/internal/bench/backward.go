package bench

import (
	"context"
	"fmt"
	"strings"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/hostmem"
	"vkattn/internal/inputs"
	"vkattn/internal/problem"
)

// gradients fills in dO and allocates dQ, dK and dV.
func (d *data) gradients(seed uint64) {
	a, t := &d.args, d.problem.Config.DType
	if d.problem.Pass == PassForward {
		return
	}
	a.DO = attention.Tensor{Host: inputs.New(int64(len(a.O.Host)/t.Size()), t, inputs.Normal, seed+4),
		Strides: a.O.Strides}
	a.DQ = attention.Tensor{Host: make([]byte, len(a.Q.Host)), Strides: a.Q.Strides}
	a.DK = attention.Tensor{Host: make([]byte, len(a.K.Host)), Strides: a.K.Strides}
	a.DV = attention.Tensor{Host: make([]byte, len(a.V.Host)), Strides: a.V.Strides}
}

// gradientBytes is the memory of what a backward pass has beyond a forward pass: dO, dQ, dK
// and dV. outputs are those that are read back.
func (p Problem) gradientBytes(o, q, kv uint64) (all, outputs uint64) {
	if p.Pass == PassForward {
		return 0, 0
	}
	outputs = hostmem.Sum(q, kv)
	return hostmem.Sum(outputs, o), outputs
}

// backward prepares a row of a backward pass, or of both.
func (g *group) backward(ctx context.Context, dev *attention.Device, cfg attention.Config, s Spec, row *Row) (*work, *setup,
	error) {
	if s.Experiment.Forward() != (attention.Experiment{}) {
		return nil, nil, fmt.Errorf("%w: only the forward pass has variants and ablations", attention.ErrUnsupported)
	}
	if g.problem.PageSize > 0 || g.problem.Config.KeyType != attention.KVSame {
		return nil, nil, fmt.Errorf("%w: paged and quantized K and V have no gradients", attention.ErrUnsupported)
	}
	op, err := attention.NewExperiment(dev, cfg, s.Experiment)
	if err != nil {
		return nil, nil, err
	}
	g.closers = append(g.closers, op.Close)
	w := &work{op: op, name: g.problem.String()}
	if s.Tier == attention.TierCUDA && dev.Vulkan() != nil && g.problem.Pass == PassBackward && !g.problem.Plain() {
		// Not all forward kernels of tier cuda take the options that those of gradients take.
		other := g.problem.Config
		other.Tier, other.Kernel = attention.TierAuto, ""
		forward, err := attention.New(dev, other)
		if err != nil {
			return nil, nil, err
		}
		g.closers = append(g.closers, forward.Close)
		w.saved = forward
	}
	var scratch uint64
	if g.problem.Plain() {
		// Planned before any memory is allocated: a refused row allocates none.
		plan, err := op.PlanBackward(g.problem.Shape)
		if err != nil {
			return nil, nil, err
		}
		row.backwardPlan(&plan)
		scratch = plan.ScratchBytes
	}
	p, err := g.setup(ctx, dev, "", scratch)
	if err != nil {
		return nil, nil, err
	}
	plan, err := op.PlanBackwardFor(p.runner.args())
	if err != nil {
		return nil, nil, err
	}
	w.cuda = plan.Tier == attention.TierCUDA
	w.planned = func(row *Row, p *setup) error {
		row.backwardPlan(&plan)
		kernels := make([]string, len(plan.Kernels))
		for i, k := range plan.Kernels {
			kernels[i] = k.Kernel
		}
		row.SPIRV, row.SparseRatio = modules(dev.Vulkan(), kernels...), g.problem.sparseRatio()
		return nil
	}
	return w, p, nil
}

// judgeGradients verifies gradients in host memory. Wrong ones set the status of the row.
func (g *group) judgeGradients(row *Row, cfg attention.Config, d *data, out map[string][]byte) error {
	a := d.args
	a.DQ.Host, a.DK.Host, a.DV.Host = out["DQ"], out["DK"], out["DV"]
	v, err := accuracy.VerifyBackward(problem.Config(cfg), a, accuracy.Options{Seed: g.Seed})
	if err != nil {
		return err
	}
	worst, nmse := v.Worst()
	row.Checked = Checked{Rows: v.Rows, Of: g.problem.rows(), Keys: v.Keys, MaxError: Number(worst), NMSE: Number(nmse)}
	if !v.Pass() {
		row.Status, row.Reason = Fail, strings.Join(strings.Fields(v.String()), " ")
	}
	return nil
}

// backwardPlan fills in the fields that the plan of a backward call knows.
func (r *Row) backwardPlan(p *attention.BackwardPlan) {
	r.Tier, r.Tile, r.Memory = p.Tier.String(), BackwardTiles(p), hostmem.Sum(p.Bytes, p.ScratchBytes)
}

// BackwardTiles are the tiles of a backward plan in one word or more: "dQ 64x32, dK dV 32x64".
func BackwardTiles(p *attention.BackwardPlan) string {
	var tiles []string
	for _, k := range p.Kernels {
		if k.Tile != "" && k.Outputs != "LSE" {
			tiles = append(tiles, k.Outputs+" "+k.Tile)
		}
	}
	return strings.Join(tiles, ", ")
}
