package attention

import (
	"vkattn/internal/dispatch"
	"vkattn/internal/dropout"
	"vkattn/internal/plan"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// Bindings of the tensors of a call with options. Q, K, V and O are 0 to 3; the others
// have the order of the bindings and addresses in shaders/work_tile_general.glsl.
const (
	bindLSE = 4 + iota
	bindCuQ
	bindCuK
	bindUsedQ
	bindUsedK
	bindTable
	bindALiBi
	bindSinks
	bindBias
	bindMap
	bindKScale
	bindVScale
	bindTokens
)

// bindOptions fills in the tensors and parameters of the call's options.
func (l *launch) bindOptions(a *Args) error {
	cfg, s := &l.op.cfg, &a.Shape
	words := func(i int, v *Vector, n uint64) error {
		if !v.Given() {
			return nil
		}
		return l.bindBuffer(i, v.Buffer, uint64(v.Offset)*4, n*4, 4)
	}
	if cfg.Causal == BottomRight || cfg.Causal == CausalNone && cfg.Align == BottomRight {
		l.params.causalOffset = 1
	}
	if l.options.Lengths&plan.LengthCuQ != 0 {
		l.params.stride[0][0] = uint32(s.B)
	}
	var totalQ, totalK int
	batches := uint64(s.B)
	if v := a.Varlen; v != nil {
		totalQ, totalK = v.TotalQ, v.TotalK
		for _, x := range [4]struct {
			binding int
			v       *Vector
			n       uint64
		}{{bindCuQ, &v.CuQ, batches + 1}, {bindCuK, &v.CuK, batches + 1}, {bindUsedQ, &v.UsedQ, batches}, {bindUsedK, &v.UsedK, batches}} {
			if err := words(x.binding, x.v, x.n); err != nil {
				return err
			}
		}
	}
	if p := a.Pages; p != nil {
		totalK = p.Count
		stride := tensors.TableStride(p, s)
		if err := words(bindTable, &p.Table, batches*uint64(stride)); err != nil {
			return err
		}
		l.params.blockTableStride = uint32(stride)
	}
	if err := words(bindALiBi, &a.ALiBi, uint64(s.Hq)); err != nil {
		return err
	}
	if err := words(bindSinks, &a.Sinks, uint64(s.Hq)); err != nil {
		return err
	}
	if b := a.Bias; b != nil {
		size, steps := uint64(b.DType.Size()), tensors.BiasStrides(b, *s)
		if err := l.bindBuffer(bindBias, b.Buffer, uint64(b.Offset)*size, reachOf(steps, s.Sq, s)*size, size); err != nil {
			return err
		}
		putSteps(&l.params.strideBias, steps)
	}
	switch {
	case a.Mask != nil:
		steps := tensors.MaskStrides(a.Mask, *s)
		if err := l.bindBuffer(bindMap, a.Mask.Buffer, uint64(a.Mask.Offset), reachOf(steps, s.Sq, s), 1); err != nil {
			return err
		}
		putSteps(&l.params.strideMap, steps)
	case a.Blocks != nil:
		rows, n := tensors.BlocksGrid(a.Blocks, s)
		steps := tensors.BlocksStrides(a.Blocks, *s)
		all := uint64(tensors.OrFull(a.Blocks.Batches, s.B)) * uint64(tensors.OrFull(a.Blocks.Heads, s.Hq)) * uint64(rows) * uint64(n)
		if err := words(bindMap, &a.Blocks.Map, all); err != nil {
			return err
		}
		putSteps(&l.params.strideMap, steps)
	case a.SparseTokens != nil:
		if err := words(bindMap, &a.SparseTokens.Offsets, batches*uint64(s.KVHeads())+1); err != nil {
			return err
		}
		if err := words(bindTokens, &a.SparseTokens.Tokens, uint64(a.SparseTokens.Total)); err != nil {
			return err
		}
		l.params.strideMap[2] = uint32(a.SparseTokens.Total)
	}
	if cfg.KV.Scaled() {
		b, keys := tensors.KVExtent(a)
		n := uint64(b) * uint64(s.KVHeads()) * uint64(tensors.ScaleGroups(cfg, keys))
		if err := words(bindKScale, &a.KScale, n); err != nil {
			return err
		}
		if err := words(bindVScale, &a.VScale, n); err != nil {
			return err
		}
	}
	if cfg.Dropout != 0 { // without quantized K and V: there are no scales
		l.params.setDropout(dropout.Of(cfg.Dropout, a.DropoutSeed, a.DropoutOffset))
	}
	l.params.totalQ, l.params.totalK = uint32(totalQ), uint32(totalK)
	if w := cfg.Window; w.Given() {
		l.params.windowLeft, l.params.windowRight = int32(min(w.Left(), plan.MaxWindow)), int32(min(w.Right(), plan.MaxWindow))
	}
	l.params.softcap = l.options.Factors(&l.op.factors).Softcap
	return nil
}

// writeParams writes the parameters to a buffer if the module takes no push constants.
func (l *launch) writeParams(c *vk.Commands) (err error) {
	if l.pushBytes == 0 {
		l.bound[plan.ParamsBinding], err = c.Params(dispatch.ParamBytes(&l.params, plan.GeneralPushBytes))
	}
	return err
}

// putSteps stores strides, which CheckLimits has bounded, as 32-bit parameters.
func putSteps(strides *[3]uint32, steps [3]int64) {
	for i, n := range steps {
		strides[i] = uint32(n)
	}
}

// reachOf returns the number of elements that a broadcast tensor [B, Hq, rows, Sk] spans.
func reachOf(steps [3]int64, rows int, s *Shape) uint64 {
	return uint64(int64(s.B-1)*steps[0] + int64(s.Hq-1)*steps[1] + int64(rows-1)*steps[2] + int64(s.Sk))
}
