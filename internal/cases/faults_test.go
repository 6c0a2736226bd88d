package cases

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/problem"
)

// Planted faults of options. Each is a call that is computed right, in float64, for inputs that differ from those
// of the case: what a kernel with that fault computes. The judges have to refuse its results.

// faultyCall is a call that a fault may change, and what it computes.
type faultyCall struct {
	*Problem
	cfg    problem.Config
	args   problem.Args // in memory of its own
	o, lse []float64
}

// faultOfOptions is a fault of a forward call.
type faultOfOptions struct {
	name  string
	of    Case                       // the options
	plant func(c *faultyCall)        // changes the call; nil: nothing
	after func(c, right *faultyCall) // changes its results; nil: nothing
	blind string                     // why the formula of the cases does not judge it; accuracy judges all
}

// faulty is the problem of all faults, with options.
func faulty(change func(*Case)) Case {
	c := Case{Name: "faults", D: 32, Dv: 32, Shape: attention.Shape{Hq: 4, Hkv: 2}, LSE: true, Seed: 99, Layout: Packed,
		Causal: attention.BottomRight, Seqs: []Seq{{0, 20, 70}, {1, 33, 50}}}
	change(&c)
	return c
}

var (
	everywhere = Spread{On: true, Batches: true, Heads: true, Rows: true}

	ofCausal = faulty(func(*Case) {})
	ofWindow = faulty(func(c *Case) {
		c.Causal, c.Align, c.Window = 0, attention.BottomRight, attention.WindowOf(9, 4)
	})
	ofChunk   = faulty(func(c *Case) { c.AttentionChunk = 24 })
	ofSoftcap = faulty(func(c *Case) { c.Softcap = 1.5 })
	ofALiBi   = faulty(func(c *Case) { c.Causal, c.Align, c.ALiBi = 0, attention.BottomRight, true })
	ofBias    = faulty(func(c *Case) { c.Bias = BiasKind{everywhere, attention.BF16} })
	ofMask    = faulty(func(c *Case) { c.Mask = everywhere })
	ofBlocks  = faulty(func(c *Case) {
		c.BlockQ, c.BlockK, c.Blocks = 16, 16, Spread{On: true, Batches: true, Heads: true}
	})
	ofSparse   = faulty(func(c *Case) { c.SparseRatio, c.Shuffled = 0.4, true })
	ofRowLists = faulty(func(c *Case) { c.SparseRatio, c.PerRow, c.TopK = 0.4, true, true })
	ofPages    = faulty(func(c *Case) { c.PageSize = 16 })
	ofInt8     = faulty(func(c *Case) { c.KeyType, c.ValueType = attention.KVInt8, attention.KVInt8 })
	ofFP8      = faulty(func(c *Case) { c.KeyType, c.ValueType, c.KVBlock = attention.KVFP8, attention.KVFP8, 2 })
	ofQ8       = faulty(func(c *Case) { c.KeyType, c.ValueType = attention.KVQ8_0, attention.KVQ8_0 })
	ofQ4       = faulty(func(c *Case) { c.KeyType, c.ValueType = attention.KVQ4_0, attention.KVQ4_0 })
	ofSinks    = faulty(func(c *Case) { c.Sinks = true })
	ofVarlen   = faulty(func(c *Case) { c.PackedQ, c.PackedK = true, true })
	ofDropout  = faulty(func(c *Case) { c.Dropout = 0.3 })
)

const noDropout = "the formula has no dropout"

var faultsOfOptions = []faultOfOptions{
	{name: "bottom-right is computed as top-left", of: ofCausal, plant: func(c *faultyCall) {
		c.cfg.Causal = attention.TopLeft
	}},
	{name: "a row sees the key past its own", of: ofCausal, plant: func(c *faultyCall) {
		c.cfg.Causal, c.cfg.Align, c.cfg.Window = attention.CausalNone, attention.BottomRight, attention.WindowOf(-1, 1)
	}},
	{name: "the scale is 3 % too large", of: ofCausal, plant: func(c *faultyCall) {
		c.cfg.Scale = attention.ScaleOf(1.03 * c.cfg.ScaleValue())
	}},
	{name: "LSE is in exponents of two", of: ofCausal, after: func(c, _ *faultyCall) { scaleAll(c.lse, math.Log2E) }},
	{name: "O of a head is of the next one", of: ofCausal, after: func(c, _ *faultyCall) {
		copy(c.o, c.o[20*c.Dv:40*c.Dv])
	}},
	{name: "a row has O of the row before", of: ofCausal, after: func(c, _ *faultyCall) {
		copy(c.o[7*c.Dv:8*c.Dv], c.o[6*c.Dv:])
	}},

	{name: "the window is a key wider to the left", of: ofWindow, plant: func(c *faultyCall) {
		c.cfg.Window = attention.WindowOf(10, 4)
	}},
	{name: "the window is a key narrower to the right", of: ofWindow, plant: func(c *faultyCall) {
		c.cfg.Window = attention.WindowOf(9, 3)
	}},
	{name: "the window is aligned to the first key", of: ofWindow, plant: func(c *faultyCall) {
		c.cfg.Align = attention.TopLeft
	}},

	{name: "a chunk has a key more", of: ofChunk, plant: func(c *faultyCall) { c.cfg.AttentionChunk++ }},
	{name: "a chunk is a window", of: ofChunk, plant: func(c *faultyCall) {
		c.cfg.AttentionChunk, c.cfg.Window = 0, attention.WindowOf(23, 0)
	}},

	{name: "the softcap is left out", of: ofSoftcap, plant: func(c *faultyCall) { c.cfg.Softcap = 0 }},
	{name: "the softcap is a tenth too large", of: ofSoftcap, plant: func(c *faultyCall) { c.cfg.Softcap *= 1.1 }},

	{name: "the slope of the next head", of: ofALiBi, plant: func(c *faultyCall) { c.rotate(c.args.ALiBi, 4, 1) }},
	{name: "the slope is added", of: ofALiBi, plant: func(c *faultyCall) {
		c.changeEach(c.args.ALiBi, 4, func(_ int, x float32) float32 { return -x })
	}},
	{name: "distances from the row's number", of: ofALiBi, plant: func(c *faultyCall) {
		c.cfg.Align = attention.TopLeft
	}},

	{name: "the bias is left out", of: ofBias, plant: func(c *faultyCall) { c.args.Bias = nil }},
	{name: "all heads have the bias of the first", of: ofBias, plant: func(c *faultyCall) { c.args.Bias.Heads = 1 }},
	{name: "a bias of bf16 is read as f16", of: ofBias, plant: func(c *faultyCall) {
		c.args.Bias.DType = attention.F16
	}},

	{name: "the mask is left out", of: ofMask, plant: func(c *faultyCall) { c.args.Mask = nil }},
	{name: "all sequences have the mask of the first", of: ofMask, plant: func(c *faultyCall) {
		c.args.Mask.Batches = 1
	}},

	{name: "the bitmap is left out", of: ofBlocks, plant: func(c *faultyCall) { c.args.Blocks = nil }},
	{name: "one bit of a bitmap is wrong", of: ofBlocks, plant: func(c *faultyCall) {
		c.changeWord(c.args.Blocks.Map, 0, func(x uint32) uint32 { return x ^ 2 })
	}},
	{name: "blocks have 32 keys for 16", of: ofBlocks, plant: func(c *faultyCall) { c.args.Blocks.BlockK = 32 }},

	{name: "the first token of a list is left out", of: ofSparse, plant: func(c *faultyCall) {
		c.changeWord(c.args.SparseTokens.Offsets, 0, func(x uint32) uint32 { return x + 1 })
	}},
	{name: "a row takes the list of the row before it", of: ofRowLists, plant: func(c *faultyCall) {
		k := c.args.SparseTokens
		for i := c.args.B*c.args.Sq*c.KVHeads()*k.TopK - 1; i >= c.KVHeads()*k.TopK; i-- {
			before := c.wordAt(k.Tokens, i-c.KVHeads()*k.TopK)
			c.changeWord(k.Tokens, i, func(uint32) uint32 { return before })
		}
	}},
	{name: "a token that is listed twice counts once", of: ofSparse, plant: (*faultyCall).dropDoubles},

	{name: "a page of another sequence", of: ofPages, plant: func(c *faultyCall) {
		c.changeWord(c.args.Pages.Table, 1, func(uint32) uint32 {
			return c.wordAt(c.args.Pages.Table, c.lengths.stride)
		})
	}},
	{name: "two pages in the wrong order", of: ofPages, plant: func(c *faultyCall) {
		x, y := c.wordAt(c.args.Pages.Table, 1), c.wordAt(c.args.Pages.Table, 4)
		c.changeWord(c.args.Pages.Table, 1, func(uint32) uint32 { return y })
		c.changeWord(c.args.Pages.Table, 4, func(uint32) uint32 { return x })
	}},

	{name: "K has the scale of the next key", of: ofInt8, plant: func(c *faultyCall) {
		c.rotate(c.args.KScale, 4*70, 1)
	}},
	{name: "V has no scale", of: ofInt8, plant: func(c *faultyCall) {
		c.changeEach(c.args.VScale, 4*70, func(int, float32) float32 { return 1 })
	}},
	{name: "fp8 is read as int8", of: ofFP8, plant: func(c *faultyCall) { c.cfg.KeyType, c.cfg.ValueType = attention.KVInt8, attention.KVInt8 }},
	{name: "a scale serves one key instead of two", of: ofFP8, plant: func(c *faultyCall) {
		c.changeEach(c.args.VScale, 4*35, func(i int, x float32) float32 { return x * float32(1+i%2) })
	}},
	{name: "the scale of a q8_0 block is twice as large", of: ofQ8, plant: func(c *faultyCall) {
		c.eachBlock(34, func(b []byte) { b[1] += 4 })
	}},
	{name: "the halves of q4_0 bytes are swapped", of: ofQ4, plant: func(c *faultyCall) {
		c.eachBlock(18, func(b []byte) {
			for i := range b[2:] {
				b[2+i] = b[2+i]<<4 | b[2+i]>>4
			}
		})
	}},

	{name: "sinks are left out", of: ofSinks, plant: func(c *faultyCall) { c.args.Sinks = attention.Vector{} }},
	{name: "the sink of the next head", of: ofSinks, plant: func(c *faultyCall) { c.rotate(c.args.Sinks, 4, 1) }},
	{name: "the sink does not count in LSE", of: ofSinks, plant: func(c *faultyCall) {
		c.args.Sinks = attention.Vector{}
	},
		after: func(c, right *faultyCall) { c.o = right.o }},

	{name: "long rows lack their first keys", of: ofVarlen, plant: func(c *faultyCall) {
		c.cfg.Window = attention.WindowOf(60, -1)
	}},
	{name: "keys of the sequence before", of: ofVarlen, plant: func(c *faultyCall) {
		c.changeWord(c.args.Varlen.CuK, 1, func(x uint32) uint32 { return x - 1 })
	}},

	{name: "dropout of another call", of: ofDropout, plant: func(c *faultyCall) {
		c.args.DropoutOffset++
	}, blind: noDropout},
	{name: "dropped weights make no others larger", of: ofDropout, after: func(c, _ *faultyCall) {
		scaleAll(c.o, 0.7)
	}, blind: noDropout},
	{name: "dropout is left out", of: ofDropout, plant: func(c *faultyCall) { c.cfg.Dropout = 0 }, blind: noDropout},
}

func scaleAll(x []float64, by float64) {
	for i := range x {
		x[i] *= by
	}
}

// newFaultyCall is the call of a problem, right so far.
func newFaultyCall(p *Problem) *faultyCall {
	images := make([][]byte, len(p.Image))
	for i, image := range p.Image {
		images[i] = bytes.Clone(image)
	}
	return &faultyCall{Problem: p, cfg: p.Config(Target{DType: p.DType}), args: p.HostArgs(images)}
}

func (c *faultyCall) compute(t *testing.T) {
	t.Helper()
	var err error
	c.o, c.lse, err = attention.ReferenceSample(attention.Config(c.cfg), c.args, c.SampleRows())
	require.NoError(t, err)
}

func (c *faultyCall) wordAt(v attention.Vector, i int) uint32 {
	return binary.LittleEndian.Uint32(v.Host[4*(v.Offset+int64(i)):])
}

func (c *faultyCall) changeWord(v attention.Vector, i int, change func(uint32) uint32) {
	binary.LittleEndian.PutUint32(v.Host[4*(v.Offset+int64(i)):], change(c.wordAt(v, i)))
}

// changeEach changes the first n numbers of a vector.
func (c *faultyCall) changeEach(v attention.Vector, n int, change func(i int, x float32) float32) {
	for i := range n {
		c.changeWord(v, i, func(x uint32) uint32 { return math.Float32bits(change(i, math.Float32frombits(x))) })
	}
}

// rotate gives each of the first n numbers of a vector the value of the one that follows by `by`.
func (c *faultyCall) rotate(v attention.Vector, n, by int) {
	list := make([]float32, n)
	for i := range list {
		list[i] = math.Float32frombits(c.wordAt(v, i))
	}
	c.changeEach(v, n, func(i int, _ float32) float32 { return list[(i+by)%n] })
}

// eachBlock changes the blocks of quantized elements of V.
func (c *faultyCall) eachBlock(bytes int, change func([]byte)) {
	v := c.args.V.Host
	for at := int(c.args.V.Offset) / 32 * bytes; at+bytes <= len(v); at += bytes {
		change(v[at:][:bytes])
	}
}

// dropDoubles removes all but one entry of a token in a list.
func (c *faultyCall) dropDoubles() {
	s := c.args.SparseTokens
	for list := range c.args.B * c.KVHeads() {
		seen := map[uint32]bool{}
		for at := c.wordAt(s.Offsets, list); at < c.wordAt(s.Offsets, list+1); at++ {
			c.changeWord(s.Tokens, int(at), func(token uint32) uint32 {
				if seen[token] {
					return math.MaxUint32 // no key
				}
				seen[token] = true
				return token
			})
		}
	}
}

// The judges refuse each fault in every storage type, and accept the call without it.
func TestJudgesFindFaultsOfOptions(t *testing.T) {
	names := map[string]bool{}
	for _, dtype := range attention.DTypes() {
		t.Run(dtype.String(), func(t *testing.T) {
			t.Parallel()
			type judges struct {
				p     *Problem
				truth Truth
				right *faultyCall
			}
			known := map[string]*judges{}
			for _, f := range faultsOfOptions {
				j := known[f.of.String()]
				verdicts := func(c *faultyCall) (byAccuracy, byFormula error) {
					o, lse := narrowed(c.o, dtype), narrowed(c.lse, attention.F32)
					if v := j.truth.Expected.Judge(o, lse); !v.Pass() {
						byAccuracy = errors.New(v.String())
					}
					judged := NewFormula(j.p).JudgeRows(j.truth.Sample, o, lse)
					return byAccuracy, judged.Err()
				}
				if j == nil {
					p, err := NewProblem(f.of, dtype)
					require.NoError(t, err)
					j = &judges{p: p, right: newFaultyCall(p)}
					known[f.of.String()] = j
					require.NoError(t, j.truth.Expect(p))
					j.right.compute(t)
					byAccuracy, byFormula := verdicts(j.right)
					require.NoError(t, byAccuracy)
					if f.blind == "" {
						require.NoError(t, byFormula)
					}
				}
				c := newFaultyCall(j.p)
				if f.plant != nil {
					f.plant(c)
				}
				c.compute(t)
				if f.after != nil {
					f.after(c, j.right)
				}
				byAccuracy, byFormula := verdicts(c)
				require.Error(t, byAccuracy, f.name)
				if f.blind == "" {
					require.Error(t, byFormula, f.name)
				}
			}
		})
	}
	for _, f := range faultsOfOptions {
		require.False(t, names[f.name], "%s is there twice", f.name)
		names[f.name] = true
	}
	require.GreaterOrEqual(t, len(names), 40)
}

// Faults of gradients of calls with options. The gradients of LSE and O of the case without faults are computed for
// other inputs, or changed afterwards.
var faultsOfGradients = []struct {
	name  string
	of    Case
	plant func(c *faultyCall)
	after func(g *problem.Gradients)
}{
	{name: "the window is a key wider", of: ofWindow, plant: func(c *faultyCall) {
		c.cfg.Window = attention.WindowOf(10, 4)
	}},
	{name: "a chunk has a key more", of: ofChunk, plant: func(c *faultyCall) { c.cfg.AttentionChunk++ }},
	{name: "no derivative of the softcap", of: ofSoftcap, plant: func(c *faultyCall) { c.cfg.Softcap = 0 }},
	{name: "the slope of the next head", of: ofALiBi, plant: func(c *faultyCall) { c.rotate(c.args.ALiBi, 4, 1) }},
	{name: "the bias is left out", of: ofBias, plant: func(c *faultyCall) { c.changeBias(0) }},
	{name: "dBias has the wrong sign", of: ofBias, after: func(g *problem.Gradients) { scaleAll(g.DBias, -1) }},
	{name: "dBias lacks a row", of: ofBias, after: func(g *problem.Gradients) { clear(g.DBias[70*5 : 70*6]) }},
	{name: "dSinks has the wrong sign", of: ofSinks, after: func(g *problem.Gradients) { scaleAll(g.DSinks, -1) }},
	{name: "the mask is left out", of: ofMask, plant: func(c *faultyCall) { c.args.Mask = nil }},
	{name: "dropout of another call", of: ofDropout, plant: func(c *faultyCall) { c.args.DropoutOffset++ }},
	{name: "dV of what dropout keeps is not multiplied", of: ofDropout, after: func(g *problem.Gradients) {
		scaleAll(g.DV, 0.7)
	}},
}

// changeBias sets all of the bias to x.
func (c *faultyCall) changeBias(x float32) {
	b := c.args.Bias
	n := (len(b.Host) - int(b.Offset)*b.DType.Size()) / b.DType.Size()
	list := make([]float32, n)
	for i := range list {
		list[i] = x
	}
	b.DType.Encode(b.Host[int(b.Offset)*b.DType.Size():], list)
}

// The rules of gradients find them in every storage type.
func TestRulesOfGradientsFindFaultsOfOptions(t *testing.T) {
	for _, dtype := range attention.DTypes() {
		t.Run(dtype.String(), func(t *testing.T) {
			t.Parallel()
			known := map[string]*Backward{}
			for _, f := range faultsOfGradients {
				b := known[f.of.String()]
				if b == nil {
					var err error
					b, err = NewBackward(f.of, dtype)
					require.NoError(t, err)
					known[f.of.String()] = b
					require.NoError(t, b.BackwardJudge(b.gradientsOf(t, nil, nil)))
				}
				require.Error(t, b.BackwardJudge(b.gradientsOf(t, f.plant, f.after)), f.name)
			}
		})
	}
}

// gradientsOf is the memory behind a call that computes the gradients of other inputs.
func (b *Backward) gradientsOf(t *testing.T, plant func(*faultyCall), change func(*problem.Gradients)) [][]byte {
	t.Helper()
	c := newFaultyCall(b.Problem)
	if plant != nil {
		plant(c)
	}
	a := b.inputsOnly()
	c.args.O, c.args.LSE = a.O, a.LSE
	a.Args = c.args
	g, err := attention.ReferenceBackward(attention.Config(c.cfg), a)
	require.NoError(t, err)
	if change != nil {
		change(&g)
	}
	after := make([][]byte, len(b.Image))
	for i, image := range b.Image {
		after[i] = bytes.Clone(image)
	}
	for name, x := range map[string]struct {
		list []float64
		rows int // of a head
	}{
		"dQ": {g.DQ, b.args.Sq}, "dK": {g.DK, b.args.Sk}, "dV": {g.DV, b.args.Sk},
		"dBias": {g.DBias, b.args.Sq}, "dSinks": {g.DSinks, 1},
	} {
		to := b.gradientOf(name)
		if to == nil {
			continue
		}
		b.eachRow(to, func(seq, h, row, batch, at int) {
			first := ((seq*to.heads+h)*x.rows + row) * to.dim
			to.dtype.Encode(to.row(after[to.image], batch, h, at), narrowed(x.list[first:][:to.dim], to.dtype))
		})
	}
	return after
}
