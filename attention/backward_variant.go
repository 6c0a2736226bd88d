package attention

import (
	"fmt"

	"vkattn/shaders"
	"vkattn/vk"
)

// backwardKernel is one of the kernels of a backward call.
type backwardKernel uint8

// The kernels, in the order in which they are recorded.
const (
	kernelStats  backwardKernel = iota // LSE and delta of each row
	kernelLSE                          // what float32 rounds off LSE
	kernelDQ                           // dQ
	kernelDKDV                         // dK and dV
	kernelDBias                        // dBias
	kernelDSinks                       // dSinks
	backwardKernels
)

// backwardKernelNames are the parts of module names that name the kernels.
var backwardKernelNames = [backwardKernels]string{"delta", "lse", "q", "kv", "bias", "sinks"}

// backwardLocal is the workgroup size of the kernels of row statistics and of dSinks, which
// every device has.
const backwardLocal = 128

// backwardVariant is everything that a backward pipeline depends on, as a value.
type backwardVariant struct {
	kernel     backwardKernel
	module     string
	onCPU      bool         // as variant.onCPU
	tile       backwardTile // zero: the kernel has none
	dtype      DType
	headDim    uint32
	headDimV   uint32
	causal     bool
	align      [backwardTensors]uint32 // in elements; 0 of tensors that the kernel does not reach
	dLSE       bool
	accumulate bool
	dK, dV     bool // with kernelDKDV: the outputs
	sumQueries bool // with kernelDBias: the bias has one row
	fourStats  bool // with kernelStats and kernelDSinks: see shaders/backward_stats.glsl
	options    options
}

func (v *backwardVariant) tiled() bool { return v.tile != backwardTile{} }

// invocations returns the workgroup size.
func (v *backwardVariant) invocations() uint32 {
	if v.tiled() {
		return v.tile.invocations()
	}
	return backwardLocal
}

// lanesPerRow returns how many invocations of the kernel of row statistics share a row:
// each has eight columns, so that their sums are added in the order of the tile product.
func (v *backwardVariant) lanesPerRow() uint32 {
	n := uint32(1)
	for n*8 < v.headDimV {
		n *= 2
	}
	return n
}

// constants returns the specialization constants of a variant. No other code makes them.
func (v *backwardVariant) constants() map[uint32]uint32 {
	c := map[uint32]uint32{shaders.ConstLocalSize: v.invocations()}
	if v.tiled() {
		tileConstants(v.tile, c)
	}
	v.options.constants(c)
	align := func(id uint32, tensor int) {
		if v.align[tensor] != 0 {
			c[id] = v.align[tensor]
		}
	}
	align(shaders.ConstAlignQ, tensorQ)
	align(shaders.ConstAlignK, tensorK)
	align(shaders.ConstAlignV, tensorV)
	align(shaders.ConstAlignO, tensorO)
	align(shaders.ConstAlignDo, tensorDO)
	align(shaders.ConstAlignDv, tensorDV)
	align(shaders.ConstAlignDx, tensorDQ)
	align(shaders.ConstAlignDx, tensorDK)
	c[shaders.ConstDtype] = uint32(v.dtype)
	c[shaders.ConstHeadDim], c[shaders.ConstHeadDimV] = v.headDim, v.headDimV
	c[shaders.ConstCausal] = boolConstant(v.causal)
	c[shaders.ConstLanesPerRow] = v.lanesPerRow()
	c[shaders.ConstHasDlse] = boolConstant(v.dLSE)
	c[shaders.ConstAccumulate] = boolConstant(v.accumulate)
	c[shaders.ConstHasDk], c[shaders.ConstHasDv] = boolConstant(v.dK), boolConstant(v.dV)
	c[shaders.ConstSumQueries] = boolConstant(v.sumQueries)
	c[shaders.ConstFourStats] = boolConstant(v.fourStats)
	return c
}

// code returns the SPIR-V of v, in its rolled form for drivers on the CPU.
func (v *backwardVariant) code() (*shaders.Module, error) {
	m, err := shaders.Get(v.module)
	if err == nil && v.onCPU {
		m = m.Rolled()
	}
	return m, err
}

// sharedBytes computes from the SPIR-V how much shared memory a workgroup of v takes.
func (v *backwardVariant) sharedBytes() (uint64, error) {
	m, err := v.code()
	if err != nil {
		return 0, err
	}
	r, err := m.Reflect()
	if err != nil {
		return 0, err
	}
	return r.SharedBytes(v.constants())
}

// pipeline describes v to package vk.
func (v backwardVariant) pipeline(*Config) (*vk.PipelineDesc, error) {
	m, err := v.code()
	if err != nil {
		return nil, err
	}
	desc, err := describeKernel(m, v.invocations(), v.constants())
	if err != nil {
		return nil, err
	}
	desc.Name = fmt.Sprintf("%s %v d%d/%d", v.module, v.dtype, v.headDim, v.headDimV)
	if v.tiled() {
		desc.Name += " " + v.tile.String()
	}
	return desc, nil
}

// forKernel returns v for one kernel of its call: with what that kernel depends on, and
// nothing else, so that calls share pipelines.
func (v backwardVariant) forKernel(k backwardKernel) backwardVariant {
	v.kernel = k
	sinks := v.options.sinks
	v.options.sinks = false // they are in LSE
	keep := func(tensors ...int) {
		var align [backwardTensors]uint32
		for _, t := range tensors {
			align[t] = v.align[t]
		}
		v.align = align
	}
	if k != kernelStats {
		v.dLSE = false
	}
	if k != kernelStats && k != kernelDSinks {
		v.fourStats = false
	}
	if k != kernelDQ && k != kernelDKDV {
		v.accumulate = false
	}
	if k != kernelDKDV {
		v.dK, v.dV = false, false
	}
	if k != kernelDBias {
		v.sumQueries = false
	}
	switch k {
	case kernelStats:
		keep(tensorO, tensorDO)
		v.causal, v.options, v.headDim = false, options{}, v.headDimV
	case kernelLSE:
		keep(tensorQ, tensorK, tensorV, tensorDO)
		v.options.sinks = sinks
	case kernelDQ:
		keep(tensorQ, tensorK, tensorV, tensorDO, tensorDQ)
	case kernelDKDV:
		dX, dV := v.align[tensorDK], v.align[tensorDV]
		keep(tensorQ, tensorK, tensorV, tensorDO)
		if v.dK {
			v.align[tensorDK] = dX
		}
		if v.dV {
			v.align[tensorDV] = dV
		}
	case kernelDBias:
		keep(tensorQ, tensorK, tensorV, tensorDO)
		v.options.packRows = 0
	case kernelDSinks:
		keep()
		v.causal, v.dtype, v.headDim, v.headDimV = false, 0, 1, 1
		v.options = options{lengths: v.options.lengths & (lengthCuQ | lengthUsedQ)}
	}
	return v
}
