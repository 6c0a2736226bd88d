package attention_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/attention/score"
	"vkattn/internal/cases"
	"vkattn/internal/half"
	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/internal/testlevel"
)

// backwardCase is a backward call in host memory: F32 with elements that are multiples of
// 2^-8 below 2, so that steps of 2^-12 are exact.
type backwardCase struct {
	cfg attention.Config
	attention.BackwardArgs
	rng *rand.Rand
}

func newBackward(cfg attention.Config, s attention.Shape, layout layoutOf, seed uint64) *backwardCase {
	cfg.DType = attention.F32
	c := &backwardCase{cfg: cfg, rng: rand.New(rand.NewPCG(seed, 20))}
	c.Shape = s
	c.Q = c.tensor(layout, s.B, s.Hq, s.Sq, cfg.HeadDim)
	c.K = c.tensor(layout, s.B, s.KVHeads(), s.Sk, cfg.HeadDim)
	c.V = c.tensor(layout, s.B, s.KVHeads(), s.Sk, cfg.ValueDim())
	c.DO = c.tensor(layout, s.B, s.Hq, s.Sq, cfg.ValueDim())
	c.DLSE = attention.Tensor{Host: encodeF32(c.numbers(int(s.Rows())))}
	return c
}

func (c *backwardCase) numbers(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(c.rng.IntN(1023)-511) / 256
	}
	return v
}

// tensor makes a tensor of random elements, with NaN between its rows.
func (c *backwardCase) tensor(layout layoutOf, batch, heads, seq, dim int) attention.Tensor {
	t := attention.Tensor{Offset: 3, Strides: layout(heads, seq, dim)}
	n := t.Offset + int64(batch)*max(t.Strides.Batch, int64(heads)*t.Strides.Head) + 7
	t.Host = nans(int(n))
	writeAll(t, attention.F32, batch, heads, seq, dim, c.numbers(batch*heads*seq*dim))
	return t
}

func encodeF32(v []float32) []byte {
	b := make([]byte, 4*len(v))
	half.EncodeF32(b, v)
	return b
}

func nans(n int) []byte {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(math.NaN())
	}
	return encodeF32(v)
}

func vectorF32(v ...float32) attention.Vector { return attention.Vector{Host: encodeF32(v)} }

func vectorI32(v ...int32) attention.Vector {
	f := make([]float32, len(v))
	for i, x := range v {
		f[i] = math.Float32frombits(uint32(x))
	}
	return attention.Vector{Host: encodeF32(f)}
}

func (c *backwardCase) run(t require.TestingT) attention.Gradients {
	g, err := attention.ReferenceBackward(c.cfg, c.BackwardArgs)
	require.NoError(t, err)
	return g
}

// element is one element of a tensor or vector of the call, with its gradient.
type element struct {
	name       string
	b, h, r, d int // batch, head, row or key, and element of it
	host       []byte
	at         int64 // in elements
	got        float64
}

func (e element) String() string { return fmt.Sprintf("%s[%d,%d,%d,%d]", e.name, e.b, e.h, e.r, e.d) }

func (e element) get() float32 {
	var v [1]float32
	half.DecodeF32(v[:], e.host[4*e.at:])
	return v[0]
}

func (e element) set(x float32) { half.EncodeF32(e.host[4*e.at:], []float32{x}) }

// elements lists the elements of a tensor that belong to a sequence: to its keys, or to its
// rows. The gradient is nil or packed [B, heads, Sq or Sk, dim].
func (c *backwardCase) elements(t require.TestingT, name string, x attention.Tensor, ofKeys bool, dim int, gradient []float64) (list []element) {
	sequences, err := tensors.Sequences(c.Args)
	require.NoError(t, err)
	heads, length, cu, total := c.Hq, c.Sq, attention.Vector{}, 0
	if ofKeys {
		heads, length = c.KVHeads(), c.Sk
	}
	if c.Varlen != nil && ofKeys {
		cu, total = c.Varlen.CuK, c.Varlen.TotalK
	} else if c.Varlen != nil {
		cu, total = c.Varlen.CuQ, c.Varlen.TotalQ
	}
	strides := x.Strides.Resolve(heads, length, dim)
	if cu.Given() {
		strides = x.Strides.Resolve(heads, total, dim)
		strides.Batch = 0
	}
	for b, s := range sequences {
		first, n := s.Row, s.Rows
		if ofKeys {
			first, n = s.Key, s.Keys
		}
		for h := range heads {
			for r := range n {
				for d := range dim {
					e := element{name: name, b: b, h: h, r: r, d: d, host: x.Host,
						at: x.Offset + int64(b)*strides.Batch + int64(h)*strides.Head + int64(first+r)*strides.Seq + int64(d)}
					if gradient != nil {
						e.got = gradient[((b*heads+h)*length+r)*dim+d]
					}
					list = append(list, e)
				}
			}
		}
	}
	return list
}

// existing lists the elements of Q, K, V, Bias and Sinks with their gradients.
func (c *backwardCase) existing(t require.TestingT, g attention.Gradients) []element {
	list := slices.Concat(
		c.elements(t, "Q", c.Q, false, c.cfg.HeadDim, g.DQ),
		c.elements(t, "K", c.K, true, c.cfg.HeadDim, g.DK),
		c.elements(t, "V", c.V, true, c.cfg.ValueDim(), g.DV))
	if c.Bias != nil { // packed
		require.Len(t, g.DBias, len(c.Bias.Host)/4)
		for i, x := range g.DBias {
			list = append(list, element{name: "Bias", d: i, host: c.Bias.Host, at: int64(i), got: x})
		}
	}
	if c.Sinks.Given() {
		require.Len(t, g.DSinks, c.Hq)
		for i, x := range g.DSinks {
			list = append(list, element{name: "Sinks", d: i, host: c.Sinks.Host, at: int64(i), got: x})
		}
	}
	return list
}

// loss returns a function that computes, by the forward reference, the sum of O times DO and
// LSE times DLSE over all rows. It may be called again when Q, K, V, Bias or Sinks have changed.
func (c *backwardCase) loss(t require.TestingT) func() float64 {
	weights := func(x attention.Tensor, dim int) []float64 {
		w := make([]float64, int(c.Rows())*dim)
		for _, e := range c.elements(t, "", x, false, dim, nil) {
			w[((e.b*c.Hq+e.h)*c.Sq+e.r)*dim+e.d] = float64(e.get())
		}
		return w
	}
	dO, dLSE := weights(c.DO, c.cfg.ValueDim()), []float64(nil)
	if c.DLSE.Given() {
		dLSE = weights(c.DLSE, 1)
	}
	return func() (sum float64) {
		o, lse, err := attention.Reference(c.cfg, c.Args)
		require.NoError(t, err)
		for i, w := range dO {
			sum += w * o[i]
		}
		for i, u := range dLSE {
			if !math.IsInf(lse[i], -1) {
				sum += u * lse[i]
			}
		}
		return sum
	}
}

// requireDerivative compares every gradient with differences of the loss: central ones of
// two steps, combined so that their error is of the fourth order. A brief run has every
// fourth element, and so every case.
func (c *backwardCase) requireDerivative(t require.TestingT) {
	const h = 0x1p-12
	g, loss := c.run(t), c.loss(t)
	moved := false
	for i, e := range c.existing(t, g) {
		if !testlevel.Share(i%4 == 0) {
			continue
		}
		x := e.get()
		if math.IsInf(float64(x), 0) {
			require.Zero(t, e.got, "gradient of %v, which is %v", e, x)
			continue
		}
		at := func(step float32) float64 {
			require.Equal(t, step, (x+step)-x, "the step is not exact")
			e.set(x + step)
			return loss()
		}
		near, far := at(h)-at(-h), at(2*h)-at(-2*h)
		e.set(x)
		want := (8*near - far) / (12 * h)
		require.InDelta(t, want, e.got, 1e-8*(1+math.Abs(want)), "gradient of %v", e)
		moved = moved || math.Abs(want) > 1e-3
	}
	require.True(t, moved, "every gradient is 0")
}

func (c *backwardCase) bias(batches, heads, rows int) {
	full := func(n, of int) int {
		if n == 0 {
			return of
		}
		return n
	}
	n := full(batches, c.B) * full(heads, c.Hq) * full(rows, c.Sq) * c.Sk
	c.Bias = &attention.Bias{Tensor: attention.Tensor{Host: encodeF32(c.numbers(n))}, DType: attention.F32,
		Batches: batches, Heads: heads, Rows: rows}
}

func (c *backwardCase) mask() {
	m := make([]byte, c.Rows()*int64(c.Sk))
	for i := range m {
		m[i] = byte(c.rng.IntN(2))
	}
	for i := range c.Sk { // a row with nothing
		m[i] = 0
	}
	c.Mask = &attention.Mask{Tensor: attention.Tensor{Host: m}}
}

func (c *backwardCase) blocks() {
	rows, words := (c.Sq+15)/16, ((c.Sk+15)/16+31)/32
	m := make([]int32, c.B*c.Hq*rows*words)
	for i := range m {
		m[i] = int32(c.rng.Uint32())
	}
	c.Blocks = &attention.Blocks{Map: vectorI32(m...), BlockQ: 16, BlockK: 16}
}

// sparse lists tokens in no order: some twice, some that do not exist.
func (c *backwardCase) sparse() {
	var tokens []int32
	offsets := []int32{0}
	for range c.B * c.KVHeads() {
		for key := range c.Sk {
			if c.rng.IntN(2) == 0 {
				tokens = append(tokens, int32(key))
			}
		}
		tokens = append(tokens, int32(c.rng.IntN(c.Sk)), int32(c.Sk), 0, -1, 0)
		list := tokens[offsets[len(offsets)-1]:]
		c.rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		offsets = append(offsets, int32(len(tokens)))
	}
	c.SparseTokens = &attention.SparseTokens{Offsets: vectorI32(offsets...), Tokens: vectorI32(tokens...), Total: len(tokens)}
}

func (c *backwardCase) alibi() { c.ALiBi = vectorF32(c.numbers(c.Hq)...) }

// slopes is alibi with slopes of each sequence.
func (c *backwardCase) slopes() {
	c.ALiBi, c.ALiBiPerSequence = vectorF32(c.numbers(c.B*c.Hq)...), true
}

func (c *backwardCase) sinks() { c.Sinks = vectorF32(c.numbers(c.Hq)...) }

// used gives the sequences of a padded batch lengths.
func (c *backwardCase) used(rows, keys []int32) {
	c.Varlen = &attention.Varlen{UsedQ: vectorI32(rows...), UsedK: vectorI32(keys...)}
}

// packed is the call of a padded one with its sequences packed.
func (c *backwardCase) packed(t require.TestingT) *backwardCase {
	p := *c
	sequences, err := tensors.Sequences(c.Args)
	require.NoError(t, err)
	cuQ, cuK := []int32{0}, []int32{0}
	for _, s := range sequences {
		cuQ, cuK = append(cuQ, cuQ[len(cuQ)-1]+int32(s.Rows)), append(cuK, cuK[len(cuK)-1]+int32(s.Keys))
	}
	totalQ, totalK := int(cuQ[c.B]), int(cuK[c.B])
	pack := func(x attention.Tensor, heads, seq, total, dim int, cu []int32) attention.Tensor {
		y := attention.Tensor{Host: nans(heads * total * dim)}
		from, err := attention.ViewHost(x, attention.F32, heads, seq, dim)
		require.NoError(t, err)
		to, err := attention.ViewHost(y, attention.F32, heads, total, dim)
		require.NoError(t, err)
		row := make([]float32, dim)
		for b := range c.B {
			for h := range heads {
				for r := range int(cu[b+1] - cu[b]) {
					from.ReadRow(row, b, h, r)
					to.WriteRow(row, 0, h, int(cu[b])+r)
				}
			}
		}
		return y
	}
	p.Q = pack(c.Q, c.Hq, c.Sq, totalQ, c.cfg.HeadDim, cuQ)
	p.K = pack(c.K, c.KVHeads(), c.Sk, totalK, c.cfg.HeadDim, cuK)
	p.V = pack(c.V, c.KVHeads(), c.Sk, totalK, c.cfg.ValueDim(), cuK)
	p.DO = pack(c.DO, c.Hq, c.Sq, totalQ, c.cfg.ValueDim(), cuQ)
	if c.DLSE.Given() {
		p.DLSE = pack(c.DLSE, c.Hq, c.Sq, totalQ, 1, cuQ)
	}
	p.Varlen = &attention.Varlen{CuQ: vectorI32(cuQ...), CuK: vectorI32(cuK...), TotalQ: totalQ, TotalK: totalK}
	return &p
}

var (
	small   = attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 5, Sk: 7}
	tall    = attention.Shape{B: 2, Hq: 2, Hkv: 1, Sq: 7, Sk: 4} // some rows attend to nothing
	blocked = attention.Shape{B: 1, Hq: 2, Hkv: 1, Sq: 18, Sk: 35}
	two     = attention.Config{HeadDim: 3, HeadDimV: 2}
)

func withConfig(change func(c *attention.Config)) attention.Config {
	c := two
	change(&c)
	return c
}

// Tables that the modifiers of backwardTable read.
var (
	curveTable = score.FloatTable("curve", 2)
	docTable   = score.IntTable("doc", 1)
)

// expression reads a modifier.
func expression(text string) score.Expr {
	e, err := score.Parse(text, curveTable, docTable)
	if err != nil {
		panic(err)
	}
	return e
}

// tables gives the call the tables that its modifiers read.
func (c *backwardCase) tables() {
	docs := make([]int32, c.Sk)
	for i := range docs {
		docs[i] = int32(i / 3)
	}
	list, _ := score.TablesOf(c.cfg.ScoreMod, c.cfg.MaskMod)
	for _, t := range list {
		switch t {
		case curveTable:
			c.Tables = append(c.Tables, attention.Table{Name: "curve", Dims: [3]int{c.Hq, 5}, Vector: vectorF32(c.numbers(c.Hq * 5)...)})
		case docTable:
			c.Tables = append(c.Tables, attention.Table{Name: "doc", Dims: [3]int{c.Sk}, Vector: vectorI32(docs...)})
		}
	}
}

// backwardRow is a case of backwardTable; set changes the call.
type backwardRow struct {
	name   string
	cfg    attention.Config
	shape  attention.Shape
	layout string
	set    func(t require.TestingT, c *backwardCase)
}

// backwardTable has every option alone, and some together.
var backwardTable = []backwardRow{
	{name: "one head", cfg: two, shape: attention.Shape{B: 1, Hq: 1, Sq: 3, Sk: 4}},
	{name: "grouped heads", cfg: two, shape: small},
	{name: "one key head", cfg: two, shape: attention.Shape{B: 2, Hq: 3, Hkv: 1, Sq: 4, Sk: 5}},
	{name: "one row", cfg: two, shape: attention.Shape{B: 1, Hq: 2, Sq: 1, Sk: 9}},
	{name: "more keys than a tile", cfg: two, shape: attention.Shape{B: 1, Hq: 1, Sq: 3, Sk: 70}},
	{name: "more rows than a block", cfg: two, shape: attention.Shape{B: 1, Hq: 1, Sq: 67, Sk: 3}},
	{name: "Dqk below Dv", cfg: attention.Config{HeadDim: 2, HeadDimV: 5}, shape: small},
	{name: "no DLSE", cfg: two, shape: small, set: func(_ require.TestingT, c *backwardCase) { c.DLSE = attention.Tensor{} }},
	{name: "BSHD", cfg: two, shape: small, layout: "BSHD"},
	{name: "gaps between rows", cfg: two, shape: small, layout: "padded"},
	{name: "scale", cfg: withConfig(func(c *attention.Config) { c.Scale = attention.ScaleOf(-0.75) }), shape: small},
	{name: "top-left", cfg: withConfig(func(c *attention.Config) { c.Causal = attention.TopLeft }), shape: small},
	{name: "bottom-right", cfg: withConfig(func(c *attention.Config) { c.Causal = attention.BottomRight }), shape: small},
	{name: "bottom-right, empty rows", cfg: withConfig(func(c *attention.Config) { c.Causal = attention.BottomRight }), shape: tall},
	{name: "window, causal", cfg: withConfig(func(c *attention.Config) {
		c.Causal, c.Window = attention.BottomRight, attention.WindowOf(2, 0)
	}), shape: small},
	{name: "window, both sides", cfg: withConfig(func(c *attention.Config) {
		c.Align, c.Window = attention.TopLeft, attention.WindowOf(1, 2)
	}), shape: small},
	{name: "softcap", cfg: withConfig(func(c *attention.Config) { c.Softcap = 1.5 }), shape: small},
	{name: "softcap far from 0", cfg: withConfig(func(c *attention.Config) {
		c.Softcap, c.Scale = 0.5, attention.ScaleOf(4)
	}), shape: small},
	{name: "ALiBi", cfg: withConfig(func(c *attention.Config) { c.Align = attention.BottomRight }), shape: small,
		set: func(_ require.TestingT, c *backwardCase) { c.alibi() }},
	{name: "ALiBi of each sequence", cfg: withConfig(func(c *attention.Config) { c.Align = attention.BottomRight }), shape: small,
		set: func(_ require.TestingT, c *backwardCase) { c.slopes() }},
	{name: "bias", cfg: two, shape: small, set: func(_ require.TestingT, c *backwardCase) { c.bias(0, 0, 0) }},
	{name: "bias of all batches", cfg: two, shape: small, set: func(_ require.TestingT, c *backwardCase) { c.bias(1, 0, 0) }},
	{name: "bias of all heads", cfg: two, shape: small, set: func(_ require.TestingT, c *backwardCase) { c.bias(0, 1, 0) }},
	{name: "bias of all rows", cfg: two, shape: small, set: func(_ require.TestingT, c *backwardCase) { c.bias(0, 0, 1) }},
	{name: "one bias of all", cfg: two, shape: small, set: func(_ require.TestingT, c *backwardCase) { c.bias(1, 1, 1) }},
	{name: "bias of -Inf", cfg: two, shape: small, set: func(_ require.TestingT, c *backwardCase) {
		c.bias(0, 0, 0)
		inf := float32(math.Inf(-1))
		half.EncodeF32(c.Bias.Host, []float32{inf, 1, inf, inf, 1, inf, 1, inf, inf, inf, inf, inf, inf, inf}) // row 1 attends to nothing
	}},
	{name: "sinks", cfg: two, shape: small, set: func(_ require.TestingT, c *backwardCase) { c.sinks() }},
	{name: "sinks, empty rows", cfg: withConfig(func(c *attention.Config) { c.Causal = attention.BottomRight }), shape: tall,
		set: func(_ require.TestingT, c *backwardCase) { c.sinks() }},
	{name: "sinks without DLSE", cfg: two, shape: small, set: func(_ require.TestingT, c *backwardCase) {
		c.sinks()
		c.DLSE = attention.Tensor{}
	}},
	{name: "mask", cfg: two, shape: small, set: func(_ require.TestingT, c *backwardCase) { c.mask() }},
	{name: "blocks", cfg: two, shape: blocked, set: func(_ require.TestingT, c *backwardCase) { c.blocks() }},
	{name: "sparse tokens", cfg: two, shape: small, set: func(_ require.TestingT, c *backwardCase) { c.sparse() }},
	{name: "padded sequences", cfg: two, shape: small,
		set: func(_ require.TestingT, c *backwardCase) { c.used([]int32{3, 5}, []int32{6, 2}) }},
	{name: "packed sequences", cfg: two, shape: small, set: func(t require.TestingT, c *backwardCase) {
		c.used([]int32{3, 5}, []int32{6, 2})
		*c = *c.packed(t)
	}},
	{name: "empty sequences", cfg: two, shape: attention.Shape{B: 3, Hq: 2, Hkv: 1, Sq: 4, Sk: 5},
		set: func(t require.TestingT, c *backwardCase) {
			c.used([]int32{0, 3, 4}, []int32{5, 0, 4})
			c.sinks()
			*c = *c.packed(t)
		}},
	{name: "softcap, bias, ALiBi, sinks, causal, window, padded", cfg: withConfig(func(c *attention.Config) {
		c.Softcap, c.Causal, c.Window = 2, attention.BottomRight, attention.WindowOf(3, 0)
	}), shape: small, layout: "BSHD", set: func(_ require.TestingT, c *backwardCase) {
		c.bias(1, 0, 0)
		c.alibi()
		c.sinks()
		c.used([]int32{5, 4}, []int32{3, 7})
	}},
	{name: "softcap, bias, ALiBi, sinks, mask, packed", cfg: withConfig(func(c *attention.Config) {
		c.Softcap, c.Causal = 2, attention.TopLeft
	}), shape: small, set: func(t require.TestingT, c *backwardCase) {
		c.bias(0, 1, 0)
		c.alibi()
		c.sinks()
		c.mask()
		c.used([]int32{5, 4}, []int32{3, 7})
		*c = *c.packed(t)
	}},
	{name: "softcap, bias, ALiBi, sinks, sparse tokens, padded", cfg: withConfig(func(c *attention.Config) {
		c.Softcap, c.Causal = 2, attention.BottomRight
	}), shape: small, set: func(_ require.TestingT, c *backwardCase) {
		c.bias(1, 1, 0)
		c.alibi()
		c.sinks()
		c.sparse()
		c.used([]int32{5, 4}, []int32{6, 7})
	}},
	{name: "blocks, bias, sinks, softcap", cfg: withConfig(func(c *attention.Config) {
		c.Softcap, c.Causal = 2, attention.BottomRight
	}), shape: blocked, set: func(_ require.TestingT, c *backwardCase) {
		c.bias(1, 1, 1)
		c.sinks()
		c.blocks()
	}},
	{name: "dropout", cfg: withConfig(func(c *attention.Config) { c.Dropout = 0.3 }), shape: small,
		set: func(_ require.TestingT, c *backwardCase) { c.DropoutSeed, c.DropoutOffset = 1<<40+7, 3 }},
	{name: "dropout, more keys than a tile", cfg: withConfig(func(c *attention.Config) { c.Dropout = 0.5 }), shape: attention.Shape{B: 1, Hq: 1, Sq: 3, Sk: 70}},
	{name: "dropout, softcap, bias, ALiBi, sinks, causal, packed", cfg: withConfig(func(c *attention.Config) {
		c.Dropout, c.Softcap, c.Causal = 0.6, 2, attention.BottomRight
	}), shape: small, set: func(t require.TestingT, c *backwardCase) {
		c.DropoutSeed = 11
		c.bias(1, 0, 0)
		c.slopes()
		c.sinks()
		c.used([]int32{5, 4}, []int32{6, 7})
		*c = *c.packed(t)
	}},
	{name: "score modifier", cfg: withConfig(func(c *attention.Config) {
		c.ScoreMod = expression("s * (0.5 + 0.25 * float(h - b)) + tanh(s) / (1.0 + 0.1 * float(abs(i - j)))")
	}), shape: small},
	{name: "score modifier of many functions", cfg: withConfig(func(c *attention.Config) {
		c.ScoreMod = expression("sin(s) + cos(s * 0.5) * float(h / 2) + exp(0.25 * s) - log(3.0 + s * s) + sqrt(20.0 + s) + 1.0 / (2.0 + s * s) + (j > 2 ? s : 0.0)")
	}), shape: small},
	{name: "score modifier with a table", cfg: withConfig(func(c *attention.Config) {
		c.ScoreMod = expression("s * curve[h, i - j] + curve[h / 2, j] * s * s + curve[-1, 99]")
	}), shape: small, set: func(_ require.TestingT, c *backwardCase) { c.tables() }},
	{name: "mask modifier", cfg: withConfig(func(c *attention.Config) { c.MaskMod = expression("j <= i && (i + j + h) % 3 != 1") }), shape: small},
	{name: "mask modifier, empty rows", cfg: withConfig(func(c *attention.Config) { c.MaskMod = expression("j <= i && row != 4") }), shape: tall},
	{name: "mask modifier with a table, mask", cfg: withConfig(func(c *attention.Config) { c.MaskMod = expression("doc[i] == doc[j] || j == 1") }), shape: small,
		set: func(_ require.TestingT, c *backwardCase) {
			c.tables()
			c.mask()
		}},
	{name: "modifiers, softcap, bias, ALiBi, sinks, causal, packed", cfg: withConfig(func(c *attention.Config) {
		c.Softcap, c.Causal = 2, attention.BottomRight
		c.ScoreMod, c.MaskMod = expression("tanh(s) * 2.0 + curve[h, j] * s + curve[h, i]"), expression("doc[j] != 1 || i == j")
	}), shape: small, set: func(t require.TestingT, c *backwardCase) {
		c.tables()
		c.bias(1, 0, 0)
		c.alibi()
		c.sinks()
		c.used([]int32{5, 4}, []int32{6, 7})
		*c = *c.packed(t)
	}},
	{name: "modifiers, blocks, one bias of all, dropout", cfg: withConfig(func(c *attention.Config) {
		c.Dropout = 0.25
		c.ScoreMod, c.MaskMod = expression("s + 0.25 * s * s"), expression("(i - j) % 4 != 2")
	}), shape: blocked, set: func(_ require.TestingT, c *backwardCase) {
		c.DropoutSeed = 3
		c.bias(1, 1, 1)
		c.blocks()
	}},
	{name: "modifiers, sparse tokens", cfg: withConfig(func(c *attention.Config) {
		c.ScoreMod, c.MaskMod = expression("s * 1.5 - 0.1 * float(j)"), expression("j % 3 != 2")
	}), shape: small, set: func(_ require.TestingT, c *backwardCase) { c.sparse() }},
	{name: "dropout, sparse tokens", cfg: withConfig(func(c *attention.Config) { c.Dropout = 0.25 }), shape: small,
		set: func(_ require.TestingT, c *backwardCase) {
			c.DropoutSeed = 5
			c.sparse()
		}},
}

// eachBackward runs a test on the whole table.
func eachBackward(t *testing.T, test func(t *testing.T, c *backwardCase)) {
	for i, row := range backwardTable {
		t.Run(row.name, func(t *testing.T) {
			layout := row.layout
			if layout == "" {
				layout = "BHSD"
			}
			c := newBackward(row.cfg, row.shape, layoutsByName[layout], uint64(i))
			if row.set != nil {
				row.set(t, c)
			}
			test(t, c)
		})
	}
	for i, set := range cases.SmallConfigs() {
		cfg := withConfig(func(c *attention.Config) { set((*problem.Config)(c), 3, func(n int) int { return n - 1 }) })
		t.Run(cfg.String(), func(t *testing.T) { test(t, newBackward(cfg, small, attention.BHSD, uint64(i))) })
	}
}

func TestReferenceBackwardIsTheDerivative(t *testing.T) {
	testlevel.HostOnly(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // many small calls
	eachBackward(t, func(t *testing.T, c *backwardCase) { c.requireDerivative(t) })
}

// Random combinations of options, on shapes of any kind.
func TestReferenceBackwardIsTheDerivativeOfAnyCall(t *testing.T) {
	testlevel.OnceOnly(t)
	check(t, func(t *rapid.T) {
		c := drawBackward(t)
		g, loss := c.run(t), c.loss(t)
		list := c.existing(t, g)
		if len(list) == 0 {
			return
		}
		const h = 0x1p-12
		for range 8 {
			e := list[rapid.IntRange(0, len(list)-1).Draw(t, "element")]
			x := e.get()
			at := func(step float32) float64 { e.set(x + step); return loss() }
			want := (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
			e.set(x)
			require.InDelta(t, want, e.got, 1e-7*(1+math.Abs(want)), "gradient of %v", e)
		}
	})
}

// backwardSizes are the largest head dim, length and side of a window of a drawn call.
type backwardSizes struct{ dims, length, window int }

// drawBackward draws a small call with some options.
func drawBackward(t *rapid.T) *backwardCase { return drawBackwardOf(t, backwardSizes{4, 9, 3}) }

func drawBackwardOf(t *rapid.T, most backwardSizes) *backwardCase {
	flip := func(name string) bool { return rapid.Bool().Draw(t, name) }
	masks := []attention.Causal{attention.CausalNone, attention.TopLeft, attention.BottomRight}
	cfg := attention.Config{
		HeadDim: rapid.IntRange(1, most.dims).Draw(t, "d"), HeadDimV: rapid.IntRange(1, most.dims).Draw(t, "dv"),
		Causal:  rapid.SampledFrom(masks).Draw(t, "causal"),
		Softcap: rapid.SampledFrom([]float32{0, 1, 5}).Draw(t, "softcap"),
	}
	if cfg.Causal == attention.CausalNone {
		cfg.Align = rapid.SampledFrom(masks[1:]).Draw(t, "align")
	}
	for i, set := range cases.SmallConfigs() {
		if flip(fmt.Sprintf("option %d of positions", i)) {
			with := cfg
			set((*problem.Config)(&with), most.window, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "distance") })
			if with.Validate() == nil { // some exclude each other
				cfg = with
			}
		}
	}
	kv := rapid.IntRange(1, 2).Draw(t, "hkv")
	s := attention.Shape{
		B: rapid.IntRange(1, 3).Draw(t, "b"), Hkv: kv, Hq: kv * rapid.IntRange(1, 3).Draw(t, "group"),
		Sq: rapid.IntRange(1, most.length).Draw(t, "sq"), Sk: rapid.IntRange(1, most.length).Draw(t, "sk"),
	}
	layout := rapid.SampledFrom([]string{"BHSD", "BSHD", "padded"}).Draw(t, "layout")
	c := newBackward(cfg, s, layoutsByName[layout], rapid.Uint64Range(1, 1<<40).Draw(t, "seed"))
	if flip("bias") {
		size := rapid.IntRange(0, 1)
		c.bias(size.Draw(t, "batches"), size.Draw(t, "heads"), size.Draw(t, "rows"))
	}
	if flip("alibi") {
		if c.alibi(); flip("slopes of each sequence") {
			c.slopes()
		}
		for i := 0; i < len(c.ALiBi.Host)/4 && most.length > 9; i++ { // keeps scores moderate
			e := element{host: c.ALiBi.Host, at: int64(i)}
			e.set(e.get() / 32)
		}
	}
	if flip("sinks") {
		c.sinks()
	}
	if flip("dropout") {
		c.cfg.Dropout = rapid.SampledFrom([]float32{0.1, 0.5, 0.9}).Draw(t, "probability")
		c.DropoutSeed, c.DropoutOffset = rapid.Uint64().Draw(t, "seed of dropout"), rapid.Uint32().Draw(t, "offset")
	}
	switch rapid.IntRange(0, 2).Draw(t, "mask, lists or neither") {
	case 1:
		c.mask()
	case 2:
		c.sparse()
	}
	if flip("lengths") {
		length := func(name string, most int) (n []int32) {
			for range s.B {
				n = append(n, int32(rapid.IntRange(0, most).Draw(t, name)))
			}
			return n
		}
		rows, keys := length("rows", s.Sq), length("keys", s.Sk)
		rows[0], keys[0] = max(rows[0], 1), max(keys[0], 1) // packed tensors have at least a row
		c.used(rows, keys)
		if flip("packed") {
			c = c.packed(t)
		}
	}
	return c
}

// sameGradients requires the same bits.
func sameGradients(t require.TestingT, want, got attention.Gradients, what string) {
	same := func(name string, want, got []float64) {
		require.Len(t, got, len(want), "%s: %s", what, name)
		for i := range want {
			if math.Float64bits(want[i]) != math.Float64bits(got[i]) {
				require.Failf(t, "not the same bits", "%s: element %d of %s is %v, want %v", what, i, name, got[i], want[i])
			}
		}
	}
	same("DQ", want.DQ, got.DQ)
	same("DK", want.DK, got.DK)
	same("DV", want.DV, got.DV)
	same("DBias", want.DBias, got.DBias)
	same("DSinks", want.DSinks, got.DSinks)
}

func TestReferenceBackwardDoesNotDependOnCPUs(t *testing.T) {
	testlevel.HostOnly(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	same := func(t *testing.T, c *backwardCase) {
		runtime.GOMAXPROCS(1)
		want := c.run(t)
		for _, n := range []int{2, 7} {
			runtime.GOMAXPROCS(n)
			sameGradients(t, want, c.run(t), fmt.Sprintf("%d CPUs", n))
		}
	}
	eachBackward(t, same)
	t.Run("lists that have a key in several tiles", func(t *testing.T) {
		c := newBackward(two, attention.Shape{B: 1, Hq: 4, Hkv: 2, Sq: 130, Sk: 200}, attention.BHSD, 1)
		c.sparse()
		same(t, c)
	})
}

func TestReferenceBackwardOfPackedIsOfPadded(t *testing.T) {
	testlevel.HostOnly(t)
	eachBackward(t, func(t *testing.T, c *backwardCase) {
		if c.Varlen != nil && c.Varlen.CuQ.Given() {
			t.Skip("packed already")
		}
		sameGradients(t, c.run(t), c.packed(t).run(t), "packed")
	})
}

// A gradient computed alone has the same bits as one computed with the others, and nothing
// else is computed.
func TestReferenceBackwardComputesWhatHasAnOutput(t *testing.T) {
	testlevel.HostOnly(t)
	eachBackward(t, func(t *testing.T, c *backwardCase) {
		all := c.run(t)
		memory := attention.Tensor{Host: make([]byte, 1<<16)}
		for name, ask := range map[string]func(a *attention.BackwardArgs, want *attention.Gradients){
			"DQ":    func(a *attention.BackwardArgs, want *attention.Gradients) { a.DQ, want.DQ = memory, all.DQ },
			"DK":    func(a *attention.BackwardArgs, want *attention.Gradients) { a.DK, want.DK = memory, all.DK },
			"DV":    func(a *attention.BackwardArgs, want *attention.Gradients) { a.DV, want.DV = memory, all.DV },
			"DBias": func(a *attention.BackwardArgs, want *attention.Gradients) { a.DBias, want.DBias = memory, all.DBias },
			"DSinks": func(a *attention.BackwardArgs, want *attention.Gradients) {
				a.DSinks.Host, want.DSinks = memory.Host, all.DSinks
			},
			"DQ and DV": func(a *attention.BackwardArgs, want *attention.Gradients) {
				a.DQ, want.DQ, a.DV, want.DV = memory, all.DQ, memory, all.DV
			},
		} {
			if name == "DBias" && c.Bias == nil || name == "DSinks" && !c.Sinks.Given() {
				continue
			}
			a, want := c.BackwardArgs, attention.Gradients{}
			ask(&a, &want)
			got, err := attention.ReferenceBackward(c.cfg, a)
			require.NoError(t, err)
			sameGradients(t, want, got, name)
		}
	})
}

// With Accumulate the contents of the outputs are added to the gradients of rows and keys
// that exist. The outputs are not written.
func TestReferenceBackwardAccumulates(t *testing.T) {
	testlevel.HostOnly(t)
	eachBackward(t, func(t *testing.T, c *backwardCase) {
		plain := c.run(t)
		batchQ, seqQ, batchK, seqK := c.B, c.Sq, c.B, c.Sk
		if c.Varlen != nil && c.Varlen.CuQ.Given() {
			batchQ, seqQ, batchK, seqK = 1, c.Varlen.TotalQ, 1, c.Varlen.TotalK
		}
		layout := padded(2)
		c.DQ = c.tensor(layout, batchQ, c.Hq, seqQ, c.cfg.HeadDim)
		c.DK = c.tensor(layout, batchK, c.KVHeads(), seqK, c.cfg.HeadDim)
		c.DV = c.tensor(layout, batchK, c.KVHeads(), seqK, c.cfg.ValueDim())
		before := append(append(append([]byte{}, c.DQ.Host...), c.DK.Host...), c.DV.Host...)
		sameGradients(t, attention.Gradients{DQ: plain.DQ, DK: plain.DK, DV: plain.DV}, c.run(t), "overwritten")
		c.Accumulate = true
		got := c.run(t)
		require.Equal(t, before, append(append(append([]byte{}, c.DQ.Host...), c.DK.Host...), c.DV.Host...))

		// The stored gradients lie where Q, K and V do in their tensors, so existing finds
		// them.
		stored := *c
		stored.Q, stored.K, stored.V, stored.Bias, stored.Sinks = c.DQ, c.DK, c.DV, nil, attention.Vector{}
		sums, gradients := stored.existing(t, got), stored.existing(t, plain)
		for i, e := range sums {
			require.Equal(t, gradients[i].got+float64(e.get()), e.got, "gradient of %v", e)
		}
		// Nothing is added elsewhere.
		existing := map[string]int{}
		for _, e := range sums {
			existing[e.name[:1]]++
		}
		for name, g := range map[string][]float64{"Q": got.DQ, "K": got.DK, "V": got.DV} {
			require.LessOrEqual(t, countNonZero(g), existing[name], "D%s", name)
		}
	})
}

func countNonZero(list []float64) (n int) {
	for _, x := range list {
		if x != 0 {
			n++
		}
	}
	return n
}

// Give every query head its own copy of its key head: the sums of dK and dV over a group
// are dK and dV of the call with grouped heads.
func TestReferenceBackwardSumsGroups(t *testing.T) {
	testlevel.HostOnly(t)
	eachBackward(t, func(t *testing.T, c *backwardCase) {
		if c.SparseTokens != nil {
			t.Skip("lists belong to key heads")
		}
		grouped := c.run(t)
		single := *c
		single.Hkv = c.Hq
		copies := func(x attention.Tensor, dim int) attention.Tensor {
			batches, seq := c.B, c.Sk
			if c.Varlen != nil && c.Varlen.CuK.Given() {
				batches, seq = 1, c.Varlen.TotalK
			}
			y := attention.Tensor{Host: nans(batches * c.Hq * seq * dim)}
			from, err := attention.ViewHost(x, attention.F32, c.KVHeads(), seq, dim)
			require.NoError(t, err)
			to, err := attention.ViewHost(y, attention.F32, c.Hq, seq, dim)
			require.NoError(t, err)
			row := make([]float32, dim)
			for b := range batches {
				for h := range c.Hq {
					for r := range seq {
						from.ReadRow(row, b, h/c.Group(), r)
						to.WriteRow(row, b, h, r)
					}
				}
			}
			return y
		}
		single.K, single.V = copies(c.K, c.cfg.HeadDim), copies(c.V, c.cfg.ValueDim())
		g := single.run(t)
		sum := func(list []float64, dim int) []float64 {
			sums := make([]float64, c.B*c.KVHeads()*c.Sk*dim)
			for i, x := range list {
				b, h, e := i/(c.Hq*c.Sk*dim), i/(c.Sk*dim)%c.Hq, i%(c.Sk*dim)
				sums[(b*c.KVHeads()+h/c.Group())*c.Sk*dim+e] += x
			}
			return sums
		}
		require.InDeltaSlice(t, sum(g.DK, c.cfg.HeadDim), grouped.DK, 1e-12)
		require.InDeltaSlice(t, sum(g.DV, c.cfg.ValueDim()), grouped.DV, 1e-12)
		require.Equal(t, g.DQ, grouped.DQ)
	})
}

// attended says which rows attend to which keys, [B, Hq, Sq, Sk]: those whose O has a
// share of V. A bias excludes nothing.
func (c *backwardCase) attended(t require.TestingT) []bool {
	probe := *c
	probe.Bias, probe.cfg.Softcap, probe.cfg.Dropout = nil, 0, 0
	probe.V.Host = make([]byte, len(c.V.Host))
	dv, seen := c.cfg.ValueDim(), make([]bool, c.Rows()*int64(c.Sk))
	for key := range c.Sk {
		for _, e := range probe.elements(t, "V", probe.V, true, dv, nil) {
			e.set(0)
			if e.r == key {
				e.set(1)
			}
		}
		o, _, err := attention.Reference(probe.cfg, probe.Args)
		require.NoError(t, err)
		for row := range int(c.Rows()) {
			seen[row*c.Sk+key] = o[row*dv] != 0
		}
	}
	return seen
}

// spoiled is the call with x in all memory of Q, K, V, Bias, DO and DLSE that takes no part:
// keys that no row attends to, rows that attend to no key, and what lies past a length or
// between rows.
func (c *backwardCase) spoiled(t require.TestingT, x float32) *backwardCase {
	seen := c.attended(t)
	row := func(b, h, r int) []bool { return seen[((b*c.Hq+h)*c.Sq+r)*c.Sk:][:c.Sk] }
	rowTakesPart := func(e element) bool { return slices.Contains(row(e.b, e.h, e.r), true) }
	keyTakesPart := func(e element) bool {
		for h := e.h * c.Group(); h < (e.h+1)*c.Group(); h++ {
			for r := range c.Sq {
				if row(e.b, h, r)[e.r] {
					return true
				}
			}
		}
		return false
	}
	s := *c
	fill := func(host []byte, list []element, takesPart func(element) bool) []byte {
		spoiled := make([]byte, len(host))
		for i := range len(host) / 4 {
			half.EncodeF32(spoiled[4*i:], []float32{x})
		}
		for _, e := range list {
			if takesPart(e) {
				copy(spoiled[4*e.at:][:4], host[4*e.at:])
			}
		}
		return spoiled
	}
	d, dv := c.cfg.HeadDim, c.cfg.ValueDim()
	s.Q.Host = fill(c.Q.Host, c.elements(t, "Q", c.Q, false, d, nil), rowTakesPart)
	s.K.Host = fill(c.K.Host, c.elements(t, "K", c.K, true, d, nil), keyTakesPart)
	s.V.Host = fill(c.V.Host, c.elements(t, "V", c.V, true, dv, nil), keyTakesPart)
	s.DO.Host = fill(c.DO.Host, c.elements(t, "DO", c.DO, false, dv, nil), rowTakesPart)
	if c.DLSE.Given() {
		s.DLSE.Host = fill(c.DLSE.Host, c.elements(t, "DLSE", c.DLSE, false, 1, nil), func(e element) bool {
			return c.Sinks.Given() || rowTakesPart(e)
		})
	}
	if c.Bias != nil {
		bias := *c.Bias
		n := [3]int{bias.Batches, bias.Heads, bias.Rows}
		var list []element
		for i, seen := range seen {
			at := [3]int{i / (c.Hq * c.Sq * c.Sk), i / (c.Sq * c.Sk) % c.Hq, i / c.Sk % c.Sq}
			size := [3]int{c.B, c.Hq, c.Sq}
			for j := range at {
				if n[j] == 1 {
					at[j], size[j] = 0, 1
				}
			}
			if seen {
				list = append(list, element{at: int64(((at[0]*size[1]+at[1])*size[2]+at[2])*c.Sk + i%c.Sk)})
			}
		}
		bias.Host = fill(bias.Host, list, func(element) bool { return true })
		s.Bias = &bias
	}
	return &s
}

func TestReferenceBackwardIgnoresWhatTakesNoPart(t *testing.T) {
	testlevel.HostOnly(t)
	spoiled := 0
	eachBackward(t, func(t *testing.T, c *backwardCase) {
		want := c.run(t)
		for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			s := c.spoiled(t, float32(x))
			if !slices.Equal(c.K.Host, s.K.Host) {
				spoiled++
			}
			sameGradients(t, want, s.run(t), fmt.Sprint(x))
		}
	})
	require.Greater(t, spoiled, 12)
}

// A row that attends to nothing has gradient 0, and a key that only such rows could attend
// to has none either. A sink is then the row's LSE.
func TestReferenceBackwardOfRowsThatAttendToNothing(t *testing.T) {
	testlevel.HostOnly(t)
	c := newBackward(attention.Config{HeadDim: 3, Causal: attention.BottomRight},
		attention.Shape{B: 1, Hq: 2, Sq: 6, Sk: 2}, attention.BHSD, 1)
	g := c.run(t)
	for h := range 2 {
		require.Zero(t, countNonZero(g.DQ[h*18:][:12]), "rows 0 to 3")
		// Row 4 attends to one key: its P is constant, and LSE moves with q by dLSE alone.
		require.NotZero(t, countNonZero(g.DQ[h*18+12:][:6]))
	}
	c.used([]int32{6}, []int32{0})
	c.Sinks = vectorF32(0.5, -3)
	g = c.run(t)
	require.Zero(t, countNonZero(g.DQ)+countNonZero(g.DK)+countNonZero(g.DV))
	sums := make([]float64, 2)
	for _, e := range c.elements(t, "DLSE", c.DLSE, false, 1, nil) {
		sums[e.h] += float64(e.get())
	}
	require.InDeltaSlice(t, sums, g.DSinks, 1e-12)
	c.Sinks = vectorF32(float32(math.Inf(-1)), float32(math.Inf(-1)))
	require.Zero(t, countNonZero(c.run(t).DSinks))
}

// A NaN that takes part reaches the gradients of its row and of the row's keys, no other.
func TestReferenceBackwardOfNaN(t *testing.T) {
	testlevel.HostOnly(t)
	count := func(list []float64) (n int) {
		for _, x := range list {
			if math.IsNaN(x) {
				n++
			}
		}
		return n
	}
	cfg := attention.Config{HeadDim: 2, Causal: attention.TopLeft}
	shape := attention.Shape{B: 1, Hq: 2, Sq: 4, Sk: 4}
	for name, spoil := range map[string]func(c *backwardCase) element{
		"Q":  func(c *backwardCase) element { return c.elements(t, "Q", c.Q, false, 2, nil)[2*2] },
		"DO": func(c *backwardCase) element { return c.elements(t, "DO", c.DO, false, 2, nil)[2*2] },
	} {
		t.Run(name, func(t *testing.T) {
			c := newBackward(cfg, shape, attention.BHSD, 2)
			spoil(c).set(float32(math.NaN()))
			g := c.run(t)
			require.Equal(t, 2, count(g.DQ), "row 2 of head 0")
			require.Equal(t, 6, count(g.DK), "keys 0 to 2 of head 0")
			if name == "Q" {
				require.Equal(t, 6, count(g.DV))
			} else {
				require.Equal(t, 3, count(g.DV), "one column")
			}
		})
	}
	t.Run("a key of weight 0", func(t *testing.T) {
		c := newBackward(cfg, shape, attention.BHSD, 2)
		c.bias(1, 1, 1)
		half.EncodeF32(c.Bias.Host[4:], []float32{float32(math.Inf(-1))})
		want := c.run(t)
		for _, e := range c.elements(t, "V", c.V, true, 2, nil) {
			if e.r == 1 {
				e.set(float32(math.NaN()))
			}
		}
		sameGradients(t, want, c.run(t), "NaN in V")
		for _, e := range c.elements(t, "K", c.K, true, 2, nil) {
			if e.r == 1 {
				e.set(float32(math.Inf(-1))) // so that the scores are -Inf without the bias
			}
		}
		for _, e := range c.elements(t, "Q", c.Q, false, 2, nil) {
			e.set(1 + float32(math.Abs(float64(e.get()))))
		}
		got := c.run(t)
		c.K.Host = newBackward(cfg, shape, attention.BHSD, 2).K.Host // finite
		sameGradients(t, c.run(t), got, "-Inf in K")
	})
}

// The bits depend on the numbers, not on the type that stores them.
func TestReferenceBackwardOfStorageTypes(t *testing.T) {
	testlevel.HostOnly(t)
	c := newBackward(attention.Config{HeadDim: 3, HeadDimV: 2, Softcap: 3}, small, attention.BHSD, 3)
	c.bias(0, 1, 0)
	for _, x := range [][]element{c.elements(t, "Q", c.Q, false, 3, nil), c.elements(t, "K", c.K, true, 3, nil),
		c.elements(t, "V", c.V, true, 2, nil), c.elements(t, "DO", c.DO, false, 2, nil)} {
		for _, e := range x {
			e.set(float32(math.Round(float64(e.get())*32) / 32)) // exact in bf16
		}
	}
	want := c.run(t)
	for _, dtype := range []attention.DType{attention.F16, attention.BF16} {
		n := *c
		n.cfg.DType = dtype
		for _, x := range []*attention.Tensor{&n.Q, &n.K, &n.V, &n.DO} {
			v := make([]float32, len(x.Host)/4)
			half.DecodeF32(v, x.Host)
			x.Host = make([]byte, 2*len(v))
			dtype.Encode(x.Host, v)
		}
		sameGradients(t, want, n.run(t), dtype.String())
	}
}

func TestReferenceBackwardRefuses(t *testing.T) {
	testlevel.HostOnly(t)
	memory := attention.Tensor{Host: make([]byte, 4096)}
	for _, r := range []struct {
		name, field string // field of a ShapeError; "": ErrUnsupported
		change      func(c *backwardCase)
	}{
		{"no head dim", "HeadDim", func(c *backwardCase) { c.cfg.HeadDim = 0 }},
		{"no rows", "Sq", func(c *backwardCase) { c.Sq = 0 }},
		{"no K", "K", func(c *backwardCase) { c.K = attention.Tensor{} }},
		{"no DO", "DO", func(c *backwardCase) { c.DO = attention.Tensor{} }},
		{"short DO", "DO", func(c *backwardCase) { c.DO.Host = c.DO.Host[:40] }},
		{"DLSE without memory", "DLSE", func(c *backwardCase) { c.DLSE = attention.Tensor{Offset: 1} }},
		{"short DLSE", "DLSE", func(c *backwardCase) { c.DLSE.Host = c.DLSE.Host[4:] }},
		{"strides of DLSE", "DLSE.Strides", func(c *backwardCase) { c.DLSE.Strides = attention.Strides{Batch: 1, Head: 1, Seq: 1} }},
		{"short DQ", "DQ", func(c *backwardCase) { c.DQ.Host = make([]byte, 8) }},
		{"DK without memory", "DK", func(c *backwardCase) { c.DK.Strides = attention.Strides{Seq: 8} }},
		{"offset of DV", "DV.Offset", func(c *backwardCase) { c.DV = memory; c.DV.Offset = -1 }},
		{"DBias without Bias", "DBias", func(c *backwardCase) { c.DBias = memory }},
		{"short DBias", "DBias", func(c *backwardCase) { c.bias(0, 0, 0); c.DBias.Host = make([]byte, 4) }},
		{"DSinks without Sinks", "DSinks", func(c *backwardCase) { c.DSinks.Host = memory.Host }},
		{"short DSinks", "DSinks", func(c *backwardCase) { c.sinks(); c.DSinks.Host = make([]byte, 4) }},
		{"nothing to add to", "Accumulate", func(c *backwardCase) { c.Accumulate = true }},
		{"pages", "", func(c *backwardCase) {
			c.Pages = &attention.Pages{Table: vectorI32(0, 0, 0, 0), PageSize: 4, Count: 1}
		}},
		{"quantized", "", func(c *backwardCase) {
			c.cfg.KeyType, c.cfg.ValueType = attention.KVInt8, attention.KVInt8
			c.KScale = vectorF32(make([]float32, 28)...)
			c.VScale = c.KScale
		}},
		{"blocks and lists", "", func(c *backwardCase) { c.blocks(); c.sparse() }},
	} {
		t.Run(r.name, func(t *testing.T) {
			c := newBackward(two, small, attention.BHSD, 1)
			r.change(c)
			g, err := attention.ReferenceBackward(c.cfg, c.BackwardArgs)
			require.Error(t, err)
			require.Equal(t, attention.Gradients{}, g)
			if r.field == "" {
				require.ErrorIs(t, err, attention.ErrUnsupported)
				return
			}
			var shape *attention.ShapeError
			require.ErrorAs(t, err, &shape)
			require.Equal(t, r.field, shape.Field)
		})
	}
}

// Results and lists of keys have the size of the shape, whatever the tensors take.
func TestReferenceBackwardRefusesWhatDoesNotFitTheHostsMemory(t *testing.T) {
	testlevel.HostOnly(t)
	t.Setenv(hostmem.Variable, "256MiB")
	for name, s := range map[string]attention.Shape{
		"batches":       {B: 1 << 30, Hq: 1, Sq: 1, Sk: 1},
		"heads":         {B: 1, Hq: 1 << 30, Hkv: 1, Sq: 1, Sk: 1},
		"all at 2^62":   {B: 1 << 30, Hq: 1<<31 - 2, Hkv: 1, Sq: 2, Sk: 1},
		"keys of a row": {B: 1, Hq: 1, Sq: 1, Sk: 1 << 30},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, a := repeated(s)
			refusedForMemory(t, func() error {
				_, err := attention.ReferenceBackward(cfg, attention.BackwardArgs{Args: a, DO: a.Q})
				return err
			})
		})
	}
}
