package accuracy

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"runtime"

	"vkattn/internal/host"
	"vkattn/internal/hostmem"
	"vkattn/internal/oracle"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
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
	if err := vk.CheckHostMemory("VerifyBackward", gradientSampleBytes(g.cfg, a.Shape, tensors.CountRows(sample))); err != nil {
		return err
	}
	want := tensors.GradientsOf(&g.cfg, a)
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
	g.refuse("dBias", want.Bias)
	g.refuse("dSinks", want.Sinks)
	for i, t := range tensors.Tables(&g.cfg) {
		g.refuse(nameOfTable(t), want.Tables[i])
	}
	return nil
}

// refuse leaves out a gradient that is a sum over the whole problem.
func (g *gradientCheck) refuse(name string, wanted bool) {
	if wanted {
		g.judge(&tensorRows{name: name, refused: "the problem is sampled"})
	}
}

// sampledRows judges dQ of the rows of a sample.
func (g *gradientCheck) sampledRows(sample []problem.Rows) error {
	d := g.cfg.HeadDim
	r := tensorRows{name: "dQ", stored: g.cfg.GradientType(), width: d}
	read, err := g.reader(g.a.DQ, r.stored, false, d)
	if err != nil {
		return err
	}
	x, err := oracle.SampleDQ(g.cfg, g.a, sample)
	if err != nil {
		return err
	}
	for i, at := range positions(sample) {
		r.add(at, read, &x, i, len(g.attends(nil, at.b, at.h, at.row)) == 0)
	}
	g.verdict.Rows = len(r.at)
	g.judge(&r)
	return nil
}

// sampledKeys judges dK and dV of some keys of the first and the last head of a sample.
func (g *gradientCheck) sampledKeys(sample []problem.Rows, want tensors.GradientSet, seed uint64) error {
	dK := tensorRows{name: "dK", stored: g.cfg.GradientType(), width: g.cfg.HeadDim}
	dV := tensorRows{name: "dV", stored: g.cfg.GradientType(), width: g.cfg.ValueDim()}
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
			rows   *tensorRows
			tensor problem.Tensor
			x      *oracle.Gradient
		}{{want.K, &dK, g.a.DK, &k}, {want.V, &dV, g.a.DV, &v}} {
			if !t.wanted {
				continue
			}
			read, err := g.reader(t.tensor, t.rows.stored, true, t.rows.width)
			if err != nil {
				return err
			}
			for i, key := range keys {
				t.rows.add(position{b, kv, key}, read, t.x, i, !attended[key])
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

// statistics computes LSE and O, not rounded, of the group of a KV head on the CPU tier, as views of [1, group, rows].
func (g *gradientCheck) statistics(b, kv int) (lse, o problem.HostView, err error) {
	cfg, a := g.cfg, g.a.Args
	cfg.F32O = cfg.DType != problem.F32
	_, rows := tensors.QueryExtent(&a)
	n := a.Group() * rows
	a.O = problem.Tensor{Host: make([]byte, n*cfg.ValueDim()*cfg.OType().Size())}
	a.LSE = problem.Tensor{Host: make([]byte, n*4)}
	for i := range n {
		binary.LittleEndian.PutUint32(a.LSE.Host[4*i:], math.Float32bits(float32(math.Inf(-1))))
	}
	if err = host.ForwardGroup(cfg, a, b, kv); err != nil {
		return lse, o, err
	}
	if lse, err = problem.ViewHost(a.LSE, problem.F32, a.Group(), rows, 1); err != nil {
		return lse, o, err
	}
	o, err = problem.ViewHost(a.O, cfg.OType(), a.Group(), rows, cfg.ValueDim())
	return lse, o, err
}

// Host memory of VerifyBackward, and how much of a large problem it samples.

// gradientSampleBytes is the host memory that a sample of rows of a large problem takes.
func gradientSampleBytes(cfg problem.Config, s problem.Shape, rows int) uint64 {
	both := cfg.HeadDim + cfg.ValueDim()
	long := max(s.Sq, s.Sk)
	return hostmem.Sum(
		hostmem.Product(rows+2*keysPerHead*keyHeads, both, 8+4+4+8, 2), // results
		hostmem.Product(long, both, 4),                                 // Q and dO, or K and V
		hostmem.Product(s.Group(), s.Sq, cfg.ValueDim()*4+4+80),        // O and the statistics of a KV head's rows
		hostmem.Product(s.Sk, 8*(8+4), 64),                             // scores and their gradients of the rows under way
	)
}

// sampledRows is the number of rows that are sampled of a large problem unless the caller
// says how many.
func sampledRows(cfg problem.Config, s problem.Shape) int {
	return int(min(max(wholeProducts/(float64(s.Sk)*float64(3*cfg.HeadDim+2*cfg.ValueDim())), 32), 1<<12))
}

// VerifyBackwardBytes is about the host memory that VerifyBackward takes for a problem
// without bias, in addition to its tensors.
func VerifyBackwardBytes(cfg problem.Config, s problem.Shape) uint64 {
	if gradientProducts(cfg, s) > wholeProducts {
		return gradientSampleBytes(cfg, s, sampledRows(cfg, s))
	}
	const element = 8 + 4 + 8 + 2*(4+8+4+8) // reference, low and noise, and those to compare in slices that grow
	const row = 24 + 3*24                   // its draws, and what they make likely
	keys := hostmem.Product(s.B, s.KVHeads(), s.Sk)
	return hostmem.Sum(
		hostmem.Product(s.B, s.Hq, s.Sq, cfg.HeadDim*element+row),
		hostmem.Product(keys, uint64((cfg.HeadDim+cfg.ValueDim())*element+2*row)),
		hostmem.Product(min(uint64(runtime.GOMAXPROCS(0)), hostmem.Product(s.B, s.KVHeads())), 64, uint64(s.Sk), 2*(8+8+8+8)))
}
