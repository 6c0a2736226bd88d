package attention

import (
	"fmt"

	"vkattn/internal/arith"
	"vkattn/internal/dispatch"
	"vkattn/internal/dropout"
	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// From a checked backward call to its dispatches: the kernel of row statistics, a barrier,
// the kernel of the rests of LSE, another barrier, and the kernels of the gradients, which
// write different memory and need no barrier between them.

// recordBackward checks the arguments and records all dispatches of a call into c, or none.
// s is the stream that c belongs to; nil for a caller's command buffer.
func (op *Op) recordBackward(c *vk.Commands, s *vk.Stream, a *BackwardArgs) error {
	var l backwardLaunch
	r, err := op.checkBackward(&l.tensors, a)
	if err != nil {
		return err
	}
	if err := op.checkNumbers(orderOf(s), &a.Args); err != nil {
		return err
	}
	if s == nil && plan.MayCUDA(&op.cfg) {
		r.CUDARefusal = plan.CUDABackwardRecords
	}
	if a.B == 0 {
		return clearSums(c, &l.tensors)
	}
	if err := r.Options.CheckLimits(&a.Args, 1, op.cfg.ValueDim()); err != nil {
		return err
	}
	p, err := op.prepareBackward(&r)
	if err != nil {
		return err
	}
	if p.cuda != nil {
		return op.backwardCUDA(p.cuda, s, a, &l.tensors)
	}
	if err := l.tensors.CheckStrides(a, p.tileRows, p.tileKeys); err != nil {
		return err
	}
	l.preparedBackward, l.op, l.args, l.limits = p, op, a, &op.dev.Caps().Limits
	if err := l.checkReach(); err != nil {
		return err
	}
	if err := op.orderBackward(c, a, &l.tensors); err != nil {
		return err
	}
	return l.record(c, &r)
}

// orderBackward puts a call behind the earlier work of a stream that it depends on.
func (op *Op) orderBackward(c *vk.Commands, a *BackwardArgs, l *tensors.BackwardTensors) error {
	if !c.Ordered() {
		return nil
	}
	var u tensors.Uses
	for i := range tensors.BackwardCount {
		if t := l.Tensor(i); t == nil {
			continue
		} else if i < tensors.FirstGradient {
			u.Read(t)
		} else {
			u.Write(t)
		}
	}
	u.Options(&op.cfg, &a.Args)
	return u.Order(c)
}

// clearSums clears the gradients of a call without sequences that have elements: those that
// sum over the batches.
func clearSums(c *vk.Commands, l *tensors.BackwardTensors) error {
	for i := tensors.BackwardDBias; i < tensors.BackwardCount; i++ {
		t := l.Tensor(i)
		if t == nil || t.Empty() {
			continue
		}
		rows, run := t.Counts[2], t.Dim
		if t.Steps[2] == run { // rows follow one another
			rows, run = 1, rows*run
		}
		for h := range t.Counts[1] {
			for r := range rows {
				at := uint64((t.Tensor.Offset + h*t.Steps[1] + r*t.Steps[2]) * t.Size)
				if err := c.Fill(vk.BufferRange{Buffer: t.Tensor.Buffer, Offset: at, Size: uint64(run * t.Size)}, 0); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// backwardLaunch is the state of a backward call while its dispatches are recorded.
type backwardLaunch struct {
	*preparedBackward
	op      *Op
	args    *BackwardArgs
	limits  *vk.Limits
	tensors tensors.BackwardTensors

	scratch     *vk.Buffer // row statistics
	statsAt     uint64     // their byte offset in scratch
	tableSumsAt uint64     // of the sums of the next table
	tileMaps    problem.TileMaps
	rows        uint64 // rows that have statistics

	params backwardBufferParams
	units  [plan.MostBackwardBindings]uint64 // bytes that an address counts in
	bound  [plan.MostBackwardBindings]vk.BufferRange
	held   [tensors.BackwardCount + plan.BackwardBindings]vk.Resource
	n      int // entries of held
}

func (l *backwardLaunch) record(c *vk.Commands, r *plan.BackwardRequest) (err error) {
	l.rows = r.StatRows()
	statDispatches := arith.CeilDiv64(l.kernels[0].Workgroups, uint64(l.limits.MaxWorkGroupCount[0]))
	if l.access == AccessDescriptors || len(tensors.Tables(&l.op.cfg)) > 0 {
		dispatches := int(statDispatches)
		for i := 1; i < len(l.kernels); i++ {
			dispatches += l.dispatchesOf(&l.kernels[i])
			if l.maps[i] != nil {
				dispatches++
			}
		}
		if l.chunks.Heads > 0 {
			const kernels = 4 // of scores, dV, dK and dQ
			dispatches += kernels * arith.CeilDiv(l.args.B*l.args.KVHeads(), l.chunks.Heads) * l.keyChunks()
		}
		if err := c.Reserve(dispatches, plan.BackwardBindings+len(tensors.Tables(&l.op.cfg))); err != nil {
			return err
		}
	}
	if l.scratch, l.statsAt, err = c.Scratch(0, l.scratchBytes); err != nil {
		return fmt.Errorf("attention: scratch memory for the statistics of %d rows and dS of %d heads: %w", l.rows, l.chunks.Heads, err)
	}
	if err := l.bindCall(); err != nil {
		return err
	}
	l.tableSumsAt = l.statsAt + r.DSOffset() + l.chunks.DSBytes + l.chunks.MarkBytes
	if err := l.stats(c); err != nil {
		return err
	}
	if err := l.findMaps(c); err != nil {
		return err
	}
	for i := 1; i < len(l.kernels); i++ {
		k := &l.kernels[i]
		if i == 1 || l.kernels[i-1].Variant.Kernel == plan.KernelLSE {
			if err := c.InnerBarrier(); err != nil {
				return err
			}
		}
		if (k.Variant.Kernel == plan.KernelScores || k.Variant.Kernel == plan.KernelDKDV) && l.chunks.Heads > 0 {
			i, err = l.chunked(c, r, i)
		} else if k.Variant.Kernel == plan.KernelDSinks {
			err = l.sinks(c, l.pipelines[i], k)
		} else if k.Variant.Kernel == plan.KernelTableSum {
			err = l.tableSum(c, l.pipelines[i], &l.kernels[i-1], k)
		} else {
			err = l.gradient(c, l.pipelines[i], k)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// gradient records the kernel of dQ, of dK and dV, or of dBias, and its time if a tuning
// watches it.
func (l *backwardLaunch) gradient(c *vk.Commands, pipeline *vk.Pipeline, k *plan.BackwardKernel) (err error) {
	if w := l.op.backward.watch; w != nil && k.Variant.Watches(w.kernel) {
		var marks [2]vk.Mark
		if err := c.InnerBarrier(); err != nil {
			return err
		}
		if marks[0], err = c.Timestamp(); err != nil {
			return err
		}
		if err := l.outputs(c, pipeline, k); err != nil {
			return err
		}
		marks[1], err = c.Timestamp()
		w.marks = append(w.marks, marks)
		return err
	}
	return l.outputs(c, pipeline, k)
}

// outputs is gradient without the time.
func (l *backwardLaunch) outputs(c *vk.Commands, pipeline *vk.Pipeline, k *plan.BackwardKernel) error {
	dX, dV := tensors.BackwardDQ, -1
	switch k.Variant.Kernel {
	case plan.KernelLSE:
		return l.rests(c, pipeline, k)
	case plan.KernelDTable:
		return l.tableSums(c, pipeline, k)
	case plan.KernelScores, plan.KernelDV, plan.KernelDK, plan.KernelDKDV:
		dX, dV = tensors.BackwardDK, tensors.BackwardDV
	case plan.KernelDBias:
		dX = tensors.BackwardDBias
	}
	common := l.n // entries of held
	for _, out := range [2]struct{ binding, row, tensor int }{{bwdDX, strideDX, dX}, {bwdDV, strideDV, dV}} {
		l.bound[out.binding] = vk.BufferRange{}
		if out.tensor < 0 || l.tensors.Tensor(out.tensor) == nil {
			continue
		}
		if err := l.bindStrided(out.binding, out.row, l.tensors.Tensor(out.tensor)); err != nil {
			return err
		}
	}
	if err := l.bindMap(k); err != nil {
		return err
	}
	return l.dispatch(c, pipeline, k, common)
}

// keyChunks returns the chunks of the keys of a head.
func (l *backwardLaunch) keyChunks() int {
	if l.chunks.Keys == 0 {
		return 1
	}
	return arith.CeilDiv(l.args.Sk, l.chunks.Keys)
}

// chunked records the kernels of chunks from kernel i on, P and dS, dK and dV, and dQ = dS K, for every chunk of heads or of
// keys of a head, and returns the last of them. The rare work of dK and dV has a dispatch of its own.
func (l *backwardLaunch) chunked(c *vk.Commands, r *plan.BackwardRequest, i int) (last int, err error) {
	ch, heads := &l.chunks, l.args.B*l.args.KVHeads()
	const unit = 16
	for last = i; last+1 < len(l.kernels) && l.kernels[last+1].Variant.Kernel <= plan.KernelDSK; last++ {
	}
	start, err := l.bindMemory(&l.bound[bwdTokens], l.scratch, l.statsAt+r.DSOffset(), ch.DSBytes+ch.MarkBytes, unit)
	if err != nil {
		return last, err
	}
	l.params.addrOptions[3] = start + ch.DSBytes // marks; or the keys of a chunk, whose kernels mark nothing
	if l.access != AccessAddresses {
		l.params.addrOptions[3] = start + ch.DSBytes/unit
	}
	l.params.addrOptions[0], l.params.addrOptions[1] = start, uint64(ch.KeyFrags)|uint64(ch.RowFrags)<<32
	for n := range arith.CeilDiv(heads, ch.Heads) * l.keyChunks() {
		first, firstKey := n/l.keyChunks()*ch.Heads, n%l.keyChunks()*ch.Keys
		keys := l.args.Sk - firstKey
		if ch.Keys > 0 {
			keys = min(keys, ch.Keys)
			l.params.addrOptions[3] = uint64(firstKey) | uint64(keys)<<32
		}
		l.params.addrOptions[2] = uint64(first)
		for m := i; m <= last; m++ {
			kernel := l.kernels[m]
			kernel.Groups[1], kernel.Groups[2] = uint32(min(ch.Heads, heads-first)), kernel.Variant.GridDepth(&l.args.Shape)
			if kernel.Variant.Kernel != plan.KernelDSK {
				kernel.Groups[0] = arith.CeilDiv32(uint32(keys), kernel.Variant.OwnedRows())
			}
			for _, pipeline := range [...]*vk.Pipeline{l.pipelines[m], l.rare} {
				if pipeline == nil || pipeline == l.rare && kernel.Variant.Kernel != plan.KernelDKDV {
					continue
				}
				if n > 0 && m == i || m == i+1 || pipeline == l.rare { // the others write what none of them reads
					if err := c.InnerBarrier(); err != nil {
						return last, err
					}
				}
				if err := l.gradient(c, pipeline, &kernel); err != nil {
					return last, err
				}
			}
		}
	}
	return last, nil
}

// rests records the kernel of the rests of LSE, which has them and the sinks in place of
// gradients.
func (l *backwardLaunch) rests(c *vk.Commands, pipeline *vk.Pipeline, k *plan.BackwardKernel) error {
	common := l.n
	l.bound[bwdDX], l.bound[bwdDV] = vk.BufferRange{}, vk.BufferRange{}
	if err := l.bind(bwdDX, l.scratch, l.statsAt, l.scratchBytes, 4); err != nil {
		return err
	}
	if sinks := &l.args.Sinks; sinks.Given() {
		if err := l.bind(bwdDV, sinks.Buffer, uint64(sinks.Offset)*4, uint64(l.args.Hq)*4, 4); err != nil {
			return err
		}
	}
	return l.dispatch(c, pipeline, k, common)
}

// tableSums records the kernel of a table's gradient, which leaves sums of its workgroups in scratch memory.
func (l *backwardLaunch) tableSums(c *vk.Commands, pipeline *vk.Pipeline, k *plan.BackwardKernel) error {
	common := l.n
	l.bound[bwdDX], l.bound[bwdDV] = vk.BufferRange{}, vk.BufferRange{}
	if err := l.bind(bwdDX, l.scratch, l.tableSumsAt, k.TableBytes(), 4); err != nil {
		return err
	}
	return l.dispatch(c, pipeline, k, common)
}

// tableSum records the kernel that adds the sums up, which the kernel of one has left.
func (l *backwardLaunch) tableSum(c *vk.Commands, pipeline *vk.Pipeline, of, k *plan.BackwardKernel) error {
	if err := c.InnerBarrier(); err != nil {
		return err
	}
	var bound [tableSumBindings]vk.BufferRange
	var p tableSumParams
	var err error
	if p.addr[0], err = l.bindMemory(&bound[0], l.scratch, l.tableSumsAt, of.TableBytes(), 4); err != nil {
		return err
	}
	l.tableSumsAt += of.TableBytes()
	if p.addr[1], err = l.bindLayout(&bound[1], l.tensors.Tensor(tensors.BackwardDTables+k.Table)); err != nil {
		return err
	}
	heads, entries := tensors.TableGradient(&l.op.cfg, k.Table).Sizes(tensors.TableDims(&l.op.cfg, &l.args.Args, k.Table))
	p.entries, p.stride, p.heads, p.Hq = uint32(entries), of.TableStride(), uint32(heads), uint32(l.args.Hq)
	p.parts = of.Groups[0] * of.Groups[2]
	return c.Dispatch(pipeline, bound[:], dispatch.ParamBytes(&p, tableSumPushBytes), k.Groups)
}

// dispatch records a kernel that takes backwardParams, in as many dispatches as its grid needs.
// It forgets the entries of held from index common on.
func (l *backwardLaunch) dispatch(c *vk.Commands, pipeline *vk.Pipeline, k *plan.BackwardKernel, common int) error {
	held := l.held[:l.n]
	l.n = common
	parts, perY := k.Parts(l.limits, &l.args.Shape)
	if parts.One() {
		return l.dispatchOne(c, pipeline, k, k.Groups, held)
	}
	steps, whole := l.steps(k), l.params
	for part, ok := parts.Next(); ok; part, ok = parts.Next() {
		l.params = whole
		for i := range bwdTokens {
			if l.units[i] != 0 {
				*l.params.address(i) += steps[i].To(part.Batch, part.Head*perY, l.args.Group()) / l.units[i]
			}
		}
		if err := l.dispatchOne(c, pipeline, k, [3]uint32{k.Groups[0], uint32(part.Heads), uint32(part.Batches)}, held); err != nil {
			return err
		}
	}
	l.params = whole
	return nil
}

// dispatchOne records a dispatch of a kernel that takes backwardParams.
func (l *backwardLaunch) dispatchOne(c *vk.Commands, pipeline *vk.Pipeline, k *plan.BackwardKernel, groups [3]uint32, held []vk.Resource) error {
	bound := l.bound[:k.Variant.Bindings(&l.op.cfg)]
	var err error
	if l.access == AccessAddresses {
		if bound = bound[plan.BackwardParamsBinding:]; len(bound) == 1 {
			bound = nil
		} else if bound[0], err = c.Params(dispatch.ParamBytes(&l.params.tables, 16*len(l.params.tables))); err != nil {
			return err
		}
		return c.Dispatch(pipeline, bound, dispatch.ParamBytes(&l.params, plan.BackwardPushBytes), groups, held...)
	}
	if l.bound[plan.BackwardParamsBinding], err = c.Params(dispatch.ParamBytes(&l.params, plan.BackwardParamBytes)); err != nil {
		return err
	}
	fillBindings(bound, l.scratch)
	return c.Dispatch(pipeline, bound, nil, groups)
}

// stats records the kernel of row statistics, in as many dispatches as its rows need.
func (l *backwardLaunch) stats(c *vk.Commands) error {
	var p deltaParams
	var bound [deltaBindings]vk.BufferRange
	common := l.n
	for i, tensor := range [...]int{tensors.BackwardO, tensors.BackwardDO, tensors.BackwardLSE, tensors.BackwardDLSE} {
		t := l.tensors.Tensor(tensor)
		if t == nil {
			continue
		}
		var err error
		if p.addr[i], err = l.bindLayout(&bound[i], t); err != nil {
			return err
		}
	}
	var err error
	if p.addr[4], err = l.bindMemory(&bound[4], l.scratch, l.statsAt, l.scratchBytes, plan.StatBytes); err != nil {
		return err
	}
	held := l.held[:l.n]
	l.n = common
	o := l.tensors.Tensor(tensors.BackwardO)
	steps32(&p.strideO, o)
	steps32(&p.strideDO, l.tensors.Tensor(tensors.BackwardDO))
	p.Sq, p.Hq, p.rows = uint32(o.Counts[2]), uint32(o.Counts[1]), uint32(l.rows)
	m := dropout.Of(l.op.cfg.Dropout, l.args.DropoutSeed, l.args.DropoutOffset)
	p.dropout = [4]uint32{uint32(m.Seed), uint32(m.Seed >> 32), m.Offset, m.Threshold}
	k := &l.kernels[0]
	perGroup := uint64(plan.BackwardLocal / k.Variant.LanesPerRow())
	chunk := perGroup * uint64(l.limits.MaxWorkGroupCount[0])
	fillBindings(bound[:], l.scratch)
	for first := uint64(0); first < l.rows; first += chunk {
		p.firstRow = uint32(first)
		groups := [3]uint32{uint32(arith.CeilDiv64(min(chunk, l.rows-first), perGroup)), 1, 1}
		block := dispatch.ParamBytes(&p, deltaPushBytes)
		if l.access == AccessAddresses {
			err = c.Dispatch(l.pipelines[0], nil, block, groups, held...)
		} else {
			err = c.Dispatch(l.pipelines[0], bound[:], block, groups)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sinks records the kernel of dSinks, in as many dispatches as its heads need.
func (l *backwardLaunch) sinks(c *vk.Commands, pipeline *vk.Pipeline, k *plan.BackwardKernel) error {
	var p sinksParams
	var bound [sinksBindings]vk.BufferRange
	a, common := l.args, l.n
	vector := func(i int, v *Vector, n int) error {
		if !v.Given() {
			return nil
		}
		start, err := l.bindMemory(&bound[i], v.Buffer, uint64(v.Offset)*4, uint64(n)*4, 4)
		p.addr[i] = start
		return err
	}
	var err error
	if p.addr[0], err = l.bindMemory(&bound[0], l.scratch, l.statsAt, l.scratchBytes, plan.StatBytes); err != nil {
		return err
	}
	if err := vector(1, &a.Sinks, a.Hq); err != nil {
		return err
	}
	if err := vector(2, &a.DSinks, a.Hq); err != nil {
		return err
	}
	p.sequences, p.Sq, p.Hq = uint32(a.B), uint32(a.Sq), uint32(a.Hq)
	if v := a.Varlen; v != nil {
		p.totalQ = uint32(v.TotalQ)
		if err := vector(3, &v.CuQ, a.B+1); err != nil {
			return err
		}
		if err := vector(4, &v.UsedQ, a.B); err != nil {
			return err
		}
	}
	held := l.held[:l.n]
	l.n = common
	fillBindings(bound[:], l.scratch)
	most, whole := l.limits.MaxWorkGroupCount[0], p
	for first := uint32(0); first < k.Groups[0]; first += most {
		p = whole
		for i, step := range [...]uint64{l.statsStep().Head, 4, 4} {
			if l.access != AccessAddresses {
				step /= [...]uint64{plan.StatBytes, 4, 4}[i]
			}
			p.addr[i] += uint64(first) * step
		}
		groups, block := [3]uint32{min(most, k.Groups[0]-first), 1, 1}, dispatch.ParamBytes(&p, sinksPushBytes)
		var err error
		if l.access == AccessAddresses {
			err = c.Dispatch(pipeline, nil, block, groups, held...)
		} else {
			err = c.Dispatch(pipeline, bound[:], block, groups)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
