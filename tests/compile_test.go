package tests

import (
	"runtime"
	"strings"
	"sync"
	"testing"

	"vkattn/attention"
	"vkattn/attention/cases"
	"vkattn/vk"
)

// TestCompile compiles the pipelines of the dense table on devices that execute nothing. Only
// the driver's compiler can be tested there.
func TestCompile(t *testing.T) {
	compileTable(t, func(s *session, tt cases.Target) []cases.Case {
		all := table(tt.DType)
		return levelShare(compileTurn(s, tt, all), all, caseFacets)
	})
}

// TestOptionsCompile compiles the pipelines of calls with options on devices that execute
// nothing: one case of each pipeline, and a few compositions.
func TestOptionsCompile(t *testing.T) {
	compileTable(t, func(s *session, tt cases.Target) []cases.Case {
		if tt.DType != attention.F16 && tt.Tier == attention.TierScalar {
			return nil // one module for all three storage types
		}
		var all []cases.Case
		seen := map[string]bool{}
		for _, c := range cases.BriefOptions() {
			if !seen[c.Pipeline()] && !strings.HasPrefix(c.Name, "random") {
				seen[c.Pipeline()] = true
				all = append(all, c)
			}
		}
		return levelShare(compileTurn(s, tt, all), all, optionFacets)
	})
}

// compileTable compiles the cases that each available tier has in a table.
func compileTable(t *testing.T, casesOf func(*session, cases.Target) []cases.Case) {
	s := open(t)
	if !s.compileOnly {
		t.Skip("this device executes; see TestConformance and TestOptionsConformance")
	}
	for _, tt := range s.available() {
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
						results[i] = e.prepare(list[i], tt)
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

// prepare compiles the kernels of a case: those of its shape without options, else those of
// its arguments.
func (e *engine) prepare(c cases.Case, tt cases.Target) (err error) {
	op, err := e.op(c.Config(tt))
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
	var buffers []*vk.Buffer
	for i, b := range p.Image {
		// A device that executes nothing needs no data: the buffers are never touched.
		at := vk.ExternalBuffer{Handle: uint64(i + 1), Size: uint64(len(b))}
		if e.dev.Caps().BufferDeviceAddress {
			at.Address = uint64(i+1) << 32
		}
		buf, failed := e.dev.WrapBuffer(at)
		if failed != nil {
			return failed
		}
		defer closing(buf, &err)
		buffers = append(buffers, buf)
	}
	return op.PrepareFor(p.DeviceArgs(buffers))
}
