package attention

import (
	"fmt"
	"sync"

	"vkattn/shaders"
	"vkattn/vk"
)

// tile is how a forward kernel cuts up its work. Zero fields belong to the
// other family of kernels.
type tile struct {
	local   uint32 // invocations of a workgroup
	kvTile  uint32 // keys a step
	dvSlice uint32 // columns of O a workgroup owns

	// Cooperative matrices.
	m, n, k         uint32         // fragment shape
	sumN            uint32         // columns of the fragment that sums P along the row; direct: rows
	subgroup        uint32         // invocations of a subgroup
	mFrags          uint32         // fragments of m rows a subgroup owns
	kvStep          uint32         // keys multiplied at a time, of the kvTile in shared memory
	qSmemChunks     uint32         // chunks of k columns of Q in shared memory; the others are in registers
	splitKV         bool           // subgroups have the same rows and share the keys; of features only
	aliasKV         bool           // V takes K's place in shared memory; of features only
	operands        decodeOperands // no shared memory: subgroups walk over the keys each for itself; of features only
	dimSplit        uint32         // direct: subgroups that walk together, each with some of the columns; 0 is 1
	prefetch        uint32         // direct: of the next tile of keys 1 V, 2 K and V are fetched while one is multiplied
	keysPerSubgroup bool           // a subgroup carries keys that are side by side, where they are whole parts (variant.keysPerSubgroup)

	// Scalar kernel.
	blockRows uint32 // query rows of a workgroup
	threadsX  uint32 // invocations along the keys
	chunkD    uint32 // columns of Q and K staged at once
	chunkV    uint32 // keys of V staged at once
}

// rows is the number of query rows a workgroup owns.
func (t tile) rows() uint32 {
	switch {
	case t.operands != noDecodeKernel:
		return t.sumN
	case t.splitKV:
		return t.mFrags * t.m
	case t.subgroup != 0:
		return t.local / t.subgroup * t.mFrags * t.m
	}
	return t.blockRows
}

// parts is how many parts of the keys a workgroup makes.
func (t tile) splits() int {
	if t.splitKV {
		return int(t.local / t.subgroup)
	}
	return 1
}

// String is what plans and benchmark tables print: rows x keys / keys of a step,
// and how the workgroup is divided: fragments, subgroups x fragments of rows, and
// q with the chunks of Q that are in shared memory; shared or direct where subgroups
// share the keys instead of having rows of their own, direct/4 where four share columns, ahead1 or ahead2 where V or all of a tile of keys
// is fetched while the one before is multiplied, own where subgroups carry keys that are side by side.
func (t tile) String() string {
	if t.subgroup != 0 {
		s := fmt.Sprintf("%dx%d/%d %dx%d %dsg%d", t.rows(), t.kvTile, t.kvStep, t.m, t.n, t.local/t.subgroup, t.mFrags)
		if t.qSmemChunks > 0 {
			s += fmt.Sprintf(" q%d", t.qSmemChunks)
		}
		switch {
		case t.splitKV:
			s += " shared"
		case t.dimSplit > 1:
			s += fmt.Sprintf(" direct/%d", t.dimSplit)
		case t.operands != noDecodeKernel:
			s += " direct"
		}
		if t.prefetch > 0 {
			s += fmt.Sprintf(" ahead%d", t.prefetch)
		}
		if t.keysPerSubgroup {
			s += " own"
		}
		return s
	}
	return fmt.Sprintf("%dx%d %dt", t.rows(), t.kvTile, t.local)
}

// variant is everything a forward pipeline depends on, as a value: the key of
// the pipeline and the source of its specialization constants.
type variant struct {
	module     string
	onCPU      bool // the driver runs on the CPU: loops stay loops (shaders.Module.Rolled), subgroups are in lockstep
	tile       tile
	dtype      DType
	headDim    uint32
	headDimV   uint32
	causal     bool
	lse        bool
	align      [4]uint32 // of Q, K, V, O, in elements: 1, 2, 4 or 8
	experiment Experiment
	options    options
}

// constants is the one place where a variant becomes specialization constants.
func (v variant) constants() map[uint32]uint32 {
	c := map[uint32]uint32{
		shaders.ConstLocalSize: v.tile.local,
		shaders.ConstKvTile: v.tile.kvTile,
		shaders.ConstHeadDim:   v.headDim,
		shaders.ConstHeadDimV:  v.headDimV,
		shaders.ConstDvSlice:   v.tile.dvSlice,
		shaders.ConstCausal:    boolConstant(v.causal),
		shaders.ConstHasLse:    boolConstant(v.lse),
		shaders.ConstAlignQ:    v.align[0],
		shaders.ConstAlignK:    v.align[1],
		shaders.ConstAlignV:    v.align[2],
		shaders.ConstAlignO:    v.align[3],
	}
	if v.options.any() {
		v.options.constants(c)
	}
	if v.tile.subgroup != 0 {
		c[shaders.ConstSubgroupSize] = v.tile.subgroup
		c[shaders.ConstSubgroupBarrier] = boolConstant(!v.onCPU)
		c[shaders.ConstFragM] = v.tile.m
		c[shaders.ConstFragN] = v.tile.n
		c[shaders.ConstFragK] = v.tile.k
		c[shaders.ConstSumN] = v.tile.sumN
		c[shaders.ConstMFrags] = v.tile.mFrags
		c[shaders.ConstKvStep] = v.tile.kvStep
		c[shaders.ConstQSmemChunks] = v.tile.qSmemChunks
		if v.options.any() {
			c[shaders.ConstSplitKv] = boolConstant(v.tile.splitKV)
			c[shaders.ConstAliasKv] = boolConstant(v.tile.aliasKV)
			c[shaders.ConstDimSplit] = max(v.tile.dimSplit, 1)
			c[shaders.ConstPrefetch] = v.tile.prefetch
			c[shaders.ConstRegisterOperands] = boolConstant(v.tile.operands == operandsInRegisters)
		}
		c[shaders.ConstCheckKvEnd] = boolConstant(!v.crowded())
		c[shaders.ConstKeysPerSubgroup] = v.keysPerSubgroup()
		v.experiment.change(c)
		return c
	}
	c[shaders.ConstDtype] = uint32(v.dtype)
	c[shaders.ConstQTile] = v.tile.blockRows
	c[shaders.ConstThreadsX] = v.tile.threadsX
	c[shaders.ConstChunkD] = v.tile.chunkD
	c[shaders.ConstChunkV] = v.tile.chunkV
	return c
}

// crowded reports whether the kernel wants more registers than there are. What is
// spilled then is in the way of the comparisons of a checked fetch: without them the
// H200 is 4 % faster at head dim 128 (8x2x32/16 q2) and 26 % at 256 (8x1x32/32), while
// tiles that fit are up to 7 % slower (64, 4x2x64/16).
func (v variant) crowded() bool { return v.tile.excess(v.tile.registers(v)) > 1 }

// keysPerSubgroup is how many keys of a tile a subgroup carries, side by side; 0 where its parts
// are those of any. Where tiles lie in several pages it is so many that always lie in one,
// if they can: an invocation then looks one page up for a tile. Otherwise the tile says
// what is faster.
func (v variant) keysPerSubgroup() uint32 {
	t := v.tile
	subgroups := t.local / t.subgroup
	n := t.kvTile / subgroups
	vecs := func(columns, of uint32) uint32 { return n * ceilDiv(columns, of) * of / 8 }
	if t.operands != noDecodeKernel || t.kvTile%subgroups != 0 ||
		vecs(v.headDim, t.k)%t.subgroup != 0 || vecs(t.dvSlice, t.n)%t.subgroup != 0 {
		return 0
	}
	contiguous := t.keysPerSubgroup
	if page := v.options.pageSize; page%t.kvTile != 0 {
		contiguous = page%n == 0
	}
	if !contiguous {
		return 0
	}
	return n
}

// code is the SPIR-V of v.
func (v variant) code() (*shaders.Module, error) {
	m, err := shaders.Get(v.module)
	if err == nil && v.onCPU {
		m = m.Rolled()
	}
	return m, err
}

// sharedMemory remembers what sharedBytes computed, which takes longer than
// everything else in a plan: decoding plans anew for every length.
var sharedMemory struct {
	sync.RWMutex
	bytes map[variant]uint64
}

// sharedBytes asks the SPIR-V itself how much shared memory v takes.
func (v variant) sharedBytes() (uint64, error) {
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
	r, err := m.Reflect()
	if err != nil {
		return 0, err
	}
	if n, err = r.SharedBytes(v.constants()); err != nil {
		return 0, err
	}
	sharedMemory.Lock()
	defer sharedMemory.Unlock()
	if sharedMemory.bytes == nil {
		sharedMemory.bytes = map[variant]uint64{}
	}
	sharedMemory.bytes[v] = n
	return n, nil
}

// pipeline describes v to the host layer.
func (v variant) pipeline(*Config) (*vk.PipelineDesc, error) {
	m, err := v.code()
	if err != nil {
		return nil, err
	}
	desc, err := describeKernel(m, v.tile.local, v.constants())
	if err != nil {
		return nil, err
	}
	desc.Name = fmt.Sprintf("%s d%d/%d %v", v.module, v.headDim, v.headDimV, v.tile)
	desc.SubgroupSize, desc.FullSubgroups = v.tile.subgroup, v.tile.subgroup != 0
	return desc, nil
}

func boolConstant(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
