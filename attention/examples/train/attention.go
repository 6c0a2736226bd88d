package main

import (
	"context"

	"vkattn/attention"
	"vkattn/vk"
)

// attend is causal attention on one tier.
type attend struct {
	config       attention.Config
	shape        attention.Shape
	op           *attention.Op
	dev          *vk.Device // nil on the CPU tier, as stream
	stream       *vk.Stream
	buffers      []*vk.Buffer
	forwardPlan  attention.Plan
	backwardPlan attention.BackwardPlan
}

func newAttention(dev *vk.Device, tier attention.Tier, dtype attention.DType, batch int) (a *attend, err error) {
	a = &attend{dev: dev}
	a.config = attention.Config{DType: dtype, HeadDim: headDim, Causal: attention.BottomRight, Tier: tier}
	a.shape = attention.Shape{B: batch, Hq: heads, Sq: window, Sk: window}
	if a.op, err = attention.New(attention.On(dev), a.config); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	if dev != nil {
		if a.stream, err = dev.NewStream("train"); err != nil {
			return nil, err
		}
	}
	if a.forwardPlan, err = a.op.Plan(a.shape); err != nil {
		return nil, err
	}
	a.backwardPlan, err = a.op.PlanBackward(a.shape)
	return a, err
}

func (a *attend) close() {
	a.stream.Close()
	for _, b := range a.buffers {
		b.Close()
	}
	a.op.Close()
}

// array is memory that attention reads or writes: little-endian bytes of the host, and on a
// device a buffer.
type array struct {
	dtype  attention.DType
	host   []byte
	buffer *vk.Buffer
}

func (a *attend) newArray(n int, dtype attention.DType) (x array, err error) {
	x.dtype, x.host = dtype, make([]byte, dtype.Size()*n)
	if a.dev != nil {
		if x.buffer, err = a.dev.NewBuffer(uint64(len(x.host)), vk.BufferOptions{Exportable: a.config.Tier == attention.TierCUDA}); err == nil {
			a.buffers = append(a.buffers, x.buffer)
		}
	}
	return x, err
}

// put writes an array.
func (a *attend) put(x array, v []float32) error {
	x.dtype.Encode(x.host, v)
	if a.dev == nil {
		return nil
	}
	return a.stream.Upload(x.buffer, 0, x.host)
}

// get reads an array. On a device it waits for the work on the stream.
func (a *attend) get(v []float32, x array) error {
	if a.dev != nil {
		if err := a.stream.Download(context.Background(), x.host, x.buffer, 0); err != nil {
			return err
		}
	}
	x.dtype.Decode(v, x.host)
	return nil
}

// attentionLayer is the memory of one layer. O and LSE of the forward pass stay there for
// the backward pass.
type attentionLayer struct {
	*attend
	qkv, o, lse, dO, dQKV array
}

func (a *attend) newLayer() (*attentionLayer, error) {
	l, rows := &attentionLayer{attend: a}, a.shape.B*a.shape.Sq
	for _, x := range []struct {
		array *array
		n     int
		dtype attention.DType
	}{
		{&l.qkv, rows * 3 * width, a.config.DType}, {&l.o, rows * width, a.config.DType}, {&l.lse, rows * heads, attention.F32},
		{&l.dO, rows * width, a.config.DType}, {&l.dQKV, rows * 3 * width, a.config.DType},
	} {
		var err error
		if *x.array, err = a.newArray(x.n, x.dtype); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// args returns the call. A row of an array has all heads of a character, which is layout
// BSHD. Q, K and V are one after the other in their array, and so are their gradients.
func (l *attentionLayer) args() (a attention.BackwardArgs) {
	tensor := func(x array, n int) attention.Tensor {
		t := attention.Tensor{Buffer: x.buffer, Strides: attention.BSHD(heads, l.shape.Sq, headDim)}
		t.Offset = int64(n * l.shape.B * l.shape.Sq * width)
		if x.buffer == nil {
			t.Host = x.host
		}
		return t
	}
	a.Shape = l.shape
	a.Q, a.K, a.V = tensor(l.qkv, 0), tensor(l.qkv, 1), tensor(l.qkv, 2)
	a.DQ, a.DK, a.DV = tensor(l.dQKV, 0), tensor(l.dQKV, 1), tensor(l.dQKV, 2)
	a.O, a.DO, a.LSE = tensor(l.o, 0), tensor(l.dO, 0), tensor(l.lse, 0)
	a.LSE.Strides = attention.Strides{} // packed [B, heads, Sq]
	return a
}

// forward computes O from Q, K and V.
func (l *attentionLayer) forward(o, qkv []float32) error {
	return inOrder(
		func() error { return l.put(l.qkv, qkv) },
		func() error { return l.op.Forward(attention.OnStream(l.stream), l.args().Args) },
		func() error { return l.get(o, l.o) })
}

// backward computes the gradients of Q, K and V from the gradient of O.
func (l *attentionLayer) backward(dQKV, dO []float32) error {
	return inOrder(
		func() error { return l.put(l.dO, dO) },
		func() error { return l.op.Backward(attention.OnStream(l.stream), l.args()) },
		func() error { return l.get(dQKV, l.dQKV) })
}

func inOrder(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
