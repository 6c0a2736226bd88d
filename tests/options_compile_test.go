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

// TestOptionsCompile compiles the pipelines of calls with options on devices that execute
// nothing.
func TestOptionsCompile(t *testing.T) {
	s := open(t)
	if !s.compileOnly {
		t.Skip("this device executes; see TestOptionsConformance")
	}
	for _, tt := range s.available() {
		if tt.DType != attention.F16 && tt.Tier == attention.TierScalar {
			continue // one module for all three storage types
		}
		t.Run(tt.String(), func(t *testing.T) {
			// One case of each pipeline, and a few compositions.
			var list []cases.Case
			seen := map[string]bool{}
			for _, c := range cases.BriefOptions() {
				if !seen[c.Pipeline()] && !strings.HasPrefix(c.Name, "random") {
					seen[c.Pipeline()] = true
					list = append(list, c)
				}
			}
			list = levelShare(compileTurn(s, tt, list), list, optionFacets)
			e := s.newEngine(tt)
			results := make([]error, len(list))
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

// prepare compiles the kernels of a case.
func (e *engine) prepare(c cases.Case, tt cases.Target) (err error) {
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
	op, err := e.op(c.Config(tt))
	if err != nil {
		return err
	}
	return op.PrepareFor(p.DeviceArgs(buffers))
}
