package attention

import (
	"vkattn/attention/score"
	"vkattn/internal/dispatch"
	"vkattn/internal/dropout"
	"vkattn/internal/plan"
	"vkattn/internal/problem"
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

	bindTables = plan.GeneralBindings // the first table
)

// optionBindings are the bindings of the memory of options, in the kernels of the forward and of the backward pass; 0: it
// has none, and what it holds reaches these kernels in another way or not at all.
var optionBindings = [tensors.OptionTensors]struct{ forward, backward int }{
	tensors.CuQ:           {bindCuQ, bwdCuQ},
	tensors.CuK:           {bindCuK, bwdCuK},
	tensors.UsedQ:         {bindUsedQ, bwdUsedQ},
	tensors.UsedK:         {bindUsedK, bwdUsedK},
	tensors.PageTable:     {bindTable, 0},
	tensors.SparseOffsets: {bindMap, bwdMap},
	tensors.SparseTokens:  {bindTokens, bwdTokens},
	tensors.BlockMap:      {bindMap, bwdMap},
	tensors.Bias:          {bindBias, bwdBias},
	tensors.Mask:          {bindMap, bwdMap},
	tensors.ALiBi:         {bindALiBi, bwdALiBi},
	tensors.Sinks:         {bindSinks, 0},
	tensors.KScale:        {bindKScale, 0},
	tensors.VScale:        {bindVScale, 0},

	tensors.FirstTable: {bindTables, bwdTables}, tensors.FirstTable + 1: {bindTables + 1, bwdTables + 1},
	tensors.FirstTable + 2: {bindTables + 2, bwdTables + 2}, tensors.FirstTable + 3: {bindTables + 3, bwdTables + 3},
}

// masksList reports whether a call has a mask and also blocks or sparse tokens, which then take the bias's binding.
func masksList(a *Args) bool { return a.Mask != nil && (a.Blocks != nil || a.SparseTokens != nil) }

// optionStrides are the parameters for the strides of tensors of options.
type optionStrides struct {
	bias, mask *[3]uint32
	masksList  bool // as the function
	topK       int  // of sparse tokens
}

func newOptionStrides(a *Args, bias, mask *[3]uint32) optionStrides {
	s := optionStrides{bias: bias, mask: mask, masksList: masksList(a)}
	if a.SparseTokens != nil {
		s.topK = a.SparseTokens.TopK
	}
	return s
}

// binding is the binding of the memory of an option, in the place of the mask or of the bias.
func (s optionStrides) binding(which tensors.OptionTensor, of, bias int) int {
	if s.masksList && (which == tensors.BlockMap || which == tensors.SparseOffsets) {
		return bias
	}
	return of
}

// set stores the strides of a tensor, which CheckLimits has bounded. Blocks and sparse tokens come before the mask, in whose
// place they are: of sparse tokens it stores their number, or TopK, behind the two words of their address. In a call with a mask as well
// they move to the bias's place.
func (s optionStrides) set(which tensors.OptionTensor, t *tensors.Layout) {
	switch which {
	case tensors.Bias:
		*s.bias = [3]uint32{uint32(t.Steps[0]), uint32(t.Steps[1]), uint32(t.Steps[2])}
	case tensors.Mask:
		if s.masksList {
			*s.bias = *s.mask
		}
		fallthrough
	case tensors.BlockMap:
		*s.mask = [3]uint32{uint32(t.Steps[0]), uint32(t.Steps[1]), uint32(t.Steps[2])}
	case tensors.SparseTokens:
		if s.mask[2] = uint32(t.Dim); s.topK != 0 {
			s.mask[2] = uint32(s.topK)
		}
	}
}

// bindOptions fills in the tensors and parameters of the call's options.
func (l *launch) bindOptions(a *Args) error {
	cfg, p := &l.op.cfg, &l.params
	strides := newOptionStrides(a, &p.strideBias, &p.strideMap)
	var t tensors.Layout
	err := tensors.EachOption(cfg, a, &t, func(which tensors.OptionTensor) error {
		strides.set(which, &t)
		binding := strides.binding(which, optionBindings[which].forward, bindBias)
		return l.bindBuffer(binding, t.Tensor.Buffer, uint64(t.Tensor.Offset*t.Size), t.SpanBytes(), uint64(t.Size))
	})
	if err != nil {
		return err
	}
	setTables(&p.tables, cfg, a)
	n := &l.op.numbers
	p.causalOffset, p.windowLeft, p.windowRight = n.CausalOffset, n.WindowLeft, n.WindowRight
	if l.options.Lengths&plan.LengthCuQ != 0 {
		p.stride[0][0] = uint32(a.B)
	}
	p.totalQ, p.totalK = 0, 0
	if v := a.Varlen; v != nil {
		p.totalQ, p.totalK = uint32(v.TotalQ), uint32(v.TotalK)
	}
	if a.Pages != nil {
		p.totalK, p.blockTableStride = uint32(a.Pages.Count), uint32(tensors.TableStride(a.Pages, &a.Shape))
	}
	if cfg.Dropout != 0 { // without quantized K and V: there are no scales
		p.setDropout(dropout.Of(cfg.Dropout, a.DropoutSeed, a.DropoutOffset))
	}
	p.softcap = l.options.Factors(&l.op.factors).Softcap
	return nil
}

// setTables stores the sizes of the tables of modifiers.
func setTables(params *[score.MaxTables][4]int32, cfg *problem.Config, a *problem.Args) {
	for i := range tensors.Tables(cfg) {
		for axis, n := range tensors.TableDims(cfg, a, i) {
			params[i][1+axis] = int32(n)
		}
	}
}

// writeParams writes the parameters to a buffer if the module takes no push constants, and otherwise those of tables, which are
// none.
func (l *launch) writeParams(c *vk.Commands) (err error) {
	switch {
	case l.pushBytes == 0:
		l.bound[plan.ParamsBinding], err = c.Params(dispatch.ParamBytes(&l.params, plan.GeneralParamBytes))
	case l.tables > 0:
		l.bound[plan.ParamsBinding], err = c.Params(dispatch.ParamBytes(&l.params.tables, 16*len(l.params.tables)))
	}
	return err
}
