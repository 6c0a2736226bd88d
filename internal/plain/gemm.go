package plain

import (
	"vkattn/internal/arith"
	"vkattn/internal/dispatch"
	"vkattn/internal/problem"
	"vkattn/shaders"
	"vkattn/vk"
)

// tile is the tile of the GEMM kernel of a tier, the same for all products.
type tile struct {
	module                 string
	m, n, k                uint32 // of a workgroup's C, and the depth of a step
	subgroupsM, subgroupsN uint32 // tier scalar: 0
	subgroup               uint32
	frag                   vk.CoopMatShape
}

// side is the number of invocations of the scalar kernel along each side of its tile.
const side = 16

func (t *tile) local() uint32 {
	if t.subgroup == 0 {
		return side * side
	}
	return t.subgroup * t.subgroupsM * t.subgroupsN
}

func (t *tile) constants() map[uint32]uint32 {
	c := map[uint32]uint32{shaders.ConstLocalSize: t.local(), shaders.ConstPlainTileM: t.m, shaders.ConstPlainTileN: t.n, shaders.ConstPlainTileK: t.k}
	if t.subgroup > 0 {
		c[shaders.ConstSubgroupSize], c[shaders.ConstPlainSubgroupsM], c[shaders.ConstPlainSubgroupsN] = t.subgroup, t.subgroupsM, t.subgroupsN
		c[shaders.ConstFragM], c[shaders.ConstFragN], c[shaders.ConstFragK] = t.frag.M, t.frag.N, t.frag.K
	}
	return c
}

// chooseTile chooses the largest tile that the device has room for: 128x128 and steps of 32
// on fragments, with 8 subgroups of 32x64 each.
func chooseTile(caps *vk.Caps, cfg problem.Config, s problem.Shape) (tile, error) {
	small := min(s.Sq, s.Sk) < 128 || caps.SubgroupSize < 16
	if cfg.Tier == problem.TierScalar || cfg.Tier.Auto() && cfg.DType == problem.F32 {
		switch {
		case cfg.DType != problem.F32:
			return tile{}, unsupported("plain attention on tier scalar is in f32")
		case caps.Limits.MaxInvocations < side*side:
			return tile{}, unsupported("plain attention needs workgroups of %d invocations", side*side)
		case small || caps.Limits.MaxSharedBytes < 17<<10:
			return tile{module: "plain_gemm_scalar", m: 32, n: 32, k: 16}, nil
		}
		return tile{module: "plain_gemm_scalar", m: 128, n: 128, k: 16}, nil
	}
	if !cfg.Tier.Auto() && cfg.Tier != problem.TierCoopMat && cfg.Tier != problem.TierCoopMat2 {
		return tile{}, unsupported("plain attention has no tier %v", cfg.Tier)
	}
	frag, err := dispatch.LargestFragment(caps, cfg.DType)
	if err != nil {
		return tile{}, err
	}
	t := tile{module: "plain_gemm_coopmat_" + cfg.DType.String(), subgroup: caps.SubgroupSize, frag: frag}
	t.m, t.n, t.k, t.subgroupsM, t.subgroupsN = 128, 128, 32, 4, 2
	if small || t.local() > caps.Limits.MaxInvocations || caps.Limits.MaxSharedBytes < 21<<10 {
		t.m, t.n, t.k, t.subgroupsM, t.subgroupsN = 2*t.frag.M, 2*t.frag.N, 2*t.frag.K, 2, 2
	}
	return t, nil
}

// product is C = alpha A B for heads of every batch. Head h of C sums repeat heads of A and B.
type product struct {
	a, b, c        matrix
	transA, transB bool
	m, n, k        uint32
	heads          int    // of C
	groupB         uint32 // heads that share a head of B; 0: 1
	repeat         uint32 // 0: 1
	alpha          float32
}

// gemmParams is the push constant block of shaders/plain_gemm.glsl.
type gemmParams struct {
	addrA, addrB, addrC    uint64
	batchA, batchB, batchC uint64
	headA, headB, headC    uint32
	rowA, rowB, rowC       uint32
	m, n, k                uint32
	heads                  uint32
	groupA, groupB         uint32
	repeat                 uint32
	alpha                  float32
}

func (o *Op) gemm(s *vk.Stream, p product) error {
	pipeline, err := o.made.Of(o.dev, &o.tile, variant{transA: p.transA, transB: p.transB, dtype: o.cfg.DType})
	if err != nil {
		return err
	}
	push := gemmParams{p.a.addr, p.b.addr, p.c.addr, p.a.batch, p.b.batch, p.c.batch, p.a.head, p.b.head, p.c.head, p.a.row, p.b.row, p.c.row,
		p.m, p.n, p.k, uint32(p.heads), 1, max(p.groupB, 1), max(p.repeat, 1), p.alpha}
	groups := [3]uint32{arith.CeilDiv32(p.n, o.tile.n), arith.CeilDiv32(p.m, o.tile.m), uint32(o.shape.B * p.heads)}
	limits := o.dev.Caps().Limits.MaxWorkGroupCount
	for i, most := range limits {
		if groups[i] > most {
			return unsupported("plain attention: %d workgroups, the device dispatches %d", groups[i], most)
		}
	}
	return s.Dispatch(pipeline, nil, dispatch.ParamBytes(&push, 104), groups, p.a.buffer, p.b.buffer, p.c.buffer)
}
