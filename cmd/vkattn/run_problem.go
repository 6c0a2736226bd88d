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
	for i, t := range []struct {
		name   string
		tensor *attention.Tensor
	}{{"q", &p.args.Q}, {"k", &p.args.K}, {"v", &p.args.V}} {
		t.tensor.Strides = in.axes[i].strides()
		if in.files[t.name] == nil { // V is the beginning of K's rows
			t.tensor.Host = p.args.K.Host
			continue
		}
		array, err := in.files[t.name].Load()
		if err != nil {
			return nil, badInputf("--%s: %w", t.name, err)
		}
		t.tensor.Host = array.Data
		if i == 0 || in.o.kv == attention.KVSame {
			t.tensor.Host = convert(array.Data, fileType(array.DType), to)
		}
	}
	if err := in.loadSlots(&p.args.Args); err != nil {
		return nil, badInput(err)
	}
	if err := in.loadGradients(&p.args); err != nil {
		return nil, badInput(err)
	}
	if in.o.oIn != "" {
		return p, nil
	}
	o := in.outputAxes()
	rows := int64(o.batch) * int64(o.heads) * int64(o.rows)
	p.args.O = attention.Tensor{Strides: o.strides(), Host: make([]byte, rows*int64(o.dim)*int64(to.Size()))}
	if in.o.lse != "" || in.o.wanted() {
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
	stream, err := dev.NewStream("run")
	if err != nil {
		return plan, backward, err
	}
	defer func() { _ = stream.Close() }()
	args := operands.CloneBackward(p.args)
	inCUDA := op.Config().Tier == attention.TierCUDA
	placed := operands.ListBackward(op.Config(), &args)
	outputs := map[*vk.Buffer][]byte{}
	var buffers []*vk.Buffer
	for i, t := range placed {
		if t.Of < i {
			buffers = append(buffers, buffers[t.Of])
			t.OnDevice(buffers[i])
			continue
		}
		host := t.Host()
		buffer, err := dev.NewBuffer(max(4, uint64(len(host)+3)&^3), vk.BufferOptions{Name: t.Name, Exportable: inCUDA})
		if err != nil {
			return plan, backward, fmt.Errorf("memory of %s (%s): %w", t.Name, hostmem.Bytes(uint64(len(host))), err)
		}
		defer func() { _ = buffer.Close() }()
		t.OnDevice(buffer)
		buffers = append(buffers, buffer)
		read := !t.Output || p.in.o.oIn != "" && (t.Name == "O" || t.Name == "LSE")
		if !read {
			outputs[buffer] = host
		}
		// With Varlen the kernel does not write all of an output.
		if read || args.Varlen != nil {
			if err := stream.Upload(buffer, 0, host); err != nil {
				return plan, backward, err
			}
		}
	}
	if err := stream.Barrier(); err != nil {
		return plan, backward, err
	}
	if err := p.compute(ctx, op, stream, args); err != nil {
		return plan, backward, err
	}
	if plan, backward, err = p.plans(op, args); err != nil {
		return plan, backward, err
	}
	if err := stream.Barrier(); err != nil {
		return plan, backward, err
	}
	for buffer, host := range outputs {
		if err := stream.Download(ctx, host, buffer, 0); err != nil {
			return plan, backward, err
		}
	}
	return plan, backward, stream.Wait(ctx)
}

// output is O as float32 in the files' layout.
func (p *problem) output() *npy.Array {
	a := p.in.outputAxes()
	return &npy.Array{DType: npy.Float32, Shape: a.shape(p.in.o.cuQ != "", a.dim), Data: convert(p.args.O.Host, p.in.config.DType, attention.F32)}
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
