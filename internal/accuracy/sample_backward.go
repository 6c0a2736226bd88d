package accuracy

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"vkattn/internal/host"
	"vkattn/internal/oracle"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// keysPerHead is the number of keys sampled of a KV head, keyHeads of how many heads.
const keysPerHead, keyHeads = 32, 2

// sampled compares about opt.Rows rows, and some keys of the first and the last head among
// theirs.
func (g *gradientCheck) sampled(opt Options) error {
	a := &g.a
	n := opt.Rows
	if n == 0 {
		n = sampledRows(g.cfg, a.Shape)
	}
	sample, err := SampleArgs(a.Args, n, opt.Seed)
	if err != nil {
		return err
	}
	sample = g.within(sample)
	if err := g.sampleRoom(tensors.CountRows(sample)); err != nil {
		return err
	}
	want := tensors.GradientsOf(a)
	if want.Q {
		if err := g.sampledRows(sample); err != nil {
			return err
		}
	}
	if want.K || want.V {
		if err := g.sampledKeys(sample, want, opt.Seed); err != nil {
			return err
		}
	}
	for _, t := range []struct {
		wanted bool
		name   string
	}{{want.Bias, "dBias"}, {want.Sinks, "dSinks"}} {
		if t.wanted {
			g.judge(&gradientRows{name: t.name, refused: "the problem is sampled"})
		}
	}
	return nil
}

// sampledRows judges dQ of the rows of a sample.
func (g *gradientCheck) sampledRows(sample []problem.Rows) error {
	d := g.cfg.HeadDim
	r := gradientRows{name: "dQ", dtype: g.cfg.GradientType(), width: d}
	read, err := g.reader(g.a.DQ, false, d)
	if err != nil {
		return err
	}
	x, err := oracle.SampleDQ(g.cfg, g.a, sample)
	if err != nil {
		return err
	}
	for _, head := range sample {
		for _, row := range head.Rows {
			r.add(rowPosition{head.B, head.H, row}, read, &x, len(r.at), len(g.attends(nil, head.B, head.H, row)) == 0)
		}
	}
	g.verdict.Rows = len(r.at)
	g.judge(&r)
	return nil
}

// sampledKeys judges dK and dV of some keys of the first and the last head of a sample.
func (g *gradientCheck) sampledKeys(sample []problem.Rows, want tensors.GradientSet, seed uint64) error {
	dK := gradientRows{name: "dK", dtype: g.cfg.GradientType(), width: g.cfg.HeadDim}
	dV := gradientRows{name: "dV", dtype: g.cfg.GradientType(), width: g.cfg.ValueDim()}
	r := rand.New(rand.NewPCG(seed, 0xb5))
	done := map[[2]int]bool{}
	for _, at := range []int{0, len(sample) - 1} {
		if len(sample) == 0 {
			break
		}
		b, kv := sample[at].B, sample[at].H/g.a.Group()
		n := g.Sequences[b].Keys
		if done[[2]int{b, kv}] || n == 0 {
			continue
		}
		done[[2]int{b, kv}] = true
		tile := r.IntN((n+63)/64) * 64
		keys := pick(r, n, min(n, keysPerHead), 0, n-1, tile, tile-1, tile+63)
		lse, o, err := g.statistics(b, kv)
		if err != nil {
			return err
		}
		k, v, err := oracle.SampleDKV(g.cfg, g.a, b, kv, keys, lse, o)
		if err != nil {
			return err
		}
		attended := g.attended(true, b, kv)
		for _, t := range []struct {
			wanted bool
			rows   *gradientRows
			tensor problem.Tensor
			x      *oracle.SampledGradient
		}{{want.K, &dK, g.a.DK, &k}, {want.V, &dV, g.a.DV, &v}} {
			if !t.wanted {
				continue
			}
			read, err := g.reader(t.tensor, true, t.rows.width)
			if err != nil {
				return err
			}
			for i, key := range keys {
				t.rows.add(rowPosition{b, kv, key}, read, t.x, i, !attended[key])
			}
		}
		g.verdict.Keys += len(keys)
	}
	if want.K {
		g.judge(&dK)
	}
	if want.V {
		g.judge(&dV)
	}
	return nil
}

// statistics computes LSE and O, not rounded, of the group of a KV head on the CPU tier, with its dropout
// mask in the call, as views of [1, group, rows].
func (g *gradientCheck) statistics(b, kv int) (lse, o problem.HostView, err error) {
	cfg := g.cfg
	cfg.Tier, cfg.Access, cfg.Kernel, cfg.FixedSplit, cfg.Tuning = problem.TierCPU, problem.AccessAuto, "", 0, problem.TuningOff
	cfg.F32O = cfg.DType != problem.F32
	a := oneHead(g.cfg, g.a.Args, b, kv)
	_, rows := tensors.QueryExtent(&a)
	a.O = problem.Tensor{Host: make([]byte, a.Hq*rows*cfg.ValueDim()*cfg.OType().Size())}
	a.LSE = problem.Tensor{Host: make([]byte, a.Hq*rows*4)}
	for i := range a.Hq * rows {
		binary.LittleEndian.PutUint32(a.LSE.Host[4*i:], math.Float32bits(float32(math.Inf(-1))))
	}
	if err = tensors.CheckArgs(cfg, a); err != nil {
		return lse, o, err
	}
	if err = host.ForwardFrom(cfg, a, uint32(b*g.a.Hq+kv*g.a.Group())); err != nil {
		return lse, o, err
	}
	if lse, err = problem.ViewHost(a.LSE, problem.F32, a.Hq, rows, 1); err != nil {
		return lse, o, err
	}
	o, err = problem.ViewHost(a.O, cfg.OType(), a.Hq, rows, cfg.ValueDim())
	return lse, o, err
}

// oneHead are the arguments of the call for one sequence and KV head, without outputs.
func oneHead(cfg problem.Config, a problem.Args, b, kv int) problem.Args {
	group := a.Group()
	h := kv * group
	_, rows := tensors.QueryExtent(&a)
	_, keys := tensors.KVExtent(&a)
	shift := func(t *problem.Tensor, heads, rows, dim, b, h int) {
		t.Strides = t.Strides.Resolve(heads, rows, dim)
		t.Offset += int64(b)*t.Strides.Batch + int64(h)*t.Strides.Head
	}
	batchQ, batchK := b, b
	if v := a.Varlen; v != nil {
		one := *v
		for _, x := range []*problem.Vector{&one.CuQ, &one.CuK, &one.UsedQ, &one.UsedK} {
			if x.Given() {
				x.Offset += int64(b)
			}
		}
		if v.CuQ.Given() {
			batchQ = 0
		}
		if v.CuK.Given() {
			batchK = 0
		}
		a.Varlen = &one
	}
	heads, headsKV := a.Hq, a.KVHeads()
	shift(&a.Q, heads, rows, cfg.HeadDim, batchQ, h)
	shift(&a.K, headsKV, keys, cfg.HeadDim, batchK, kv)
	shift(&a.V, headsKV, keys, cfg.ValueDim(), batchK, kv)
	// broadcast moves a tensor [batches, heads, rows, Sk] whose sizes may be 1 for all.
	broadcast := func(t *problem.Tensor, batches, perBatch, perRow *int) {
		at, atHead := b, h
		if *batches == 1 {
			at = 0
		}
		if *perBatch == 1 {
			atHead = 0
		}
		shift(t, orAll(*perBatch, heads), orAll(*perRow, a.Sq), a.Sk, at, atHead)
		*batches = 1
		if *perBatch != 1 {
			*perBatch = group
		}
	}
	if a.Bias != nil {
		one := *a.Bias
		broadcast(&one.Tensor, &one.Batches, &one.Heads, &one.Rows)
		a.Bias = &one
	}
	if a.Mask != nil {
		one := *a.Mask
		broadcast(&one.Tensor, &one.Batches, &one.Heads, &one.Rows)
		a.Mask = &one
	}
	if a.Blocks != nil {
		one := *a.Blocks
		line := ((a.Sq + one.BlockQ - 1) / one.BlockQ) * (((a.Sk+one.BlockK-1)/one.BlockK + 31) / 32)
		one.Map.Offset += int64((wrapOne(b, one.Batches)*orAll(one.Heads, heads) + wrapOne(h, one.Heads)) * line)
		one.Batches = 1
		if one.Heads != 1 {
			one.Heads = group
		}
		a.Blocks = &one
	}
	if a.SparseTokens != nil {
		one := *a.SparseTokens
		one.Offsets.Offset += int64(b*headsKV + kv)
		a.SparseTokens = &one
	}
	for _, v := range []*problem.Vector{&a.ALiBi, &a.Sinks} {
		if v.Given() {
			v.Offset += int64(h)
		}
	}
	a.Shape = problem.Shape{B: 1, Hq: group, Hkv: 1, Sq: a.Sq, Sk: a.Sk}
	return a
}

// orAll is a size of a broadcast tensor: n, or all where it is 0.
func orAll(n, all int) int {
	if n == 0 {
		return all
	}
	return n
}

// wrapOne is i, or 0 in a dimension of size 1.
func wrapOne(i, size int) int {
	if size == 1 {
		return 0
	}
	return i
}
