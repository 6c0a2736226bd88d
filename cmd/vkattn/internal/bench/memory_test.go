package bench

import (
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/hostmem"
	"vkattn/internal/operands"
	"vkattn/internal/problem"
)

// memoryProblems are small problems, each with something that takes memory of its own.
func memoryProblems() map[string]Problem {
	plain := Problem{Shape: attention.Shape{B: 3, Hq: 4, Hkv: 2, Sq: 37, Sk: 70}, Config: attention.Config{DType: attention.F16, HeadDim: 32, HeadDimV: 64}}
	with := func(change func(*Problem)) Problem {
		p := plain
		change(&p)
		return p
	}
	lengths := Lengths("1/9,2*20/33,7/7")
	return map[string]Problem{
		"plain": plain,
		"f32":   with(func(p *Problem) { p.Config.DType = attention.F32 }),
		"paged": with(func(p *Problem) { p.PageSize = 16 }),
		"int8":  with(func(p *Problem) { p.Config.KeyType, p.Config.ValueType = attention.KVInt8, attention.KVInt8 }),
		"fp8, a scale": with(func(p *Problem) {
			p.Config.KeyType, p.Config.ValueType, p.Config.KVBlock = attention.KVFP8, attention.KVFP8, attention.KVBlockTensor
		}),
		"q4_0":   with(func(p *Problem) { p.Config.KeyType, p.Config.ValueType = attention.KVQ4_0, attention.KVQ4_0 }),
		"sparse": with(func(p *Problem) { p.Options.SparseRatio = 0.3 }),
		"topk":   with(func(p *Problem) { p.Options.SparseTopK = 7 }),
		"packed, topk": with(func(p *Problem) {
			p.Lengths, p.Packed, p.Options.SparseTopK = lengths, true, 7
			lengths.bound(&p.Shape)
		}),
		"padded, topk": with(func(p *Problem) {
			p.Lengths, p.Options.SparseTopK = lengths, 7
			lengths.bound(&p.Shape)
		}),
		"blocks":           with(func(p *Problem) { p.Blocks, p.BlockQ, p.BlockK = 0.5, 16, 32 }),
		"V in K":           with(func(p *Problem) { p.SharedKV, p.Config.HeadDimV = true, 16 }),
		"LSE":              with(func(p *Problem) { p.LSE = true }),
		"packed, LSE":      with(func(p *Problem) { p.LSE, p.Lengths, p.Packed = true, lengths, true; lengths.bound(&p.Shape) }),
		"backward":         with(func(p *Problem) { p.Pass = PassBackward }),
		"both, packed":     with(func(p *Problem) { p.Pass, p.Lengths, p.Packed = PassBoth, lengths, true; lengths.bound(&p.Shape) }),
		"backward, V in K": with(func(p *Problem) { p.Pass, p.SharedKV, p.Config.HeadDimV = PassBackward, true, 16 }),
		"heads":            with(func(p *Problem) { p.Sinks, p.ALiBi, p.Config.Align = true, true, attention.TopLeft }),
		"packed":           with(func(p *Problem) { p.Lengths, p.Packed = lengths, true; lengths.bound(&p.Shape) }),
		"padded":           with(func(p *Problem) { p.Lengths = lengths; lengths.bound(&p.Shape) }),
		"packed, paged": with(func(p *Problem) {
			p.Lengths, p.Packed, p.PageSize = lengths, true, 8
			lengths.bound(&p.Shape)
		}),
		"packed, sparse": with(func(p *Problem) {
			p.Lengths, p.Packed, p.Options.SparseRatio = lengths, true, 0.5
			lengths.bound(&p.Shape)
		}),
	}
}

func TestMemoryOfARowByUse(t *testing.T) {
	p := Problem{Shape: attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 64, Sk: 32}, Config: attention.Config{HeadDim: 16, HeadDimV: 8, DType: attention.F16}}
	const q, k, v, o = 2 * 4 * 64 * 16 * 2, 2 * 2 * 32 * 16 * 2, 2 * 2 * 32 * 8 * 2, 2 * 4 * 64 * 8 * 2
	const lse, scores = 2 * 4 * 64 * 4, 2 * 4 * 64 * 32 * 2
	for pass, want := range map[Pass][3]uint64{
		PassForward:  {q + k + v, o, q + k + v + o + 2*scores},
		PassBackward: {q + k + v + o + o + lse, q + k + v, 2*(q+k+v+o) + lse + 3*scores},
		PassBoth:     {q + k + v + o + lse, o + q + k + v, 2*(q+k+v+o) + lse + 3*scores},
	} {
		p.Pass = pass
		r := &Row{Status: OK, Memory: want[0] + want[1] + 100}
		if pass == PassForward {
			r.WorkspaceBytes = 100 // its plan has told
		}
		r.memory(p)
		require.Equal(t, [4]uint64{want[0], want[1], 100, want[2]}, [4]uint64{r.InputBytes, r.OutputBytes, r.WorkspaceBytes, r.PlainBytes}, "%v", pass)
	}
	p.Pass, p.LSE = PassForward, true
	r := &Row{Status: OK}
	r.memory(p)
	require.Equal(t, [2]uint64{q + k + v, o + lse}, [2]uint64{r.InputBytes, r.OutputBytes})
	p.Lengths = "10/20,64/32"
	require.EqualValues(t, 2*(10*20+64*32)*4*2, p.scoreBytes())
}

func TestTheFootprintIsWhatTheDataTake(t *testing.T) {
	for name, p := range memoryProblems() {
		t.Run(name, func(t *testing.T) {
			f, d := p.footprint(), newData(p, 1)
			have := d.bytes()
			require.GreaterOrEqual(t, f.tensors+f.lists, have)
			require.LessOrEqual(t, f.tensors+f.lists, have+1024, "a list may be shorter, a tensor not")
			if p.Pass == PassForward {
				require.EqualValues(t, len(d.args.O.Host), f.o)
				require.EqualValues(t, len(d.args.LSE.Host), f.lse)
			}
			l := onCPU(t, d)
			var runner uint64
			for i, o := range operands.ListBackward(problem.Config(l.cfg), &l.first) {
				if o.Of == i {
					runner += l.layout.bytes(i)
				}
			}
			require.GreaterOrEqual(t, f.setBytes(hostRotation), runner)
			require.Less(t, f.setBytes(hostRotation), runner+hostRotation+1<<16)
		})
	}
}

// allocated runs f and returns the bytes that were allocated meanwhile.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestAProblemThatDoesNotFitMemoryIsARow(t *testing.T) {
	t.Setenv(hostmem.Variable, "70KiB") // less than any CPU runner
	for name, p := range memoryProblems() {
		t.Run(name, func(t *testing.T) {
			var rows []*Row
			done := 0
			b := &Bench{CPU: "cpu", Timing: Timing{Repeats: 1}, Specs: []Spec{{Tier: attention.TierCPU}}, Done: func() { done++ },
				Baselines: []Baseline{BaselineByMask, BaselineContiguous, BaselineCopy, BaselineSeparate}}
			taken := allocated(func() { rows = measured(t, b, p) })
			require.Less(t, taken, uint64(1<<20))
			require.Equal(t, len(rows), done)
			for _, r := range rows {
				require.Equal(t, OOM, r.Status, "%s: %s", r.Who(), r.Reason)
				require.Regexp(t, `needs [\d.]+ [KMGTPE]iB of host memory, 70 KiB are available`, r.Reason)
				require.Regexp(t, `^OOM: problem: needs `, r.Note())
			}
		})
	}
}

// Sizes whose products pass the ends of int64 and uint64 are too large like others.
func TestProblemsOfAnySizeAreRefusedAtOnce(t *testing.T) {
	const most = math.MaxInt32
	shapes := []attention.Shape{
		{B: most, Hq: 1, Sq: 1, Sk: most}, {B: 1, Hq: 1, Sq: most, Sk: most}, {B: most, Hq: most, Sq: 1, Sk: most},
		{B: most, Hq: most, Sq: 2, Sk: most}, {B: 1, Hq: most, Hkv: 1, Sq: 1, Sk: most}, {B: 1 << 30, Hq: 1<<31 - 2, Hkv: 2, Sq: 1, Sk: most},
		{B: 1, Hq: 1, Sq: 1, Sk: most}, {B: most, Hq: 1, Sq: 1, Sk: 1}, {B: most, Hq: most, Sq: most, Sk: most},
	}
	for name, p := range memoryProblems() {
		for _, s := range shapes {
			p := p
			p.Config.HeadDim, p.Config.HeadDimV = 256, 256
			if p.Config.KeyType.Blocked() || p.SharedKV {
				p.Config.HeadDimV = 128
			}
			p.Shape = s
			if p.Options.SparseTopK > 0 {
				p.Options.SparseTopK = most
			}
			if p.Lengths != "" {
				p.Lengths = "60000*2147483647/2147483647"
				p.Lengths.bound(&p.Shape)
			}
			b := &Bench{CPU: "cpu", Timing: Timing{Repeats: 1}, Specs: []Spec{{Tier: attention.TierCPU}}, Baselines: []Baseline{BaselineByMask, BaselineContiguous, BaselineCopy, BaselineSeparate}}
			taken := allocated(func() {
				require.NotZero(t, b.Rows([]Problem{p}))
				countSets(p, deviceRotation)
				rows := measured(t, b, p)
				for _, r := range rows {
					require.Contains(t, []Status{OOM, Unsupported}, r.Status, "%s of %v: %s", r.Who(), p, r.Reason)
				}
			})
			require.Less(t, taken, uint64(64<<20), "%s of %v", name, p)
		}
	}
}
