package attention_test

import (
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/internal/half"
	"vkattn/internal/hostmem"
	"vkattn/internal/tensors"
	"vkattn/internal/testlevel"
)

// gradientError bounds the difference to the float64 reference, per tensor:
//
//	max |x - ref| <= relative * max |ref| + absolute
//	sum (x - ref)^2 <= nmse * sum ref^2 + (elements + 15) * (absolute / 4)^2
//
// of which the second grants one element alone what the first does.
// dP - delta may cancel, and delta has an absolute error of about dO times half a unit of O
// in the storage type, whatever the size of a gradient. Dropout makes dP of the slots that it keeps, and so what
// cancels, 1 / (1 - Dropout) times as large: so is absolute.
type gradientError struct{ relative, absolute, nmse float64 }

var gradientErrors = map[attention.DType]gradientError{
	attention.F32:  {2e-5, 1e-5, 1e-10},
	attention.F16:  {3e-3, 2e-3, 1e-5},
	attention.BF16: {2e-2, 1.6e-2, 1e-4},
}

// sentinel fills outputs before a call: a NaN of every type.
const sentinel = 0xff

// stored is a copy of the call with its tensors in a storage type.
func (c *backwardCase) stored(dtype attention.DType) *backwardCase {
	n := *c
	n.cfg.DType = dtype
	if dtype == attention.F32 {
		return &n
	}
	for _, x := range []*attention.Tensor{&n.Q, &n.K, &n.V, &n.DO} {
		v := make([]float32, len(x.Host)/4)
		half.DecodeF32(v, x.Host)
		x.Host = make([]byte, 2*len(v))
		dtype.Encode(x.Host, v)
	}
	return &n
}

// extents are the sizes of the tensors of a call.
func (c *backwardCase) extents() (batchQ, seqQ, batchK, seqK int) {
	batchQ, seqQ, batchK, seqK = c.B, c.Sq, c.B, c.Sk
	if c.Varlen != nil && c.Varlen.CuQ.Given() {
		batchQ, seqQ = 1, c.Varlen.TotalQ
	}
	if c.Varlen != nil && c.Varlen.CuK.Given() {
		batchK, seqK = 1, c.Varlen.TotalK
	}
	return batchQ, seqQ, batchK, seqK
}

// forward computes O and LSE on the CPU tier.
func (c *backwardCase) forward(t require.TestingT) {
	batch, seq, _, _ := c.extents()
	c.O = c.output(batch, c.Hq, seq, c.cfg.ValueDim(), c.cfg.DType)
	c.LSE = attention.Tensor{Host: make([]byte, 4*batch*c.Hq*seq)}
	require.NoError(t, attention.CheckArgs(c.cfg, c.Args))
	require.NoError(t, attention.ForwardCPU(c.cfg, c.Args))
}

// output makes a tensor for results, with gaps between its rows.
func (c *backwardCase) output(batch, heads, seq, dim int, dtype attention.DType) attention.Tensor {
	x := attention.Tensor{Offset: 1, Strides: padded(2)(heads, seq, dim)}
	x.Host = make([]byte, (x.Offset+int64(batch)*x.Strides.Batch+3)*int64(dtype.Size()))
	for i := range x.Host {
		x.Host[i] = sentinel
	}
	return x
}

// outputs gives every gradient that the call has an output.
func (c *backwardCase) outputs() {
	batchQ, seqQ, batchK, seqK := c.extents()
	d, dv := c.cfg.HeadDim, c.cfg.ValueDim()
	c.DQ = c.output(batchQ, c.Hq, seqQ, d, c.cfg.DType)
	c.DK = c.output(batchK, c.KVHeads(), seqK, d, c.cfg.DType)
	c.DV = c.output(batchK, c.KVHeads(), seqK, dv, c.cfg.DType)
	if c.Bias != nil {
		n := c.biasSizes()
		c.DBias = c.output(n[0], n[1], n[2], c.Sk, attention.F32)
	}
	if c.Sinks.Given() {
		c.DSinks = attention.Vector{Host: make([]byte, 4*c.Hq)}
	}
}

func (c *backwardCase) biasSizes() [3]int {
	n := [3]int{c.Bias.Batches, c.Bias.Heads, c.Bias.Rows}
	for i, full := range [3]int{c.B, c.Hq, c.Sq} {
		if n[i] == 0 {
			n[i] = full
		}
	}
	return n
}

// onCPU computes the gradients that have an output, or all of them, on the CPU tier.
func (c *backwardCase) onCPU(t require.TestingT) attention.Gradients {
	if !c.O.Given() {
		c.forward(t)
	}
	if !c.DQ.Given() && !c.DK.Given() && !c.DV.Given() && !c.DBias.Given() && !c.DSinks.Given() {
		c.outputs()
	}
	require.NoError(t, attention.BackwardCPU(c.cfg, c.BackwardArgs))
	return c.gradients(t)
}

// gradients reads the outputs, packed like the outputs of the reference. What lies in rows
// that do not exist must be 0.
func (c *backwardCase) gradients(t require.TestingT) (g attention.Gradients) {
	d, dv := c.cfg.HeadDim, c.cfg.ValueDim()
	g.DQ = c.sequencesOf(t, "DQ", c.DQ, false, d)
	g.DK = c.sequencesOf(t, "DK", c.DK, true, d)
	g.DV = c.sequencesOf(t, "DV", c.DV, true, dv)
	if c.DBias.Given() {
		n := c.biasSizes()
		for b := range n[0] {
			g.DBias = append(g.DBias, c.rowsOf(t, c.DBias, attention.F32, n[1], n[2], b, 0, n[2], c.Sk)...)
		}
	}
	if c.DSinks.Given() {
		v := make([]float32, c.Hq)
		half.DecodeF32(v, c.DSinks.Host)
		for _, x := range v {
			g.DSinks = append(g.DSinks, float64(x))
		}
	}
	return g
}

// rowsOf reads n rows from row first on of all heads of a batch.
func (c *backwardCase) rowsOf(t require.TestingT, x attention.Tensor, dtype attention.DType, heads, seq, batch, first, n, dim int) []float64 {
	view, err := attention.ViewHost(x, dtype, heads, seq, dim)
	require.NoError(t, err)
	var list []float64
	row := make([]float32, dim)
	for h := range heads {
		for r := range n {
			view.ReadRow(row, batch, h, first+r)
			for _, y := range row {
				list = append(list, float64(y))
			}
		}
	}
	return list
}

func (c *backwardCase) sequencesOf(t require.TestingT, name string, x attention.Tensor, ofKeys bool, dim int) []float64 {
	if !x.Given() {
		return nil
	}
	sequences, err := tensors.Sequences(c.Args)
	require.NoError(t, err)
	_, seq, _, seqK := c.extents()
	heads, most := c.Hq, c.Sq
	packed := c.Varlen != nil && c.Varlen.CuQ.Given()
	if ofKeys {
		heads, most, seq = c.KVHeads(), c.Sk, seqK
		packed = c.Varlen != nil && c.Varlen.CuK.Given()
	}
	list := make([]float64, c.B*heads*most*dim)
	for b, s := range sequences {
		first, n, batch := s.Row, s.Rows, b
		if ofKeys {
			first, n = s.Key, s.Keys
		}
		if packed {
			batch = 0
		}
		rows := c.rowsOf(t, x, c.cfg.DType, heads, seq, batch, first, n, dim)
		for h := range heads {
			copy(list[(b*heads+h)*most*dim:], rows[h*n*dim:][:n*dim])
		}
		if !packed && !c.Accumulate {
			for _, y := range c.rowsOf(t, x, c.cfg.DType, heads, seq, b, n, most-n, dim) {
				require.Zero(t, math.Float64bits(y), "%s past the end of sequence %d", name, b)
			}
		}
	}
	return list
}

// requireNear compares gradients of a call with the reference.
func requireNear(t require.TestingT, want, got attention.Gradients, cfg *attention.Config) {
	limit := gradientErrors[cfg.DType]
	limit.absolute /= 1 - float64(cfg.Dropout)
	near := func(name string, want, got []float64) {
		require.Len(t, got, len(want), name)
		var most, worst, squares, errors float64
		at := 0
		for i, x := range want {
			if math.IsNaN(x) {
				require.True(t, math.IsNaN(got[i]), "element %d of %s is %v, want NaN", i, name, got[i])
				continue
			}
			off := math.Abs(got[i] - x)
			if !(off <= worst) {
				worst, at = off, i
			}
			most, squares, errors = max(most, math.Abs(x)), squares+x*x, errors+off*off
		}
		require.LessOrEqual(t, worst, limit.relative*most+limit.absolute, "%s: element %d is %v, want %v", name, at, safe(got, at), safe(want, at))
		floor := float64(len(want)+15) * limit.absolute * limit.absolute / 16
		require.LessOrEqual(t, errors, limit.nmse*squares+floor, "squared error of %s", name)
	}
	near("DQ", want.DQ, got.DQ)
	near("DK", want.DK, got.DK)
	near("DV", want.DV, got.DV)
	near("DBias", want.DBias, got.DBias)
	near("DSinks", want.DSinks, got.DSinks)
}

func safe(list []float64, i int) float64 {
	if i < len(list) {
		return list[i]
	}
	return math.NaN()
}

func TestCPUBackwardMatchesReference(t *testing.T) {
	testlevel.HostOnly(t)
	for _, dtype := range attention.DTypes() {
		t.Run(dtype.String(), func(t *testing.T) {
			eachBackward(t, func(t *testing.T, c *backwardCase) {
				c = c.stored(dtype)
				want := c.run(t)
				requireNear(t, want, c.onCPU(t), &c.cfg)
			})
		})
	}
}

// backwardShapes have several tiles, rows and keys past their last, head dims that are no
// multiple of a vector, and rows and keys without each other.
var backwardShapes = []struct {
	name  string
	cfg   attention.Config
	shape attention.Shape
	set   func(t require.TestingT, c *backwardCase)
}{
	{name: "64", cfg: attention.Config{HeadDim: 64}, shape: attention.Shape{B: 1, Hq: 2, Sq: 200, Sk: 150}},
	{name: "64, top-left", cfg: attention.Config{HeadDim: 64, Causal: attention.TopLeft}, shape: attention.Shape{B: 1, Hq: 2, Sq: 190, Sk: 200}},
	{name: "128, bottom-right, grouped", cfg: attention.Config{HeadDim: 128, Causal: attention.BottomRight}, shape: attention.Shape{B: 2, Hq: 6, Hkv: 2, Sq: 70, Sk: 130}},
	{name: "40 and 72, one key head", cfg: attention.Config{HeadDim: 40, HeadDimV: 72}, shape: attention.Shape{B: 1, Hq: 5, Hkv: 1, Sq: 129, Sk: 65}},
	{name: "192 and 128", cfg: attention.Config{HeadDim: 192, HeadDimV: 128, Causal: attention.BottomRight}, shape: attention.Shape{B: 1, Hq: 1, Sq: 100, Sk: 140}},
	{name: "256", cfg: attention.Config{HeadDim: 256}, shape: attention.Shape{B: 1, Hq: 1, Sq: 65, Sk: 70}},
	{name: "7 and 5, bottom-right, empty rows", cfg: attention.Config{HeadDim: 7, HeadDimV: 5, Causal: attention.BottomRight}, shape: attention.Shape{B: 2, Hq: 2, Sq: 300, Sk: 130}},
	{name: "window", cfg: attention.Config{HeadDim: 24, Causal: attention.BottomRight, Window: attention.WindowOf(80, 0)}, shape: attention.Shape{B: 1, Hq: 2, Sq: 300, Sk: 350}},
	{name: "window, both sides", cfg: attention.Config{HeadDim: 17, Align: attention.BottomRight, Window: attention.WindowOf(30, 60)}, shape: attention.Shape{B: 1, Hq: 4, Hkv: 2, Sq: 250, Sk: 200}},
	{name: "softcap, bias of all, ALiBi, sinks", cfg: attention.Config{HeadDim: 32, Softcap: 4, Align: attention.TopLeft}, shape: attention.Shape{B: 3, Hq: 6, Hkv: 2, Sq: 150, Sk: 140},
		set: func(_ require.TestingT, c *backwardCase) {
			c.bias(1, 1, 0)
			c.alibi()
			c.sinks()
		}},
	{name: "bias of all rows", cfg: attention.Config{HeadDim: 16}, shape: attention.Shape{B: 3, Hq: 6, Hkv: 2, Sq: 90, Sk: 140},
		set: func(_ require.TestingT, c *backwardCase) { c.bias(1, 0, 1) }},
	{name: "one bias of all", cfg: attention.Config{HeadDim: 16}, shape: attention.Shape{B: 3, Hq: 6, Hkv: 2, Sq: 90, Sk: 140},
		set: func(_ require.TestingT, c *backwardCase) { c.bias(1, 1, 1) }},
	{name: "bias of all batches, lengths", cfg: attention.Config{HeadDim: 16, Causal: attention.BottomRight}, shape: attention.Shape{B: 4, Hq: 2, Sq: 150, Sk: 200},
		set: func(_ require.TestingT, c *backwardCase) {
			c.bias(1, 0, 0)
			c.used([]int32{150, 0, 70, 140}, []int32{20, 200, 180, 66})
		}},
	{name: "mask, sinks", cfg: attention.Config{HeadDim: 16}, shape: attention.Shape{B: 2, Hq: 2, Sq: 100, Sk: 140},
		set: func(_ require.TestingT, c *backwardCase) {
			c.mask()
			c.sinks()
		}},
	{name: "blocks", cfg: attention.Config{HeadDim: 16, Causal: attention.TopLeft}, shape: attention.Shape{B: 1, Hq: 2, Sq: 200, Sk: 300},
		set: func(_ require.TestingT, c *backwardCase) { c.blocks() }},
	{name: "sparse tokens", cfg: attention.Config{HeadDim: 16, Causal: attention.BottomRight, Softcap: 3}, shape: attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 150, Sk: 400},
		set: func(_ require.TestingT, c *backwardCase) {
			c.sparse()
			c.bias(0, 0, 0)
		}},
	{name: "sparse tokens, bias of all", cfg: attention.Config{HeadDim: 8}, shape: attention.Shape{B: 3, Hq: 6, Hkv: 2, Sq: 150, Sk: 300},
		set: func(_ require.TestingT, c *backwardCase) {
			c.sparse()
			c.bias(1, 1, 0)
		}},
	{name: "folds of rows", cfg: attention.Config{HeadDim: 8, Causal: attention.BottomRight}, shape: attention.Shape{B: 1, Hq: 8, Hkv: 1, Sq: 200, Sk: 280}},
	{name: "packed", cfg: attention.Config{HeadDim: 48, Causal: attention.BottomRight}, shape: attention.Shape{B: 3, Hq: 4, Hkv: 2, Sq: 150, Sk: 200},
		set: func(t require.TestingT, c *backwardCase) {
			c.used([]int32{150, 1, 70}, []int32{20, 200, 180})
			c.sinks()
			*c = *c.packed(t)
		}},
	{name: "dropout", cfg: attention.Config{HeadDim: 64, Dropout: 0.2}, shape: attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 200, Sk: 150},
		set: func(_ require.TestingT, c *backwardCase) { c.DropoutSeed, c.DropoutOffset = 1<<33+9, 4 }},
	{name: "dropout, sparse tokens, softcap, bias, packed", cfg: attention.Config{HeadDim: 16, Causal: attention.BottomRight, Softcap: 3, Dropout: 0.5},
		shape: attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 150, Sk: 400}, set: func(t require.TestingT, c *backwardCase) {
			c.sparse()
			c.bias(0, 0, 0)
			c.used([]int32{150, 70}, []int32{390, 180})
			*c = *c.packed(t)
		}},
}

// smaller makes scores of the size that head dims of models have.
func (c *backwardCase) smaller(t require.TestingT) {
	for _, e := range c.elements(t, "Q", c.Q, false, c.cfg.HeadDim, nil) {
		e.set(e.get() / 2)
	}
}

func eachBackwardShape(t *testing.T, test func(t *testing.T, c *backwardCase)) {
	for i, row := range backwardShapes {
		t.Run(row.name, func(t *testing.T) {
			c := newBackward(row.cfg, row.shape, layoutsByName[[]string{"BHSD", "BSHD", "padded"}[i%3]], uint64(i))
			if row.set != nil {
				row.set(t, c)
			}
			c.smaller(t)
			test(t, c)
		})
	}
}

func TestCPUBackwardOfSeveralTiles(t *testing.T) {
	testlevel.HostOnly(t)
	eachBackwardShape(t, func(t *testing.T, c *backwardCase) {
		for _, dtype := range attention.DTypes() {
			n := c.stored(dtype)
			want := n.run(t)
			requireNear(t, want, n.onCPU(t), &n.cfg)
		}
	})
}

// Kernel sets with fused multiply-add give the same bits. All are near the reference.
func TestCPUBackwardBitsDoNotDependOnKernels(t *testing.T) {
	testlevel.HostOnly(t)
	eachBackwardShape(t, func(t *testing.T, c *backwardCase) {
		c.forward(t)
		want := c.run(t)
		var fused *attention.Gradients
		attention.EachKernelSet(t, func(t *testing.T, name string) {
			n := *c
			got := n.onCPU(t)
			requireNear(t, want, got, &c.cfg)
			switch {
			case name == "plain":
			case fused == nil:
				fused = &got
			default:
				sameGradients(t, *fused, got, name)
			}
		})
	})
}

func TestCPUBackwardBitsDoNotDependOnCPUs(t *testing.T) {
	testlevel.HostOnly(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	same := func(t *testing.T, c *backwardCase) {
		c.forward(t)
		runtime.GOMAXPROCS(1)
		one := *c
		want := one.onCPU(t)
		for _, n := range []int{2, 7} {
			runtime.GOMAXPROCS(n)
			for range 3 {
				again := *c
				sameGradients(t, want, again.onCPU(t), fmt.Sprintf("%d CPUs", n))
			}
		}
	}
	eachBackward(t, same)
	eachBackwardShape(t, same)
}

// The contents of masked slots, of rows and keys past an end, and of gaps change no bit.
func TestCPUBackwardIgnoresWhatTakesNoPart(t *testing.T) {
	testlevel.HostOnly(t)
	spoiled := 0
	ignores := func(t *testing.T, c *backwardCase) {
		if c.cfg.HeadDim > 64 {
			return
		}
		c.forward(t)
		clean := *c
		want := clean.onCPU(t)
		for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			s := c.spoiled(t, float32(x))
			if !slices.Equal(c.K.Host, s.K.Host) {
				spoiled++
			}
			s.DQ, s.DK, s.DV, s.DBias, s.DSinks = attention.Tensor{}, attention.Tensor{}, attention.Tensor{}, attention.Tensor{}, attention.Vector{}
			sameGradients(t, want, s.onCPU(t), fmt.Sprint(x))
			s.O = attention.Tensor{}
			sameGradients(t, want, s.onCPU(t), fmt.Sprintf("%v, and in the forward pass", x))
		}
	}
	eachBackward(t, ignores)
	eachBackwardShape(t, func(t *testing.T, c *backwardCase) {
		if c.Sq*c.Sk*c.B*c.Hq < 60000 { // the search for what takes part is slow
			ignores(t, c)
		}
	})
	require.Greater(t, spoiled, 12)
}

// A NaN or Inf that takes part reaches the gradients of its row and of the row's keys, or
// of its key and of the key's rows, no other.
func TestCPUBackwardOfNaN(t *testing.T) {
	testlevel.HostOnly(t)
	const n, at = 150, 70
	cfg := attention.Config{HeadDim: 5, HeadDimV: 3, Causal: attention.TopLeft}
	shape := attention.Shape{B: 1, Hq: 2, Sq: n, Sk: n}
	for name, spoil := range map[string]func(c *backwardCase) (attention.Tensor, bool, int){
		"Q":  func(c *backwardCase) (attention.Tensor, bool, int) { return c.Q, false, 5 },
		"DO": func(c *backwardCase) (attention.Tensor, bool, int) { return c.DO, false, 3 },
		"K":  func(c *backwardCase) (attention.Tensor, bool, int) { return c.K, true, 5 },
		"V":  func(c *backwardCase) (attention.Tensor, bool, int) { return c.V, true, 3 },
	} {
		t.Run(name, func(t *testing.T) {
			attention.EachKernelSet(t, func(t *testing.T, _ string) {
				c := newBackward(cfg, shape, attention.BHSD, 2)
				clean := *c
				clean.forward(t)
				want := clean.onCPU(t)
				x, ofKeys, dim := spoil(c)
				c.elements(t, name, x, ofKeys, dim, nil)[at*dim].set(float32(math.NaN()))
				c.forward(t)
				got := c.onCPU(t)
				ref := c.run(t)
				for i, list := range [][3][]float64{{want.DQ, got.DQ, ref.DQ}, {want.DK, got.DK, ref.DK}, {want.DV, got.DV, ref.DV}} {
					for j := range list[0] {
						require.Equal(t, math.IsNaN(list[2][j]), math.IsNaN(list[1][j]), "gradient %d, element %d", i, j)
					}
				}
				// Rows before it and the other head keep their bits.
				for j := range at * 5 {
					if !ofKeys {
						require.Equal(t, want.DQ[j], got.DQ[j])
					}
				}
				sameBits64(t, want.DQ[n*5:], got.DQ[n*5:])
				sameBits64(t, want.DK[n*5:], got.DK[n*5:])
				sameBits64(t, want.DV[n*3:], got.DV[n*3:])
			})
		})
	}
}

func sameBits64(t require.TestingT, want, got []float64) {
	for i := range want {
		require.Equal(t, math.Float64bits(want[i]), math.Float64bits(got[i]), "element %d", i)
	}
}

// V at a key of weight 0 changes nothing if O comes from a tier that skips that key.
func TestCPUBackwardOfWeightZero(t *testing.T) {
	testlevel.HostOnly(t)
	c := newBackward(attention.Config{HeadDim: 3, HeadDimV: 2}, small, attention.BHSD, 2)
	c.bias(1, 1, 1)
	half.EncodeF32(c.Bias.Host[4:], []float32{float32(math.Inf(-1))})
	c.forward(t)
	clean := *c
	want := clean.onCPU(t)
	for _, e := range c.elements(t, "V", c.V, true, 2, nil) {
		if e.r == 1 {
			e.set(float32(math.NaN()))
		}
	}
	sameGradients(t, want, c.onCPU(t), "NaN in V")
}

// LSE is rounded to float32, so with large scores it says little about the row sum.
func TestCPUBackwardOfWildScores(t *testing.T) {
	testlevel.HostOnly(t)
	const keys = 290
	names := slices.Sorted(maps.Keys(wildRows))
	c := newBackward(attention.Config{HeadDim: 16}, attention.Shape{B: 1, Hq: 1, Sq: len(names), Sk: keys}, attention.BHSD, 5)
	c.bias(0, 0, 0)
	for r, name := range names {
		for key := range keys {
			half.EncodeF32(c.Bias.Host[4*(r*keys+key):], []float32{wildRows[name](key)})
		}
	}
	for _, e := range c.elements(t, "Q", c.Q, false, 16, nil) {
		e.set(0) // so that biases are the scores, exactly
	}
	for _, sinks := range []float32{float32(math.Inf(-1)), 2, -1e9 + 128} {
		c.Sinks = vectorF32(sinks)
		want := c.run(t)
		attention.EachKernelSet(t, func(t *testing.T, _ string) {
			n := *c
			got := n.onCPU(t)
			requireNear(t, want, got, &c.cfg)
			for r, name := range names { // the rows of dQ one by one
				row := func(g []float64) attention.Gradients { return attention.Gradients{DQ: g[r*16:][:16]} }
				requireNear(t, row(want.DQ), row(got.DQ), &c.cfg)
				if t.Failed() {
					t.Fatal(name)
				}
			}
		})
	}
}

// Adding many equal values to a large sum must not round each of them the same way.
func TestCPUBackwardSumsOfEqualValues(t *testing.T) {
	testlevel.HostOnly(t)
	const n, x = 6000, 0.1
	for name, shape := range map[string]attention.Shape{"rows": {B: 1, Hq: 1, Sq: n, Sk: 1}, "keys": {B: 1, Hq: 1, Sq: 1, Sk: n}} {
		t.Run(name, func(t *testing.T) {
			c := newBackward(attention.Config{HeadDim: 1, Scale: attention.ScaleOf(1)}, shape, attention.BHSD, 1)
			fill := func(tensor attention.Tensor, ofKeys bool, x float32) {
				for _, e := range c.elements(t, "", tensor, ofKeys, 1, nil) {
					e.set(x)
				}
			}
			fill(c.Q, false, 0)
			fill(c.K, true, x)
			fill(c.DO, false, x)
			fill(c.DLSE, false, 1)
			attention.EachKernelSet(t, func(t *testing.T, _ string) {
				again := *c
				g := again.onCPU(t)
				require.InEpsilon(t, float64(float32(x)), g.DQ[0], 2e-6, "the sum of n keys of weight 1 / n")
				require.InEpsilon(t, float64(float32(x))*float64(shape.Sq)/float64(shape.Sk), g.DV[0], 2e-6, "the sum of n rows")
			})
		})
	}
}

func TestCPUBackwardComputesWhatHasAnOutput(t *testing.T) {
	testlevel.HostOnly(t)
	eachBackward(t, func(t *testing.T, c *backwardCase) {
		c.forward(t)
		full := *c
		all := full.onCPU(t)
		for set := range 32 {
			n := *c
			n.outputs()
			var want attention.Gradients
			keep := func(bit int, x *attention.Tensor, from []float64, to *[]float64) {
				if set>>bit&1 == 0 {
					*x = attention.Tensor{}
				} else {
					*to = from
				}
			}
			keep(0, &n.DQ, all.DQ, &want.DQ)
			keep(1, &n.DK, all.DK, &want.DK)
			keep(2, &n.DV, all.DV, &want.DV)
			keep(3, &n.DBias, all.DBias, &want.DBias)
			if set>>4&1 == 0 {
				n.DSinks = attention.Vector{}
			} else {
				want.DSinks = all.DSinks
			}
			require.NoError(t, attention.BackwardCPU(n.cfg, n.BackwardArgs))
			sameGradients(t, want, n.gradients(t), fmt.Sprintf("set %05b", set))
		}
	})
}

// With Accumulate, gradients of rows and keys that exist are added to the outputs; nothing
// else is written.
func TestCPUBackwardAccumulates(t *testing.T) {
	testlevel.HostOnly(t)
	for _, dtype := range attention.DTypes() {
		eachBackward(t, func(t *testing.T, c *backwardCase) {
			c = c.stored(dtype)
			c.outputs()
			c.forward(t)
			for _, x := range []*attention.Tensor{&c.DQ, &c.DK, &c.DV} {
				v := c.numbers(len(x.Host) / dtype.Size())
				dtype.Encode(x.Host, v)
			}
			c.Accumulate = true
			want := c.run(t)
			gaps := *c
			gaps.DQ.Host, gaps.DK.Host, gaps.DV.Host = slices.Clone(c.DQ.Host), slices.Clone(c.DK.Host), slices.Clone(c.DV.Host)
			requireNear(t, want, c.onCPU(t), &c.cfg)
			for i, x := range [][2]attention.Tensor{{gaps.DQ, c.DQ}, {gaps.DK, c.DK}, {gaps.DV, c.DV}} {
				requireOnlyRows(t, c, x[0], x[1], i)
			}
		})
	}
}

// requireOnlyRows requires that a call has written rows of sequences alone.
func requireOnlyRows(t require.TestingT, c *backwardCase, before, after attention.Tensor, which int) {
	ofKeys, dim := which > 0, c.cfg.HeadDim
	if which == 2 {
		dim = c.cfg.ValueDim()
	}
	size := c.cfg.DType.Size()
	host := slices.Clone(after.Host)
	for _, e := range c.elements(t, "", after, ofKeys, dim, nil) {
		copy(host[int(e.at)*size:][:size], before.Host[int(e.at)*size:])
	}
	require.Equal(t, before.Host, host, "gradient %d", which)
}

// Gaps between the rows of outputs stay as they are.
func TestCPUBackwardWritesItsRowsAlone(t *testing.T) {
	testlevel.HostOnly(t)
	eachBackward(t, func(t *testing.T, c *backwardCase) {
		c.forward(t)
		c.outputs()
		q := *c
		q.outputs() // blank
		inputs := [][]byte{c.Q.Host, c.K.Host, c.V.Host, c.O.Host, c.LSE.Host, c.DO.Host, c.DLSE.Host}
		var before [][]byte
		for _, x := range inputs {
			before = append(before, slices.Clone(x))
		}
		c.onCPU(t)
		require.Equal(t, before, inputs)
		batchQ, seqQ, batchK, seqK := c.extents()
		for i, x := range []struct {
			blank, got             attention.Tensor
			batch, heads, seq, dim int
		}{
			{q.DQ, c.DQ, batchQ, c.Hq, seqQ, c.cfg.HeadDim},
			{q.DK, c.DK, batchK, c.KVHeads(), seqK, c.cfg.HeadDim},
			{q.DV, c.DV, batchK, c.KVHeads(), seqK, c.cfg.ValueDim()},
		} {
			zero := make([]float32, x.dim)
			for _, y := range []attention.Tensor{x.blank, x.got} {
				v, err := attention.ViewHost(y, attention.F32, x.heads, x.seq, x.dim)
				require.NoError(t, err)
				for b := range x.batch {
					for h := range x.heads {
						for r := range x.seq {
							v.WriteRow(zero, b, h, r)
						}
					}
				}
			}
			require.Equal(t, x.blank.Host, x.got.Host, "gradient %d", i)
		}
	})
}

func TestCPUBackwardOfAnyCall(t *testing.T) {
	testlevel.OnceOnly(t)
	check(t, func(t *rapid.T) {
		c := drawBackwardOf(t, backwardSizes{dims: 20, length: 200, window: 90})
		want := c.run(t)
		requireNear(t, want, c.onCPU(t), &c.cfg)
	})
}

// Gradients of 16-bit tensors are the rounded gradients of the same numbers in float32.
func TestCPUBackwardOfStorageTypes(t *testing.T) {
	testlevel.HostOnly(t)
	check(t, func(t *rapid.T) {
		narrow := drawBackwardOf(t, backwardSizes{dims: 20, length: 150, window: 90})
		dtype := rapid.SampledFrom([]attention.DType{attention.F16, attention.BF16}).Draw(t, "dtype")
		narrow = narrow.stored(dtype)
		narrow.forward(t)
		wide := *narrow
		wide.cfg.DType = attention.F32
		for _, x := range []*attention.Tensor{&wide.Q, &wide.K, &wide.V, &wide.O, &wide.DO} {
			v := make([]float32, len(x.Host)/2)
			dtype.Decode(v, x.Host)
			x.Host = encodeF32(v)
		}
		want, got := wide.onCPU(t), narrow.onCPU(t)
		for _, list := range [][]float64{want.DQ, want.DK, want.DV} {
			var bits [2]byte
			var rounded [1]float32
			for i, x := range list {
				dtype.Encode(bits[:], []float32{float32(x)})
				dtype.Decode(rounded[:], bits[:])
				list[i] = float64(rounded[0])
			}
		}
		sameGradients(t, want, got, dtype.String())
	})
}

// Memory is checked before it is allocated.
func TestCPUBackwardRefusesWhatDoesNotFitTheHostsMemory(t *testing.T) {
	testlevel.HostOnly(t)
	t.Setenv(hostmem.Variable, "256MiB")
	for name, s := range map[string]attention.Shape{
		"rows":  {B: 1, Hq: 1, Sq: 1 << 30, Sk: 1},
		"keys":  {B: 1, Hq: 1, Sq: 1, Sk: 1 << 30},
		"heads": {B: 1, Hq: 1 << 30, Hkv: 1, Sq: 1, Sk: 1},
		"batch": {B: 1 << 30, Hq: 1, Sq: 1, Sk: 1},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, a := repeated(s)
			refusedForMemory(t, func() error {
				return attention.BackwardCPU(cfg, attention.BackwardArgs{Args: a, DO: a.Q, DQ: a.Q, DK: a.K, DV: a.V})
			})
		})
	}
}
