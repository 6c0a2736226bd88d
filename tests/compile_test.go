package tests

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// TestCompile compiles the pipelines of the dense table on devices that execute nothing. Only
// the driver's compiler can be tested there.
func TestCompile(t *testing.T) {
	compileTable(t, (*engine).prepare, func(s *session, tt cases.Target) []cases.Case {
		all := denseTable(tt)
		return compileShare(s, tt, all, caseFacets)
	})
}

// compileShare is what a level compiles of a table: make test half of the first share, which shows every facet, and make
// test-full the other half. make test-platforms compiles the other pipelines too.
func compileShare(s *session, tt cases.Target, all []cases.Case, facets func(cases.Case) []string) []cases.Case {
	some := levelShare(compileTurn(s, tt, all), all, facets, 0, 2)
	if testlevel.Get() == testlevel.Full {
		first := firstPipelines(all, facets)
		some = slices.DeleteFunc(slices.Clone(some), func(c cases.Case) bool { return !slices.Contains(first, c.Pipeline()) })
	}
	return some
}

// TestOptionsCompile compiles the pipelines of calls with options on devices that execute
// nothing: one case of each pipeline, and a few compositions.
func TestOptionsCompile(t *testing.T) {
	compileTable(t, (*engine).prepare, func(s *session, tt cases.Target) []cases.Case {
		if tt.DType != attention.F16 && tt.Tier == attention.TierScalar || f32OnMatrices(tt) {
			return nil // one module for all three storage types; options have no kernel of float32 on matrices
		}
		var all []cases.Case
		seen := map[string]bool{}
		for _, c := range cases.BriefOptions() {
			if !seen[c.Pipeline()] && !strings.HasPrefix(c.Name, "random") {
				seen[c.Pipeline()] = true
				all = append(all, c)
			}
		}
		return compileShare(s, tt, all, optionFacets)
	})
}

// compileTable compiles the cases that each available tier has in a table.
func compileTable(t *testing.T, prepare func(*engine, cases.Case, cases.Target) error, casesOf func(*session, cases.Target) []cases.Case) {
	s := open(t)
	if !s.compileOnly {
		t.Skip("this device executes; see TestConformance and TestOptionsConformance")
	}
	for _, tt := range s.reported() {
		list := casesOf(s, tt)
		if len(list) == 0 {
			continue
		}
		t.Run(tt.String(), func(t *testing.T) {
			results := make([]error, len(list))
			e := s.newEngine(tt)
			next := make(chan int)
			var wg sync.WaitGroup
			for range runtime.GOMAXPROCS(0) {
				wg.Go(func() {
					for i := range next {
						results[i] = prepare(e, list[i], tt)
					}
				})
			}
			for i := range list {
				next <- i
			}
			close(next)
			wg.Wait()
			for i, c := range list {
				t.Run(c.String(), func(t *testing.T) {
					if results[i] != nil {
						t.Error(results[i])
					}
				})
			}
			if err := e.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// prepare compiles the kernels of a case: for its shape if it has no options, else for its
// arguments.
func (e *engine) prepare(c cases.Case, tt cases.Target) (err error) {
	op, err := e.op(attention.Config(c.Config(tt)))
	if err != nil {
		return err
	}
	if !withOptions(c) {
		return op.Prepare(c.Shape)
	}
	p, err := cases.NewProblem(c, tt.DType)
	if err != nil {
		return err
	}
	buffers, err := e.wrapped(p.Image)
	defer closing(buffers, &err)
	if err != nil {
		return err
	}
	return op.PrepareFor(p.DeviceArgs(buffers))
}

// wrapped are buffers for pieces of memory on a device that executes nothing. The caller
// closes them, after an error too.
func (e *engine) wrapped(images [][]byte) (buffers buffersOf, err error) {
	for i, b := range images {
		// A device that executes nothing needs no data: the buffers are never touched.
		at := vk.ExternalBuffer{Handle: uint64(i + 1), Size: uint64(len(b))}
		if e.dev.Caps().BufferDeviceAddress {
			at.Address = uint64(i+1) << 32
		}
		buf, err := e.dev.WrapBuffer(at)
		if err != nil {
			return buffers, err
		}
		buffers = append(buffers, buf)
	}
	return buffers, nil
}

// buffersOf are buffers that are closed together.
type buffersOf []*vk.Buffer

func (list buffersOf) Close() (err error) {
	for _, b := range list {
		err = errors.Join(err, b.Close())
	}
	return err
}
