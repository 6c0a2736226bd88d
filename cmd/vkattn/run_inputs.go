package main

import (
	"errors"
	"fmt"
	"os"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/npy"
	"vkattn/cmd/vkattn/internal/outfile"
)

// runInputs are the three input files, open and found to agree.
type runInputs struct {
	q, k, v *npy.File
	layout  layout
	shape   attention.Shape
	config  attention.Config
}

// checkPaths refuses outputs that would overwrite an input or each other.
func checkPaths(o *runOptions) error {
	for _, t := range o.targets() {
		place, err := outfile.Resolve(t.path)
		if err != nil {
			return badInputf("--%s %s: %w", t.flag, t.path, err)
		}
		there, err := os.Stat(place)
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return badInputf("--%s %s: cannot be looked at", t.flag, t.path)
		}
		for _, in := range []struct{ flag, path string }{{"q", o.q}, {"k", o.k}, {"v", o.v}} {
			if info, err := os.Stat(in.path); err == nil && os.SameFile(info, there) {
				return badInputf("--%s %s is the same file as --%s", t.flag, t.path, in.flag)
			}
		}
	}
	if o.lse == "" {
		return nil
	}
	a, errA := outfile.Resolve(o.o)
	b, errB := outfile.Resolve(o.lse)
	if err := errors.Join(errA, errB); err == nil && a == b {
		return badInputf("--lse %s is the same file as --o", o.lse)
	}
	return nil
}

// openInputs reads the headers, so that bad files are refused before anything
// large is read.
func openInputs(o *runOptions) (*runInputs, error) {
	in := &runInputs{layout: o.layout}
	if err := in.open(o); err != nil {
		in.close()
		return nil, badInput(err)
	}
	return in, nil
}

func (in *runInputs) open(o *runOptions) error {
	for _, f := range []struct {
		flag, path string
		file       **npy.File
	}{{"q", o.q, &in.q}, {"k", o.k, &in.k}, {"v", o.v, &in.v}} {
		var err error
		if *f.file, err = npy.Open(f.path); err != nil {
			return fmt.Errorf("--%s %s: %w", f.flag, f.path, err)
		}
	}
	shape, d, dv, err := agree(in.q.Shape, in.k.Shape, in.v.Shape, o.layout)
	if err != nil {
		return err
	}
	in.shape = shape
	in.config = attention.Config{DType: o.dtype, HeadDim: d, HeadDimV: dv, Causal: o.causal, Scale: o.scale.Scale, Tier: o.tier, Tuning: o.tuning}
	if !o.dtypeSet {
		in.config.DType = fileType(in.q.DType)
		if in.k.DType != in.q.DType || in.v.DType != in.q.DType {
			in.config.DType = attention.F32
		}
	}
	return nil
}

func (in *runInputs) close() {
	for _, f := range []*npy.File{in.q, in.k, in.v} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// agree derives the problem from the shapes of the files.
func agree(q, k, v []int, l layout) (s attention.Shape, d, dv int, err error) {
	fail := func(format string, args ...any) (attention.Shape, int, int, error) {
		return attention.Shape{}, 0, 0, fmt.Errorf(format, args...)
	}
	heads, rows := 1, 2
	if l == bshd {
		heads, rows = 2, 1
	}
	for _, t := range []struct {
		name  string
		shape []int
	}{{"Q", q}, {"K", k}, {"V", v}} {
		if len(t.shape) != 4 {
			return fail("%s has rank %d, want 4 (%v)", t.name, len(t.shape), l)
		}
		for _, n := range t.shape {
			if n == 0 {
				return fail("%s has an empty axis: %v", t.name, t.shape)
			}
		}
	}
	switch {
	case k[0] != q[0]:
		return fail("K has batch %d, Q has %d", k[0], q[0])
	case v[0] != q[0]:
		return fail("V has batch %d, Q has %d", v[0], q[0])
	case v[heads] != k[heads]:
		return fail("V has %d heads, K has %d", v[heads], k[heads])
	case q[heads]%k[heads] != 0:
		return fail("Q has %d heads, not a multiple of K's %d", q[heads], k[heads])
	case v[rows] != k[rows]:
		return fail("V has %d rows, K has %d", v[rows], k[rows])
	case k[3] != q[3]:
		return fail("K has head dim %d, Q has %d", k[3], q[3])
	}
	s = attention.Shape{B: q[0], Hq: q[heads], Hkv: k[heads], Sq: q[rows], Sk: k[rows]}
	return s, q[3], v[3], s.Validate()
}

func fileType(d npy.DType) attention.DType {
	if d == npy.Float16 {
		return attention.F16
	}
	return attention.F32
}
