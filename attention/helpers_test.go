package attention_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/internal/half"
	"vkattn/internal/inputs"
)

// hostProblem is a call in host memory.
type hostProblem struct {
	cfg attention.Config
	attention.Args
}

// layoutOf makes strides for a tensor: how rows are ordered and what lies
// between them.
type layoutOf func(heads, seq, dim int) attention.Strides

func padded(pad int64) layoutOf {
	return func(heads, seq, dim int) attention.Strides {
		row := int64(dim) + pad
		return attention.Strides{Batch: (row*int64(seq)+pad)*int64(heads) + pad, Head: row*int64(seq) + pad, Seq: row}
	}
}

var layoutsByName = map[string]layoutOf{
	"BHSD": attention.BHSD, "BSHD": attention.BSHD, "padded": padded(3),
}

// newProblem allocates tensors with random elements; O, LSE and the memory
// between rows are filled with NaN.
func newProblem(cfg attention.Config, s attention.Shape, layout layoutOf, seed uint64) *hostProblem {
	p := &hostProblem{cfg: cfg, Args: attention.Args{Shape: s}}
	tensor := func(heads, seq, dim int, fill uint64) attention.Tensor {
		t := attention.Tensor{Offset: 5, Strides: layout(heads, seq, dim)}
		n := t.Offset + int64(s.B)*max(t.Strides.Batch, int64(heads)*t.Strides.Head) + 7
		t.Host = make([]byte, n*int64(cfg.DType.Size()))
		for i := range t.Host {
			t.Host[i] = 0xff // a NaN of every type
		}
		if fill == 0 {
			return t
		}
		values := make([]float32, s.B*heads*seq*dim)
		half.DecodeF32(values, inputs.New(int64(len(values)), attention.F32, inputs.Normal, fill))
		writeAll(t, cfg.DType, s.B, heads, seq, dim, values)
		return t
	}
	p.Q = tensor(s.Hq, s.Sq, cfg.HeadDim, 4*seed+1)
	p.K = tensor(s.KVHeads(), s.Sk, cfg.HeadDim, 4*seed+2)
	p.V = tensor(s.KVHeads(), s.Sk, cfg.ValueDim(), 4*seed+3)
	p.O = tensor(s.Hq, s.Sq, cfg.ValueDim(), 0)
	p.LSE.Host = make([]byte, 4*s.Rows())
	return p
}

func writeAll(t attention.Tensor, dt attention.DType, batch, heads, seq, dim int, values []float32) {
	v, err := attention.ViewHost(t, dt, heads, seq, dim)
	if err != nil {
		panic(err)
	}
	for b := range batch {
		for h := range heads {
			for r := range seq {
				v.WriteRow(values, b, h, r)
				values = values[dim:]
			}
		}
	}
}

func (p *hostProblem) view(t attention.Tensor, heads, seq, dim int) attention.HostView {
	v, err := attention.ViewHost(t, p.cfg.DType, heads, seq, dim)
	if err != nil {
		panic(err)
	}
	return v
}

func (p *hostProblem) viewQ() attention.HostView { return p.view(p.Q, p.Hq, p.Sq, p.cfg.HeadDim) }
func (p *hostProblem) viewK() attention.HostView {
	return p.view(p.K, p.KVHeads(), p.Sk, p.cfg.HeadDim)
}
func (p *hostProblem) viewV() attention.HostView {
	return p.view(p.V, p.KVHeads(), p.Sk, p.cfg.ValueDim())
}
func (p *hostProblem) viewO() attention.HostView { return p.view(p.O, p.Hq, p.Sq, p.cfg.ValueDim()) }

func (p *hostProblem) String() string { return fmt.Sprintf("%v %v", p.cfg, p.Shape) }

// run computes p on the CPU and returns O and LSE, packed.
func (p *hostProblem) run(t require.TestingT) (o, lse []float32) {
	require.NoError(t, attention.CheckArgs(p.cfg, p.Args), "%v", p)
	require.NoError(t, attention.ForwardCPU(p.cfg, p.Args))
	return p.outputs()
}

func (p *hostProblem) outputs() (o, lse []float32) {
	dv := p.cfg.ValueDim()
	o, lse = make([]float32, int(p.Rows())*dv), make([]float32, p.Rows())
	view := p.viewO()
	i := 0
	for b := range p.B {
		for h := range p.Hq {
			for r := range p.Sq {
				view.ReadRow(o[i*dv:], b, h, r)
				i++
			}
		}
	}
	half.DecodeF32(lse, p.LSE.Host)
	return o, lse
}

func sameBits(t require.TestingT, want, got []float32, what string, args ...any) {
	require.Len(t, got, len(want))
	for i := range want {
		if math.Float32bits(want[i]) != math.Float32bits(got[i]) {
			require.Failf(t, "not the same bits", "%s: element %d is %v, want %v", fmt.Sprintf(what, args...), i, got[i], want[i])
		}
	}
}

// drawProblem draws a small problem of any kind.
func drawProblem(t *rapid.T) *hostProblem {
	dims := rapid.SampledFrom([]int{1, 2, 3, 8, 16, 33, 64, 80})
	cfg := attention.Config{
		DType:    rapid.SampledFrom(attention.DTypes()).Draw(t, "dtype"),
		HeadDim:  dims.Draw(t, "d"),
		HeadDimV: dims.Draw(t, "dv"),
		Causal:   rapid.SampledFrom([]attention.Causal{attention.CausalNone, attention.TopLeft, attention.BottomRight}).Draw(t, "causal"),
	}
	if rapid.Bool().Draw(t, "set scale") {
		cfg.Scale = attention.ScaleOf(rapid.SampledFrom([]float32{0, 1, -0.5, 0.1, 4}).Draw(t, "scale"))
	}
	kv := rapid.IntRange(1, 3).Draw(t, "hkv")
	s := attention.Shape{
		B: rapid.IntRange(1, 2).Draw(t, "b"), Hkv: kv, Hq: kv * rapid.IntRange(1, 4).Draw(t, "group"),
		Sq: rapid.IntRange(1, 150).Draw(t, "sq"), Sk: rapid.IntRange(1, 200).Draw(t, "sk"),
	}
	layout := rapid.SampledFrom([]string{"BHSD", "BSHD", "padded"}).Draw(t, "layout")
	seed := rapid.Uint64Range(1, 1<<40).Draw(t, "seed")
	return newProblem(cfg, s, layoutsByName[layout], seed)
}

// check runs a property; rapid prints the seed and the drawn values of a failure.
func check(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	rapid.Check(t, property)
}
