package cudapath

import (
	"fmt"
	"math"

	"vkattn/attention"
	"vkattn/internal/problem"
)

// Latent attention: kernels/latent.cu, for one KV head whose V is the first columns of K.

const (
	// latentStateBytes is the size of a LatentState of kernels/latent_work.h: O of a row tile, row max and row sum. latentSplitBytes is that
	// of a LatentSplit.
	latentStateBytes = 4 * latentRows * (latentColumns + 2)
	latentSplitBytes = 32
	latentRows       = 64
	latentColumns    = 512
	latentKeys       = problem.LatentKeys
	// Of kernels/latent_combine.h: threads of a group, the most groups, shared memory with one group and with several, and CTAs of
	// a row tile.
	combineThreads  = 128
	combineGroups   = 8
	combineOneGroup = 4096
	combineShared   = 68608
	combineChunks   = 16
	// wholeLists: parts have whole token lists where the longest part then has at most an eighth more than the mean.
	wholeLists      = 8
	maxLatentLength = 1 << 29 // so that sums of positions fit 32 bits
)

// latent returns the kernel of latent attention for a problem, or the reason why it does not take it. Without a kernel for the head
// dims both are empty.
func (t *table) latent(d *DeviceInfo, p *problem.CUDAProblem) (k *Kernel, why string) {
	some := false
	for i := range t.kernels {
		e := &t.kernels[i]
		if !e.Latent || e.KV != latentRowsOf(p.KV) || e.Tokens != p.Tokens || e.Offsets != p.Offsets || e.D != p.HeadDim || e.DV != p.HeadDimV {
			continue
		}
		if some = true; e.DType == p.DType.String() {
			k = e
		}
	}
	switch {
	case !some:
		return nil, ""
	case k == nil:
		return nil, "latent attention: there is none for " + p.DType.String()
	case p.NotLatent != "":
		return nil, "latent attention: it takes no " + p.NotLatent
	case p.Align < alignment:
		return nil, fmt.Sprintf("latent attention: offsets and strides have to be multiples of %d elements, these are of %d", alignment, p.Align)
	case len(k.Maps) > 0 && p.PageSize > 0 && p.PageSize%latentKeys != 0 && (latentKeys%p.PageSize != 0 || p.PageSize < 8):
		return nil, fmt.Sprintf("latent attention: a page size of %d, it takes 8, 16, 32 and multiples of %d", p.PageSize, latentKeys)
	}
	if why := t.limits(k, d, p); why != "" {
		return nil, why
	}
	return k, ""
}

// latentRowsOf is Kernel.KV of kernels of latent attention that take K of a type.
func latentRowsOf(kv attention.KVType) string {
	if kv == attention.KVSame {
		return ""
	}
	return kv.String()
}

// latentLimits says which 32-bit number of the kernel a shape exceeds.
func (k *Kernel) latentLimits(p *problem.CUDAProblem) string {
	s := &p.Shape
	tiles := uint64(s.B) * (uint64(s.Sk)/latentKeys + 1)
	if k.Tokens { // all lists have at most 2^30 entries
		tiles = max(uint64(s.B)*uint64(s.Sq), p.Rows)
	}
	switch {
	case max(s.Sq, s.Sk) > maxLatentLength:
		return fmt.Sprintf("Sq %d and Sk %d: it takes at most 2^29", s.Sq, s.Sk)
	case uint64(s.Sq)*uint64(s.Hq) > math.MaxInt32-latentRows:
		return fmt.Sprintf("%d rows of all heads, it takes at most %d", uint64(s.Sq)*uint64(s.Hq), math.MaxInt32-latentRows)
	case tiles > problem.MaxLatentTiles:
		return fmt.Sprintf("%d KV tiles or token lists of all sequences, it takes at most 2^29", tiles)
	}
	return ""
}

// latentGrid is how a call of latent attention is divided: row tiles, parts of the keys of all sequences, and CTAs. One CTA runs on
// a multiprocessor.
type latentGrid struct{ rowTiles, parts, ctas int }

func (k *kernel) latentGrid(s *attention.Shape) latentGrid {
	g := latentGrid{rowTiles: latentRowTiles(s, k.Tokens)}
	g.parts = max(k.c.info.SMs/g.rowTiles, 1)
	g.ctas = min(g.rowTiles*g.parts, k.c.info.SMs)
	return g
}

// latentRowTiles is the row tiles of a sequence, or with token lists of a query.
func latentRowTiles(s *attention.Shape, tokens bool) int {
	rows := s.Sq * s.Hq
	if tokens {
		rows = s.Hq
	}
	return max((rows+latentRows-1)/latentRows, 1)
}

// setLatent fills in what kernels of latent attention have in addition to setOptions. Strides of rows of a type are bytes.
func (p *latentParams) setLatent(a *problem.CUDACall) {
	p.topK, p.entries = int32(a.TopK), int32(a.TokensTotal)
	if a.Decode.KV.Latent() {
		p.k.batch, p.k.row = p.k.batch*a.Decode.UnitBytes, p.k.row*a.Decode.UnitBytes
	}
}

// latentAlignment is that of K's address for kernels that copy rows of a type.
const latentAlignment = 16

// setParts divides a call. It returns the number of sequences, or with token lists that of queries.
func (p *latentParams) setParts(s *attention.Shape, parts int) (sequences int) {
	p.b, p.parts, p.whole = int32(s.B), int32(parts), 0
	if p.offsets != 0 { // a list is a part
		p.whole = 1
	}
	if p.tokens == 0 {
		return s.B
	}
	lists := s.B * s.Sq
	if p.cuQ != 0 {
		lists = int(p.totalQ)
	}
	if longest := (lists + parts - 1) / parts; wholeLists*longest*parts <= (wholeLists+1)*lists {
		p.whole = 1
	}
	return lists
}

// workspace is the size of the workspace of a forward call.
func (k *kernel) workspace(s *attention.Shape) uint64 {
	if !k.Latent || k.Offsets {
		return 0
	}
	return k.latentGrid(s).workspace()
}

// workspace is two states of each row tile and a LatentSplit for each part. A single part has all sequences.
func (g latentGrid) workspace() uint64 {
	if g.parts == 1 {
		return 0
	}
	return uint64(g.parts) * (2*uint64(g.rowTiles)*latentStateBytes + latentSplitBytes)
}

// combineGroupsOf is the groups of threads of the combine kernel, by the mean of the parts of a sequence.
func combineGroupsOf(parts, sequences int) int {
	return min(max(parts/max(sequences, 1)/4, 1), combineGroups)
}

// latentMap describes K for its tensor map: rows of pages, of all packed sequences, or of a sequence. box is the rows of a copy.
func latentMap(p *generalParams, s *attention.Shape) (k mappedTensor, batches, box int) {
	k, batches, box = mappedTensor{p.k.base, p.k.batch, p.k.head, p.k.row, int(p.d), s.Sk, 1, false}, s.B, latentKeys
	switch {
	case p.table != 0:
		k.rows, batches, box = int(p.pageSize), int(p.pages), min(box, int(p.pageSize))
	case p.cuK != 0:
		k.rows, k.packed = int(p.totalK), true
	}
	return k, batches, box
}

// launchLatent launches a kernel of latent attention, and the one that combines splits.
func (k *kernel) launchLatent(s *Stream, v *invocation) error {
	p, g := &v.params, k.latentGrid(&v.shape)
	sequences := p.setParts(&v.shape, g.parts)
	tensor, batches, box := latentMap(&p.generalParams, &v.shape)
	if tensor.rows < 1 || batches < 1 { // no copy reads it
		tensor.base, tensor.rows, batches = p.q.base&^15, max(tensor.rows, 1), max(batches, 1)
	}
	if err := k.setMaps(&v.call, []mappedTensor{{}, tensor}, batches); err != nil {
		return err
	}
	v.call.maps[0].box[1] = uint32(box)
	v.call.grid = [3]uint32{uint32(g.ctas), 1, 1}
	name, r := launch(s, &v.call, p)
	if r == cudaSuccess && g.parts > 1 && p.whole == 0 && sequences > 0 {
		groups, shared := combineGroupsOf(g.parts, sequences), uint32(combineShared)
		if groups == 1 {
			shared = combineOneGroup
		}
		combine := cudaCall{function: k.combine, threads: uint32(groups * combineThreads), shared: shared, early: s.c.lib.launchesEarly(),
			grid: [3]uint32{uint32(g.rowTiles * combineChunks), uint32(sequences), 1}}
		if p.tokens == 0 && 3*sequences >= g.parts { // LatentSplit::used()
			combine.grid[1] = uint32(min(g.parts, sequences))
		}
		name, r = launch(s, &combine, p)
	}
	if r != cudaSuccess {
		err := s.c.check(name, r)
		err.(*Error).Detail = k.Entry
		return err
	}
	return nil
}
