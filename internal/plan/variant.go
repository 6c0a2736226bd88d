package plan

import (
	"encoding/hex"
	"fmt"
	"sync"

	"vkattn/attention/score"
	"vkattn/internal/dispatch"
	"vkattn/internal/problem"
	"vkattn/shaders"
	"vkattn/vk"
)

// Variant is everything that a forward pipeline depends on, as a value. It is the key of
// the pipeline and the source of its specialization constants.
type Variant struct {
	module     string
	onCPU      bool   // the driver runs on the CPU: loops stay loops (shaders.Module.Rolled), subgroups are in lockstep
	ordered    bool   // f32Tile: accumulators and operands A have one order of elements
	rowRun     uint32 // coopmatTile and f32Tile with a float32 row sum: see rowElements
	Tile       tile
	dtype      problem.DType
	headDim    uint32
	headDimV   uint32
	causal     bool
	lse        bool
	align      [4]uint32 // of Q, K, V, O, in elements: 1, 2, 4 or 8
	Experiment problem.Experiment
	Options    Options
	modifiers  score.Modifiers // in place of the module's own
}

// constants returns the specialization constants of a variant. No other code makes them.
func (v Variant) constants() map[uint32]uint32 {
	c := map[uint32]uint32{
		shaders.ConstHeadDim:  v.headDim,
		shaders.ConstHeadDimV: v.headDimV,
		shaders.ConstCausal:   dispatch.BoolConstant(v.causal),
		shaders.ConstHasLse:   dispatch.BoolConstant(v.lse),
		shaders.ConstAlignQ:   v.align[0],
		shaders.ConstAlignK:   v.align[1],
		shaders.ConstAlignV:   v.align[2],
		shaders.ConstAlignO:   v.align[3],
	}
	tileConstants(v.Tile, c)
	if v.Options.Any() {
		v.Options.constants(c)
	}
	switch t := v.Tile.(type) {
	case scalarTile:
		c[shaders.ConstDtype] = uint32(v.dtype)
	case coopmatTile:
		c[shaders.ConstSubgroupBarrier] = dispatch.BoolConstant(!v.onCPU)
		c[shaders.ConstCheckKvEnd] = dispatch.BoolConstant(!t.crowded(&v))
		c[shaders.ConstKeysPerSubgroup] = t.keysPerSubgroup(&v)
		c[shaders.ConstRowElements] = v.rowRun
		changeConstants(v.Experiment, c)
	case f32Tile:
		c[shaders.ConstSubgroupBarrier] = dispatch.BoolConstant(!v.onCPU)
		c[shaders.ConstCheckKvEnd] = 1 - t.Unchecked
		c[shaders.ConstTermsInSmem] = dispatch.BoolConstant(!v.ordered)
		c[shaders.ConstRowElements] = v.rowRun
		c[shaders.ConstPairGroup] = max(t.PairGroup, 1) // of a loop that does not exist too: it is the length of an array
		c[shaders.ConstAblate] = uint32(v.Experiment.Ablate)
	case decodeTile:
		c[shaders.ConstSubgroupBarrier] = dispatch.BoolConstant(!v.onCPU)
		c[shaders.ConstRegisterOperands] = dispatch.BoolConstant(t.Operands == operandsInRegisters)
	}
	return c
}

// askDevice fills in what v needs to know of the order of a fragment's elements.
func (v *Variant) askDevice(dev *vk.Device) {
	switch t := v.Tile.(type) {
	case coopmatTile:
		if v.lse || v.Options.Any() { // options have splits, whose partial states have LSE, or sinks
			v.rowRun = rowElements(dev, v.dtype, t.fragment)
		}
	case f32Tile:
		of := termType(v.Experiment.HalfTerms)
		v.ordered, v.rowRun = accumulatorIsOperandA(dev, of, t.fragment), rowElements(dev, of, t.fragment)
	}
}

// crowded reports whether the kernel needs more registers than there are. Spilled
// registers slow down the comparisons of a checked fetch. Without them the H200 is 4 %
// faster at head dim 128 (8x2x32/16 q2) and 26 % at 256 (8x1x32/32), while tiles that fit
// in registers are up to 7 % slower (head dim 64, 4x2x64/16).
func (t coopmatTile) crowded(v *Variant) bool { return excess(t, t.registers(v)) > 1 }

// code returns the SPIR-V of v.
func (v Variant) code() (*shaders.Module, error) {
	m, err := codeOf(v.module, v.onCPU)
	if err == nil {
		m, err = m.Modified(v.modifiers)
	}
	return m, err
}

// codeOf returns the SPIR-V of a module, in its rolled form for drivers on the CPU.
func codeOf(module string, onCPU bool) (*shaders.Module, error) {
	m, err := shaders.Get(module)
	if err == nil && onCPU {
		m = m.Rolled()
	}
	return m, err
}

// hashOf returns the hash of a module as the tuning cache stores it, "" without the module.
func hashOf(m *shaders.Module, err error) string {
	if err != nil {
		return ""
	}
	return hex.EncodeToString(m.Hash[:])
}

// sharedBytesOf computes from the SPIR-V how much shared memory a workgroup takes with the given
// specialization constants.
func sharedBytesOf(m *shaders.Module, constants map[uint32]uint32) (uint64, error) {
	r, err := m.Reflect()
	if err != nil {
		return 0, err
	}
	return r.SharedBytes(constants)
}

// sharedMemory caches the results of sharedBytes, which takes longer than the rest of a
// plan. Decode plans anew for every length.
var sharedMemory struct {
	sync.RWMutex
	bytes map[Variant]uint64
}

// sharedBytes computes from the SPIR-V how much shared memory a workgroup of v takes.
func (v Variant) sharedBytes() (uint64, error) {
	sharedMemory.RLock()
	n, known := sharedMemory.bytes[v]
	sharedMemory.RUnlock()
	if known {
		return n, nil
	}
	m, err := v.code()
	if err != nil {
		return 0, err
	}
	if n, err = sharedBytesOf(m, v.constants()); err != nil {
		return 0, err
	}
	sharedMemory.Lock()
	defer sharedMemory.Unlock()
	if sharedMemory.bytes == nil {
		sharedMemory.bytes = map[Variant]uint64{}
	}
	sharedMemory.bytes[v] = n
	return n, nil
}

// Pipeline describes v to package vk.
func (v Variant) Pipeline(*problem.Config) (*vk.PipelineDesc, error) {
	m, err := v.code()
	if err != nil {
		return nil, err
	}
	desc, err := dispatch.DescribeKernel(m, v.Tile.LocalSize(), v.constants())
	if err != nil {
		return nil, err
	}
	desc.Name = fmt.Sprintf("%s d%d/%d %v", v.module, v.headDim, v.headDimV, v.Tile)
	desc.SubgroupSize = v.Tile.SubgroupSize()
	desc.FullSubgroups = desc.SubgroupSize != 0
	return desc, nil
}

// Describe returns the tile of v in full: tile.describe and the columns of a slice of O.
func (v Variant) Describe() string {
	if v.Slices() > 1 {
		return fmt.Sprintf("%s dv%d", v.Tile.describe(), v.Tile.columns())
	}
	return v.Tile.describe()
}

// SPIRV returns the hash of v's module as the tuning cache stores it.
func (v Variant) SPIRV() string { return hashOf(v.code()) }

// RowReach bounds the rows, counted from the first row of a tile, that a kernel addresses
// with 32-bit offsets.
func (v *Variant) RowReach() uint32 { return max(v.Tile.Rows(), v.Tile.keys()) + 1 }
