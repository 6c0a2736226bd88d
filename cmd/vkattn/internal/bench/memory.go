package bench

import (
	"runtime"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// footprint is the memory of a problem in bytes, computed from its sizes alone. Sizes
// that overflow saturate and fit nowhere.
type footprint struct {
	tensors uint64 // Q, K, V, O, LSE and scales, of which each input set has a copy
	lists   uint64 // tables, lists and masks, which all sets share
	o       uint64 // what is read back: O in the storage type, or the gradients
	lse     uint64 // what is read back of LSE
	outputs uint64 // O and LSE of a forward pass, the gradients of a backward pass, of both O and the gradients
	host    uint64 // host memory from which the lists are built
}

// memory fills in the bytes of the row's inputs and outputs, of the workspace if the plan
// has told the memory of the call, and of plain attention.
func (r *Row) memory(p Problem) {
	f := p.footprint()
	all := hostmem.Sum(f.tensors, f.lists)
	r.OutputBytes, r.InputBytes = f.outputs, all-min(all, f.outputs)
	if p.Pass != PassForward && r.WorkspaceBytes == 0 && r.Status != OOM { // the plan of a forward pass tells it
		r.WorkspaceBytes = r.Memory - min(r.Memory, all)
	}
	r.PlainBytes = hostmem.Sum(all, p.scoreBytes())
}

// scoreBytes is what plain attention holds beyond inputs and outputs: S and P in the
// storage type, and dP as well in a backward pass, of all rows and keys of every
// sequence.
func (p Problem) scoreBytes() (n uint64) {
	matrices := 2
	if p.Pass != PassForward {
		matrices = 3
	}
	p.each(func(times, rows, keys int) {
		n = hostmem.Sum(n, hostmem.Product(rows, keys, times, p.Shape.Hq, p.Config.DType.Size(), matrices))
	})
	return n
}

// counts are the numbers from which the sizes of tensors and lists follow.
type counts struct {
	sequences, rows, keys, pages, tokens uint64 // rows and keys of one head, of all sequences
}

func (p Problem) counts() (c counts) {
	heads, topK := p.Shape.KVHeads(), p.Options.SparseTopK
	p.each(func(n, rows, keys int) {
		c.sequences = hostmem.Sum(c.sequences, uint64(n))
		c.rows = hostmem.Sum(c.rows, hostmem.Product(n, rows))
		c.keys = hostmem.Sum(c.keys, hostmem.Product(n, keys))
		if p.PageSize > 0 {
			c.pages = hostmem.Sum(c.pages, hostmem.Product(n, (keys+p.PageSize-1)/p.PageSize))
		}
		switch {
		case topK > 0 && p.Packed:
			c.tokens = hostmem.Sum(c.tokens, hostmem.Product(n, rows, heads, topK))
		case topK > 0:
			c.tokens = hostmem.Sum(c.tokens, hostmem.Product(n, p.Shape.Sq, heads, topK))
		case p.Options.SparseRatio > 0:
			c.tokens = hostmem.Sum(c.tokens, hostmem.Product(n, p.sparseKeys(keys), heads))
		}
	})
	return c
}

// sharedScaleBytes is the size of scales that heads or all keys share.
func (p Problem) sharedScaleBytes() uint64 {
	switch p.Config.KVBlock {
	case attention.KVBlockHead:
		return hostmem.Product(8, p.Shape.KVHeads())
	case attention.KVBlockTensor:
		return 8
	}
	return 0
}

// footprint is the memory of the problem's arguments.
func (p Problem) footprint() (f footprint) {
	s, c, n := p.Shape, p.Config, p.counts()
	u := func(v int) uint64 { return uint64(max(v, 0)) }
	b, hq, hkv := u(s.B), u(s.Hq), u(s.KVHeads())
	rows := hostmem.Product(b, u(s.Sq))
	packed := p.Options.Lengths != "" && p.Packed
	if packed {
		rows = n.rows
	}
	keys := hostmem.Product(b, u(s.Sk))
	switch {
	case p.PageSize > 0:
		keys = hostmem.Product(n.pages, u(p.PageSize))
	case packed:
		keys = n.keys
	}
	f.o = hostmem.Product(rows, hq, u(c.ValueDim()), u(c.DType.Size()))
	q, kv := hostmem.Product(rows, hq, u(c.HeadDim), u(c.DType.Size())), hostmem.Product(keys, hkv, p.keyBytes())
	dKV := kv
	if p.SharedKV { // dV has the strides of K
		dKV = hostmem.Product(kv, 2)
	}
	grad, outputs := p.gradientBytes(f.o, q, dKV)
	f.tensors = hostmem.Sum(q, f.o, kv, grad, p.sharedScaleBytes())
	if p.hasLSE() {
		f.lse = hostmem.Product(rows, hq, 4)
		f.tensors = hostmem.Sum(f.tensors, f.lse)
	}
	switch p.Pass {
	case PassForward:
		f.outputs = hostmem.Sum(f.o, f.lse)
	case PassBackward:
		f.outputs = outputs
	case PassBoth:
		f.outputs = hostmem.Sum(f.o, outputs)
	}
	f.o = max(f.o, outputs)

	const integer, word = 4, 8
	f.host = hostmem.Product(n.sequences, 4*word) // rows, keys and their first, of each sequence
	if p.Options.Lengths != "" {
		f.lists = hostmem.Product(n.sequences+1, 2*integer)
	}
	if p.PageSize > 0 {
		table := hostmem.Product(b, u((s.Sk+p.PageSize-1)/p.PageSize), integer)
		f.lists = hostmem.Sum(f.lists, table)
		f.host = hostmem.Sum(f.host, table, hostmem.Product(n.pages, word)) // the table and the order of the pages
	}
	if p.sparse() {
		list := hostmem.Sum(hostmem.Product(n.tokens, integer), hostmem.Product(b, hkv, integer), integer)
		f.lists = hostmem.Sum(f.lists, list)
		f.host = hostmem.Sum(f.host, list, list, list) // the list, and its old and new array when append grows it
	}
	if p.Blocks > 0 {
		blocks := hostmem.Product(u((s.Sq-1)/p.BlockQ+1), u((s.Sk-1)/p.BlockK+1))
		bits := hostmem.Sum(hostmem.Product(blocks, hq)/8, hostmem.Product(u((s.Sq-1)/p.BlockQ+1), hq, integer))
		f.lists = hostmem.Sum(f.lists, bits)
		f.host = hostmem.Sum(f.host, bits, p.blockBytes())
	}
	if p.ALiBi {
		f.lists = hostmem.Sum(f.lists, hostmem.Product(hq, integer))
	}
	if p.Sinks {
		f.lists = hostmem.Sum(f.lists, hostmem.Product(hq, integer))
	}
	f.lists = hostmem.Sum(f.lists, p.Tables.Bytes())
	return f
}

// blockBytes is the memory that blockKeys and blockCells allocate: two block masks and a
// byte for each key.
func (p Problem) blockBytes() uint64 {
	if p.Blocks == 0 {
		return 0
	}
	s := p.Shape
	blocks := hostmem.Product((s.Sq-1)/p.BlockQ+1, (s.Sk-1)/p.BlockK+1, s.KVHeads())
	return hostmem.Sum(blocks, blocks, hostmem.Product(s.KVHeads(), s.Sk))
}

// padded is the problem as a baseline computes it, for its footprint: with contiguous K
// and V, and for BaselineByMask with padded rows.
func (p Problem) padded(baseline Baseline) Problem {
	switch baseline {
	case BaselineContiguous:
		p.PageSize, p.HND = 0, false
	case BaselineByMask:
		p.Options = Options{Sinks: p.Sinks, ALiBi: p.ALiBi, Tables: p.Tables}
	}
	return p
}

// setBytes is the memory of all input sets if their copies fill rotation bytes.
func (f footprint) setBytes(rotation uint64) uint64 {
	const slack = 12 * setAlign // of the tensors
	if f.tensors < rotation {
		return hostmem.Sum(f.tensors, rotation, f.lists, slack)
	}
	return hostmem.Sum(f.tensors, f.lists, slack)
}

// verifyBytes is the memory of the reference and of the rows compared with it.
func (p Problem) verifyBytes() uint64 {
	s, c := p.Shape, p.Config
	if p.Pass != PassForward {
		return accuracy.VerifyBackwardBytes(problem.Config(c), s)
	}
	n := p.counts()
	perRow := hostmem.Product(s.Sk, c.HeadDim+c.ValueDim())
	// At least a row of each sequence; at most those that fit the budget, or all.
	rows := min(hostmem.Product(n.rows, uint64(s.Hq)), hostmem.Sum(verifyBudget/max(perRow, 1), n.sequences))
	const (
		element = 8 + 4 + 8 + 4 // reference, low, noise and result, of O
		row     = 3*8 + 8 + 64  // the same of LSE, the row's number, a share of the list of its head
		head    = 16            // the list of heads to choose from
	)
	total := hostmem.Sum(hostmem.Product(rows, uint64(c.ValueDim()), element), hostmem.Product(rows, row),
		hostmem.Product(n.sequences, uint64(s.Hq), head))
	return hostmem.Sum(total, ReferenceScratch(c, s, rows))
}

// ReferenceScratch is the memory that the workers of attention.ReferenceSample and
// oracle.Low take for a number of rows.
func ReferenceScratch(c attention.Config, s attention.Shape, rows uint64) uint64 {
	workers := uint64(runtime.GOMAXPROCS(0))
	block := max(1, min(64, (8<<20)/uint64(max(s.Sk, 1)), rows/(4*workers)))
	const score, tile = 8 + 8 + 4, 64 * (8 + 4)
	return hostmem.Sum(
		hostmem.Product(workers, block, uint64(s.Sk), score),
		hostmem.Product(workers, block+tile, uint64(c.HeadDim+c.ValueDim()), 8))
}

// needed is the memory that a setup takes in addition to what the group has.
func (g *group) needed(dev *attention.Device, baseline Baseline) (host, device uint64) {
	f := g.problem.footprint()
	if g.in == nil {
		host = hostmem.Sum(f.tensors, f.lists, f.host)
	}
	at := f
	if baseline != "" {
		p := g.problem.padded(baseline)
		at = p.footprint()
		if baseline == BaselineByMask {
			mask, _ := g.problem.maskBytes()
			at.lists = hostmem.Sum(at.lists, mask)
		}
		host = hostmem.Sum(host, at.tensors, at.lists)
	}
	if dev == nil {
		host = hostmem.Sum(host, at.setBytes(g.rotation(nil)))
	} else {
		host = hostmem.Sum(host, at.o, at.lse) // read back
		device = at.setBytes(g.rotation(dev))
	}
	if g.truth == nil {
		host = hostmem.Sum(host, g.problem.verifyBytes())
	}
	if g.compared {
		host = hostmem.Sum(host, hostmem.Product(at.o/uint64(g.problem.Config.DType.Size()), 4))
	}
	return host, device
}

// room returns an error with the needed and the available memory if a setup does not fit the
// memory.
func (g *group) room(dev *attention.Device, baseline Baseline, scratch uint64) error {
	host, device := g.needed(dev, baseline)
	return Room(dev, host, hostmem.Sum(device, scratch))
}

// Room returns an error with the needed and the available memory if the host or the device lacks
// the memory. A device that is the CPU uses host memory.
func Room(on *attention.Device, host, device uint64) error {
	const op = "problem"
	dev := on.Vulkan()
	if dev != nil && dev.Info().Type == vk.DeviceCPU {
		host = hostmem.Sum(host, device)
	}
	if err := vk.CheckHostMemory(op, host); err != nil {
		return err
	}
	if dev == nil { // CUDA says itself what it has no room for
		return nil
	}
	return dev.CheckMemory(op, device)
}

// scratch is the device memory of a plan beyond its tensors.
func (p Problem) scratch(plan attention.Plan) uint64 {
	f := p.footprint()
	return hostmem.Sum(plan.Bytes-min(plan.Bytes, f.tensors), plan.WorkspaceBytes)
}
