package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/npy"
	"vkattn/cmd/vkattn/internal/operands"
	"vkattn/internal/hostmem"
	"vkattn/vk"
)

// problem is a call whose arguments are in host memory, its tensors in the storage type.
type problem struct {
	in   *runInputs
	args attention.BackwardArgs // a forward call has only the fields of attention.Args
}

// load reads the files and rounds them to the storage type.
func (in *runInputs) load() (*problem, error) {
	p := &problem{in: in, args: attention.BackwardArgs{Args: operands.Clone(in.args)}}
	p.args.Shape = in.shape
	to := in.config.DType
	if err := in.loadFiles(&p.args); err != nil {
		return nil, badInput(err)
	}
	for i, t := range []*attention.Tensor{&p.args.Q, &p.args.K, &p.args.V} {
		t.Strides = in.axes[i].strides()
	}
	if in.files["v"] == nil { // V is the beginning of K's rows
		p.args.V.Host = p.args.K.Host
	}
	p.args.O.Strides = in.outputAxes().strides()
	if in.o.wanted() {
		in.allocateGradients(&p.args)
	}
	if in.o.has("o-in") {
		return p, nil
	}
	o := in.outputAxes()
	rows := int64(o.batch) * int64(o.heads) * int64(o.rows)
	p.args.O = attention.Tensor{Strides: o.strides(), Host: make([]byte, rows*int64(o.dim)*int64(to.Size()))}
	if in.o.has("lse") || in.o.wanted() {
		p.args.LSE.Host = make([]byte, rows*4)
		for i := range rows { // the kernel does not write rows past the end of a sequence
			binary.LittleEndian.PutUint32(p.args.LSE.Host[4*i:], math.Float32bits(float32(math.Inf(-1))))
		}
	}
	return p, nil
}

// outputAxes are the axes of O: the axes of Q, with the head dim of V.
func (in *runInputs) outputAxes() axes {
	a := in.axes[0]
	a.dim = in.axes[2].dim
	a.pitch = a.dim
	return a
}

// onDevice runs the call on a device. It returns the plans for the tensors as they were
// placed: they depend on their alignment and on LSE.
func (p *problem) onDevice(ctx context.Context, dev *vk.Device, op *attention.Op) (plan *attention.Plan, backward *attention.BackwardPlan, err error) {
	m, err := operands.OpenMemory(dev, "run")
	if err != nil {
		return plan, backward, err
	}
	defer func() { _ = m.Close() }()
	args := operands.CloneBackward(p.args)
	placed := operands.ListBackward(op.Config(), &args)
	blocks, outputs := make([]*operands.Block, len(placed)), map[*operands.Block][]byte{}
	for i, t := range placed {
		if t.Of < i {
			blocks[i] = blocks[t.Of]
			blocks[i].Hold(t)
			continue
		}
		host := t.Host()
		b, err := m.New(uint64(len(host)), vk.BufferOptions{Name: t.Name, Exportable: op.Config().Tier == attention.TierCUDA})
		if err != nil {
			return plan, backward, fmt.Errorf("memory of %s (%s): %w", t.Name, hostmem.Bytes(uint64(len(host))), err)
		}
		b.Hold(t)
		blocks[i] = b
		read := !t.Output || p.in.o.has("o-in") && (t.Name == "O" || t.Name == "LSE")
		if !read {
			outputs[b] = host
		}
		// With Varlen the kernel does not write all of an output.
		if read || args.Varlen != nil {
			if err := b.Write(0, host); err != nil {
				return plan, backward, err
			}
		}
	}
	if err := m.Barrier(); err != nil {
		return plan, backward, err
	}
	if err := p.compute(ctx, op, m.Stream, args); err != nil {
		return plan, backward, err
	}
	if plan, backward, err = p.plans(op, args); err != nil {
		return plan, backward, err
	}
	if err := m.Barrier(); err != nil {
		return plan, backward, err
	}
	for b, host := range outputs {
		if err := m.Stream.Download(ctx, host, b.Buffer, 0); err != nil {
			return plan, backward, err
		}
	}
	return plan, backward, m.Wait(ctx)
}

// output is O as float32 in the files' layout.
func (p *problem) output() *npy.Array {
	a := p.in.outputAxes()
	return &npy.Array{DType: npy.Float32, Shape: a.shape(p.in.o.has("cu-seqlens-q"), a.dim), Data: convert(p.args.O.Host, p.in.config.DType, attention.F32)}
}

func (p *problem) logSumExp() *npy.Array {
	return &npy.Array{DType: npy.Float32, Shape: p.in.lseShape(), Data: p.args.LSE.Host}
}

// convert rounds little-endian elements to another type. For equal types it returns
// data itself.
func convert(data []byte, from, to attention.DType) []byte {
	if from == to {
		return data
	}
	n := len(data) / from.Size()
	out := make([]byte, n*to.Size())
	var chunk [1 << 12]float32
	for at := 0; at < n; at += len(chunk) {
		part := chunk[:min(len(chunk), n-at)]
		from.Decode(part, data[at*from.Size():])
		to.Encode(out[at*to.Size():], part)
	}
	return out
}
