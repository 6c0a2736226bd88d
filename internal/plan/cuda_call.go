package plan

import (
	"errors"
	"fmt"
	"math"

	"vkattn/internal/dropout"
	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// What kernels of CUDA take of a checked call.

// vectorOf is memory of a call, at an element of a size in bytes.
func vectorOf(t *problem.Tensor, size int64) problem.CUDAVector {
	return problem.CUDAVector{Buffer: t.Buffer, Memory: t.Memory, Offset: uint64(t.Offset * size)}
}

func cudaTensorOf(t *tensors.Layout) problem.CUDATensor {
	return problem.CUDATensor{CUDAVector: vectorOf(&t.Tensor, t.Size), Batch: t.Steps[0], Head: t.Steps[1], Row: t.Steps[2]}
}

// SetCUDACall fills in c for a call with the layouts of its tensors.
func SetCUDACall(c *problem.CUDACall, cfg *problem.Config, factors *ScoreFactors, a *problem.Args, all []tensors.Layout) {
	c.Shape = a.Shape
	c.Hkv = a.KVHeads()
	c.HeadDim, c.HeadDimV = cfg.HeadDim, cfg.ValueDim()
	for i := range c.Tensors {
		c.Tensors[i] = cudaTensorOf(&all[i])
	}
	if len(all) > len(c.Tensors) {
		c.LSE = cudaTensorOf(&all[len(c.Tensors)]).CUDAVector
	}
	switch cfg.Causal {
	case problem.CausalNone:
		c.CausalOffset = problem.NoCausal
	case problem.BottomRight:
		c.CausalOffset = int32(a.Sk - a.Sq)
	}
	f := &factors.Products
	c.Scale, c.ScaleLog2 = cfg.ScaleValue(), f.Scale
	c.UnitHigh, c.UnitLow = f.UnitHigh, f.UnitLow
	c.Left, c.Right, c.BottomRight = cudaWindow(cfg)
	if OptionsOf(a, cfg).Any() {
		setCUDAOptions(c, cfg, factors, a)
	}
	if cfg.KeyType != problem.KVSame {
		setCUDADecode(&c.Decode, cfg, a, all)
	}
}

// broadcastOf is a tensor of an option: steps of batch, head and row, 0 where one entry serves all.
func broadcastOf(t *problem.Tensor, size int, steps [3]int64) problem.CUDATensor {
	return problem.CUDATensor{CUDAVector: vectorOf(t, int64(size)), Batch: steps[0], Head: steps[1], Row: steps[2]}
}

func cudaVector(v problem.Vector) problem.CUDAVector {
	t := v.Tensor()
	return vectorOf(&t, 4)
}

// setCUDAOptions fills in what a call with options has in addition.
func setCUDAOptions(c *problem.CUDACall, cfg *problem.Config, factors *ScoreFactors, a *problem.Args) {
	o := &c.CUDAOptions
	if v := a.Varlen; v != nil {
		o.CuQ, o.CuK, o.UsedQ, o.UsedK = cudaVector(v.CuQ), cudaVector(v.CuK), cudaVector(v.UsedQ), cudaVector(v.UsedK)
		o.TotalQ, o.TotalK = v.TotalQ, v.TotalK
	}
	if p := a.Pages; p != nil {
		o.Table, o.PageSize, o.Pages, o.TableStride = cudaVector(p.Table), p.PageSize, p.Count, tensors.TableStride(p, &a.Shape)
	}
	if k := a.SparseTokens; k != nil {
		if o.Tokens, o.TopK = cudaVector(k.Tokens), k.TopK; k.TopK == 0 {
			o.Offsets, o.TokensTotal = cudaVector(k.Offsets), k.Total
		}
	}
	o.ALiBi, o.Sinks, o.DropoutState = cudaVector(a.ALiBi), cudaVector(a.Sinks), cudaVector(a.DropoutState)
	o.MaxLogits = cudaVector(a.MaxLogits)
	o.ALiBiBatch = tensors.SlopeStride(a)
	if b := a.Bias; b != nil {
		o.Bias, o.BiasType = broadcastOf(&b.Tensor, b.DType.Size(), tensors.BiasStrides(b, a.Shape)), b.DType
	}
	if m := a.Mask; m != nil {
		o.Mask = broadcastOf(&m.Tensor, 1, tensors.MaskStrides(m, a.Shape))
	}
	if o.Dropout = dropout.Of(cfg.Dropout, a.DropoutSeed, a.DropoutOffset); cfg.Dropout != 0 {
		o.DropoutScale = float32(dropout.Scale(cfg.Dropout))
	}
	if o.Changed = cfg.Softcap != 0 || a.ALiBi.Given() || a.Bias != nil; o.Changed {
		f := &factors.Natural
		if o.ScoreScale, o.Softcap = f.Scale, f.Softcap; f.Softcap != 0 {
			o.ScoreScale /= f.Softcap
		}
		c.ScaleLog2 = math.Log2E
		unit := 1 / float64(c.ScaleLog2)
		c.UnitHigh = float32(unit)
		c.UnitLow = float32(unit - float64(c.UnitHigh))
	}
}

// cudaWindow is which keys rows attend to by causal mask and window, and their alignment.
func cudaWindow(cfg *problem.Config) (left, right int32, bottomRight bool) {
	left, right = problem.NoCausal, problem.NoCausal
	if cfg.Causal != problem.CausalNone {
		right = 0
	}
	if w := cfg.Window; w.Given() {
		if w.Left() >= 0 {
			left = int32(w.Left())
		}
		if w.Right() >= 0 {
			right = min(right, int32(w.Right()))
		}
	}
	return left, right, problem.Alignment(cfg) == problem.BottomRight
}

// setCUDADecode fills in what a call with quantized K and V has in addition, but for the splits.
func setCUDADecode(d *problem.CUDADecode, cfg *problem.Config, a *problem.Args, all []tensors.Layout) {
	d.KV, d.Causal, d.UnitBytes = cfg.KeyType, cfg.Causal, all[1].Size
	_, keys := tensors.KVExtent(a)
	scales := tensors.ScaleStepsOf(cfg.KVBlock, a.KVHeads(), keys)
	d.ScaleBatch, d.ScaleHead, d.ScaleKeys = scales.Batch, scales.Head, scales.Keys
	d.KScale, d.VScale = cudaVector(a.KScale), cudaVector(a.VScale)
}

// CUDABackwardCall is a backward call for the kernels of CUDA.
func CUDABackwardCall(cfg *problem.Config, factors *ScoreFactors, a *problem.BackwardArgs, l *tensors.BackwardTensors) problem.CUDABackwardCall {
	c := problem.CUDABackwardCall{Shape: a.Shape, HeadDim: cfg.HeadDim, HeadDimV: cfg.ValueDim(),
		Scale: factors.Natural.Scale, Softcap: factors.Natural.Softcap, Accumulate: a.Accumulate, PartialKeys: a.PartialKeys}
	c.Hkv = a.KVHeads()
	for i, which := range [len(c.Tensors)]int{tensors.BackwardQ, tensors.BackwardK, tensors.BackwardV, tensors.BackwardO, tensors.BackwardDO,
		tensors.BackwardDQ, tensors.BackwardDK, tensors.BackwardDV} {
		if t := l.Tensor(which); t != nil {
			c.Tensors[i] = cudaTensorOf(t)
		}
	}
	c.LSE, c.DLSE = vectorOf(&a.LSE, 4), vectorOf(&a.DLSE, 4)
	if v := a.Varlen; v != nil {
		c.CuQ, c.CuK, c.UsedQ, c.UsedK = cudaVector(v.CuQ), cudaVector(v.CuK), cudaVector(v.UsedQ), cudaVector(v.UsedK)
		c.TotalQ, c.TotalK = v.TotalQ, v.TotalK
	}
	c.Left, c.Right, c.BottomRight = cudaWindow(cfg)
	return c
}

// The plans of a CUDA device without Vulkan, where tier cuda is the only one.

// CUDADevice is a CUDA device without Vulkan.
type CUDADevice struct {
	problem.CUDAChooser
	Name string
}

// checkTier refuses a Config that asks for another tier.
func (d *CUDADevice) checkTier(cfg *problem.Config) error {
	if cfg.Tier != problem.TierCUDA && !cfg.Tier.Auto() {
		return fmt.Errorf("%w: tier %v on %s: a CUDA device that was opened without Vulkan has tier cuda alone", problem.ErrUnsupported, cfg.Tier, d.Name)
	}
	return nil
}

// refused is an error that names what was asked for and the device.
func (d *CUDADevice) refused(err error, what string) error {
	switch {
	case errors.Is(err, vk.ErrUnsupported):
		return fmt.Errorf("%w: %s on %s: %w", problem.ErrUnsupported, what, d.Name, err)
	case err != nil:
		return fmt.Errorf("attention: tier cuda: %w", err)
	}
	return nil
}

// onlyTier is why a plan of such a device takes tier cuda.
const onlyTier = "the tier of a CUDA device"

// Request reads a call's request off its shape or, where l has the layouts of its tensors, off those.
func (d *CUDADevice) Request(cfg *problem.Config, a *problem.Args, l *tensors.Layouts) Request {
	s := a.Shape
	s.Hkv, s.B = s.KVHeads(), max(s.B, 1)
	r := Request{Shape: s, Options: OptionsOf(a, cfg), Access: problem.AccessAddresses, BlockMap: a.BlockMap != nil}
	if l == nil {
		d, dv := cfg.HeadDim, cfg.ValueDim()
		for i, n := range [len(r.Align)]int{d, tensors.AlignedRow(cfg.KeyType, d), tensors.AlignedRow(cfg.ValueType, dv), dv} {
			r.Align[i] = tensors.LargestAlignment(uint64(n))
		}
		r.VInK = MayAliasKV(cfg, &s)
		return r
	}
	r.LSE, r.VInK = a.LSE.Given(), l.VInK()
	r.FarKV = FarKV(l, a)
	const many = 1 << 30                                                                   // rows that kernels count
	if v := a.Varlen; v != nil && (s.Sq <= problem.MaxCUDADecodeRows || v.TotalQ > many) { // another number of rows is another plan
		r.TotalQ = v.TotalQ
	}
	for i := range r.Align {
		r.Align[i] = l.List[i].Alignment(problem.AccessAddresses)
	}
	return r
}

// FarKV reports whether K or V has a stride of rows or pages of 2^32 bytes or more.
func FarKV(l *tensors.Layouts, a *problem.Args) bool {
	far := false
	for i := range l.List[1:3] {
		t := &l.List[1+i]
		far = far || t.Steps[2] > math.MaxUint32/t.Size || a.Pages != nil && t.Steps[0] > math.MaxUint32/t.Size
	}
	return far
}

// MayAliasKV reports whether a shape without tensors stands for calls of latent attention, whose V is the first columns of K.
func MayAliasKV(cfg *problem.Config, s *problem.Shape) bool {
	return s.KVHeads() == 1 && cfg.ValueDim() < cfg.HeadDim
}

// Make decides how a request is computed.
func (d *CUDADevice) Make(cfg *problem.Config, r *Request) (chosen, error) {
	plan := chosen{Plan: problem.Plan{Access: r.Access, Flops: Flops(*cfg, r.Shape), Bytes: tensorBytes(*cfg, r.Shape, r.LSE)}}
	if cfg.ScoreMod.Given() {
		plan.ScoreMod = cfg.ScoreMod.String()
	}
	if cfg.MaskMod.Given() {
		plan.MaskMod = cfg.MaskMod.String()
	}
	if err := d.checkTier(cfg); err != nil {
		return plan, err
	}
	err := plan.chooseCUDA(d, cfg, r, true)
	plan.Reason, plan.Splits = onlyTier, max(plan.Splits, 1)
	return plan, d.refused(err, cfg.String()+" "+r.Shape.String())
}

// BackwardRequest is Request for gradients.
func (d *CUDADevice) BackwardRequest(cfg *problem.Config, a *problem.BackwardArgs, l *tensors.BackwardTensors) BackwardRequest {
	s := a.Shape
	s.Hkv, s.B = s.KVHeads(), max(s.B, 1)
	r := BackwardRequest{Shape: s, Options: BackwardOptionsOf(&a.Args, cfg), Access: problem.AccessAddresses, Accumulate: a.Accumulate, PartialKeys: a.PartialKeys,
		Want: tensors.GradientSet{Q: true, K: true, V: true}}
	if l == nil {
		for i, n := range [...]int{tensors.BackwardQ: cfg.HeadDim, tensors.BackwardV: cfg.ValueDim()} {
			if n > 0 {
				r.Align[i] = tensors.LargestAlignment(uint64(n))
			}
		}
		return r
	}
	r.Want, r.DLSE = l.Want, a.DLSE.Given()
	if v := a.Varlen; v != nil {
		r.TotalQ, r.TotalK = v.TotalQ, v.TotalK
	}
	_ = l.Each(func(i int, t *tensors.Layout) error {
		if i != tensors.BackwardLSE && i != tensors.BackwardDLSE && i < tensors.BackwardDBias {
			r.Align[i] = t.Alignment(problem.AccessAddresses)
		}
		return nil
	})
	return r
}

// MakeBackward decides how a backward request is computed.
func (d *CUDADevice) MakeBackward(cfg *problem.Config, r *BackwardRequest) (chosenBackward, error) {
	plan := chosenBackward{BackwardPlan: problem.BackwardPlan{Access: r.Access, Flops: hostmem.Product(Flops(*cfg, r.Shape)/2, 5), Bytes: backwardBytesOf(cfg, r)}}
	plan.setModifiers(cfg, r)
	if err := d.checkTier(cfg); err != nil {
		return plan, err
	}
	err := plan.chooseCUDA(d, cfg, r, true)
	plan.Reason = onlyTier
	return plan, d.refused(err, fmt.Sprintf("gradients of %v %v", *cfg, r.Shape))
}
