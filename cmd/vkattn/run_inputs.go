package main

import (
	"fmt"
	"os"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/npy"
	"vkattn/internal/atomicfile"
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
			types = in.typesOfKV()
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
	c.DType, c.HeadDim, c.HeadDimV, c.Causal, c.Scale = o.dtype, in.axes[0].dim, in.axes[2].dim, o.causal, o.scale
	c.Tier, c.Tuning, c.KVBlock, c.F32Gradients = o.tier, o.tuning, o.kvBlock, o.f32
	in.args.DropoutSeed, in.args.DropoutOffset = o.dropoutSeed, o.dropoutOffset
	if !o.dtypeSet {
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

// typesOfKV are the element types that the files of K and V may have.
func (in *runInputs) typesOfKV() []npy.DType {
	switch in.o.call.KV {
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
	if in.o.call.KV == attention.KVSame && (in.files["k"].DType != q || v != nil && v.DType != q) {
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
