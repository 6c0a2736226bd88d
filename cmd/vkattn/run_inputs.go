package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"time"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/npy"
	"vkattn/internal/atomicfile"
	"vkattn/internal/hostmem"
	"vkattn/internal/operands"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// runInputs holds the open input files and the problem that they describe.
type runInputs struct {
	files   map[string]*npy.File // by flag
	o       *runFlags
	axes    [3]axes // of Q, K and V
	shape   attention.Shape
	config  attention.Config
	args    attention.Args // without the memory of the tensors
	special bool           // the call has options
}

// checkPaths refuses outputs that would overwrite an input or each other.
func checkPaths(o *runFlags) error {
	var before []atomicfile.Target
	targets := o.targets(false)
	for _, t := range targets {
		path := o.of(t.flag)
		place, err := atomicfile.Resolve(path)
		if err != nil {
			return badInputf("--%s %s: %w", t.flag, path, err)
		}
		for _, in := range inputFiles {
			if overwrites(place, o.of(in.flag)) {
				return badInputf("--%s %s is the same file as --%s", t.flag, path, in.flag)
			}
		}
		for _, path := range o.tables.Files() {
			if overwrites(place, path) {
				return badInputf("--%s %s is the same file as a --table", t.flag, path)
			}
		}
		for i, other := range before {
			if place.Same(other) && !place.Device() { // /dev/null takes everything
				return badInputf("--%s %s is the same file as --%s", t.flag, path, targets[i].flag)
			}
		}
		before = append(before, place)
	}
	return nil
}

// overwrites reports whether an output is an input file, under any name.
func overwrites(output atomicfile.Target, input string) bool {
	info, err := os.Stat(input)
	return err == nil && output.Info != nil && os.SameFile(info, output.Info)
}

// openInputs reads the headers of all files and the contents of the short ones, so
// that bad input is refused before a tensor is read.
func openInputs(o *runFlags) (*runInputs, error) {
	in := &runInputs{files: map[string]*npy.File{}, o: o, special: len(o.used()) > 0}
	if err := in.open(); err != nil {
		in.close()
		return nil, badInput(err)
	}
	return in, nil
}

func (in *runInputs) open() error {
	for _, f := range inputFiles {
		if !in.o.has(f.flag) {
			continue
		}
		types := f.types
		if types == nil {
			types = typesOfKV(in.o.storedAs(f.flag))
		}
		file, err := npy.Open(in.o.of(f.flag), types...)
		if err != nil {
			return fmt.Errorf("--%s %s: %w", f.flag, in.o.of(f.flag), err)
		}
		in.files[f.flag] = file
	}
	if err := in.agree(); err != nil {
		return err
	}
	o := in.o
	c := &in.config
	*c = o.call
	c.HeadDim, c.HeadDimV, c.Scale = in.axes[0].dim, in.axes[2].dim, o.scale
	c.Tier, c.Tuning, c.KVBlock, c.F32Gradients = o.tier, o.tuning, o.kvBlock, o.f32
	in.args.DropoutSeed, in.args.DropoutOffset, in.args.Tables = o.dropoutSeed, o.dropoutOffset, o.tables.Memory(0)
	if o.values["dtype"] == "" {
		in.config.DType = in.commonType()
	}
	if err := in.room(nil, 0); err != nil {
		return err
	}
	if err := in.openOptions(); err != nil {
		return err
	}
	return in.readShapes(gradientFiles)
}

// storedAs is the type of the file of K or V.
func (o *runFlags) storedAs(flag string) attention.KVType {
	if flag == "k" {
		return o.call.KeyType
	}
	return o.call.ValueType
}

// typesOfKV are the element types that a file of K or V may have.
func typesOfKV(kv attention.KVType) []npy.DType {
	switch kv {
	case attention.KVSame:
		return floats
	case attention.KVInt8:
		return []npy.DType{npy.Int8}
	}
	return []npy.DType{npy.UInt8}
}

// commonType is the type of the files of Q, K and V, or f32 if they differ.
func (in *runInputs) commonType() attention.DType {
	q := in.files["q"].DType
	v := in.files["v"]
	if in.o.call.KeyType == attention.KVSame && (in.files["k"].DType != q || v != nil && v.DType != q) {
		return attention.F32
	}
	return fileType(q)
}

func (in *runInputs) close() {
	for _, f := range in.files {
		_ = f.Close()
	}
}

func fileType(d npy.DType) attention.DType {
	switch d {
	case npy.Float16:
		return attention.F16
	case npy.BFloat16:
		return attention.BF16
	}
	return attention.F32
}

// runProblem is a call whose arguments are in host memory, its tensors in the storage type.
type runProblem struct {
	in       *runInputs
	args     attention.BackwardArgs  // a forward call has only the fields of attention.Args
	forward  *attention.Plan         // nil if O was read from a file
	backward *attention.BackwardPlan // nil without gradients
	took     time.Duration           // with transfers to and from the device
}

// load reads the files and rounds them to the storage type.
func (in *runInputs) load() (*runProblem, error) {
	p := &runProblem{in: in, args: attention.BackwardArgs{Args: operands.Clone(in.args)}}
	p.args.Shape = in.shape
	if err := in.loadFiles(&p.args); err != nil {
		return nil, badInput(err)
	}
	for i, t := range []*attention.Tensor{&p.args.Q, &p.args.K, &p.args.V} {
		t.Strides = in.axes[i].strides()
	}
	if in.files["v"] == nil { // V is the beginning of K's rows
		p.args.V.Host = p.args.K.Host
	}
	a := &p.args
	for _, x := range in.o.outputs {
		a.DTables = append(a.DTables, attention.Table{Name: x.table})
	}
	for _, x := range in.o.computed() { // the kernel does not write rows past the end of a sequence
		host := make([]byte, x.bytes(in))
		for i := 0; x.flag == "lse" && i < len(host); i += 4 {
			binary.LittleEndian.PutUint32(host[i:], math.Float32bits(float32(math.Inf(-1))))
		}
		*x.host(a) = host
	}
	for i, t := range []*attention.Tensor{&a.DQ, &a.DK, &a.DV} {
		if t.Host != nil {
			t.Strides = in.dense(i).strides()
		}
	}
	if a.O.Strides = in.outputAxes().strides(); in.o.wanted() {
		a.DO.Strides = a.O.Strides
	}
	if a.DBias.Host != nil {
		a.DBias.Strides = a.Bias.Strides
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

// onDevice runs the call on a device. Its plans are those for the tensors as they were
// placed: they depend on their alignment and on LSE.
func (p *runProblem) onDevice(ctx context.Context, dev *attention.Device, op *attention.Op) error {
	m, err := bench.OpenMemory(dev, "run")
	if err != nil {
		return err
	}
	defer func() { _ = m.Close() }()
	m.Limit = p.in.o.timeout
	args := operands.CloneBackward(p.args)
	placed := operands.ListBackward(problem.Config(op.Config()), &args)
	best, err := op.Plan(args.Shape)
	exportable := op.Config().Tier == attention.TierCUDA || err == nil && best.Tier == attention.TierCUDA
	blocks, outputs := make([]*operands.Block, len(placed)), map[*operands.Block][]byte{}
	for i, t := range placed {
		if t.Of < i {
			blocks[i] = blocks[t.Of]
			blocks[i].Hold(t)
			continue
		}
		host := t.Host()
		b, err := m.New(uint64(len(host)), vk.BufferOptions{Name: t.Name, Exportable: exportable})
		if err != nil {
			return fmt.Errorf("memory of %s (%s): %w", t.Name, hostmem.Bytes(uint64(len(host))), err)
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
				return err
			}
		}
	}
	if err := p.compute(ctx, op, m.Order(), args); err != nil {
		return err
	}
	if err := p.setPlans(op, args); err != nil {
		return err
	}
	for b, host := range outputs {
		if err := b.Download(ctx, host); err != nil {
			return err
		}
	}
	return m.Wait(ctx)
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
