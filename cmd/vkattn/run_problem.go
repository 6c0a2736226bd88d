package main

import (
	"context"
	"fmt"

	"vkattn/attention"
	"vkattn/attention/half"
	"vkattn/cmd/vkattn/internal/npy"
	"vkattn/vk"
)

// problem is a loaded request: the tensors in host memory, in the storage type.
type problem struct {
	in      *runInputs
	q, k, v []byte
	o       []byte
	lse     []byte // nil when not asked for
}

// load reads the files and rounds them to the storage type.
func (in *runInputs) load(lse bool) (*problem, error) {
	p := &problem{in: in}
	to := in.config.DType
	for _, t := range []struct {
		name string
		file *npy.File
		data *[]byte
	}{{"q", in.q, &p.q}, {"k", in.k, &p.k}, {"v", in.v, &p.v}} {
		array, err := t.file.Load()
		if err != nil {
			return nil, badInputf("--%s: %w", t.name, err)
		}
		*t.data = convert(array.Data, fileType(array.DType), to)
	}
	rows := in.shape.Rows()
	p.o = make([]byte, rows*int64(in.config.ValueDim())*int64(to.Size()))
	if lse {
		p.lse = make([]byte, rows*4)
	}
	return p, nil
}

// strides are those of a tensor in the files' layout.
func (in *runInputs) strides(heads, seq, dim int) attention.Strides {
	if in.layout == bshd {
		return attention.BSHD(heads, seq, dim)
	}
	return attention.BHSD(heads, seq, dim)
}

// args are the arguments of the operation but for the memory.
func (p *problem) args() attention.Args {
	s, c := p.in.shape, p.in.config
	return attention.Args{
		Shape: s,
		Q:     attention.Tensor{Strides: p.in.strides(s.Hq, s.Sq, c.HeadDim)},
		K:     attention.Tensor{Strides: p.in.strides(s.KVHeads(), s.Sk, c.HeadDim)},
		V:     attention.Tensor{Strides: p.in.strides(s.KVHeads(), s.Sk, c.ValueDim())},
		O:     attention.Tensor{Strides: p.in.strides(s.Hq, s.Sq, c.ValueDim())},
	}
}

func (p *problem) onCPU(op *attention.Op) error {
	args := p.args()
	args.Q.Host, args.K.Host, args.V.Host, args.O.Host, args.LSE.Host = p.q, p.k, p.v, p.o, p.lse
	return op.Forward(nil, args)
}

// onDevice returns the plan of the tensors as they lay, LSE and alignment included.
func (p *problem) onDevice(ctx context.Context, dev *vk.Device, op *attention.Op) (plan attention.Plan, err error) {
	stream, err := dev.NewStream("run")
	if err != nil {
		return plan, err
	}
	defer func() { _ = stream.Close() }()
	args := p.args()
	inCUDA := op.Config().Tier == attention.TierCUDA
	tensors := []struct {
		name   string
		host   []byte
		tensor *attention.Tensor
		output bool
	}{
		{"Q", p.q, &args.Q, false}, {"K", p.k, &args.K, false}, {"V", p.v, &args.V, false},
		{"O", p.o, &args.O, true}, {"LSE", p.lse, &args.LSE, true},
	}
	for _, t := range tensors {
		if t.host == nil {
			continue
		}
		buffer, err := dev.NewBuffer(uint64(len(t.host)), vk.BufferOptions{Name: t.name, Exportable: inCUDA})
		if err != nil {
			return plan, fmt.Errorf("memory of %s (%d bytes): %w", t.name, len(t.host), err)
		}
		defer func() { _ = buffer.Close() }()
		t.tensor.Buffer = buffer
		if !t.output {
			if err := stream.Upload(buffer, 0, t.host); err != nil {
				return plan, err
			}
		}
	}
	if err := stream.Barrier(); err != nil {
		return plan, err
	}
	if err := op.Forward(stream, args); err != nil {
		return plan, err
	}
	if plan, err = op.PlanFor(args); err != nil {
		return plan, err
	}
	if err := stream.Barrier(); err != nil {
		return plan, err
	}
	for _, t := range tensors {
		if t.output && t.host != nil {
			if err := stream.Download(ctx, t.host, t.tensor.Buffer, 0); err != nil {
				return plan, err
			}
		}
	}
	return plan, stream.Wait(ctx)
}

// output is O as float32 in the files' layout.
func (p *problem) output() *npy.Array {
	s := p.in.shape
	shape := []int{s.B, s.Hq, s.Sq, p.in.config.ValueDim()}
	if p.in.layout == bshd {
		shape[1], shape[2] = shape[2], shape[1]
	}
	return &npy.Array{DType: npy.Float32, Shape: shape, Data: convert(p.o, p.in.config.DType, attention.F32)}
}

func (p *problem) logSumExp() *npy.Array {
	s := p.in.shape
	return &npy.Array{DType: npy.Float32, Shape: []int{s.B, s.Hq, s.Sq}, Data: p.lse}
}

// convert rounds little-endian elements to another type; equal types share memory.
func convert(data []byte, from, to attention.DType) []byte {
	if from == to {
		return data
	}
	decode := map[attention.DType]func([]float32, []byte){attention.F16: half.DecodeF16, attention.BF16: half.DecodeBF16, attention.F32: half.DecodeF32}[from]
	encode := map[attention.DType]func([]byte, []float32){attention.F16: half.EncodeF16, attention.BF16: half.EncodeBF16, attention.F32: half.EncodeF32}[to]
	n := len(data) / from.Size()
	out := make([]byte, n*to.Size())
	var chunk [1 << 12]float32
	for at := 0; at < n; at += len(chunk) {
		part := chunk[:min(len(chunk), n-at)]
		decode(part, data[at*from.Size():])
		encode(out[at*to.Size():], part)
	}
	return out
}
