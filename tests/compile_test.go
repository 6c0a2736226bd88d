package tests

import (
	"runtime"
	"sync"
	"testing"

	"vkattn/attention/cases"
)

// TestCompile compiles the pipelines of the table on devices that execute nothing. Only the
// driver's compiler can be tested there.
func TestCompile(t *testing.T) {
	s := open(t)
	if !s.compileOnly {
		t.Skip("this device executes; see TestConformance")
	}
	for _, tt := range s.available() {
		t.Run(tt.String(), func(t *testing.T) {
			cases := levelShare(compileTurn(s, tt, table(tt.DType)), table(tt.DType), caseFacets)
			results := make([]error, len(cases))
			e := s.newEngine(tt)
			next := make(chan int)
			var wg sync.WaitGroup
			for range runtime.GOMAXPROCS(0) {
				wg.Go(func() {
					for i := range next {
						results[i] = e.compile(cases[i], tt)
					}
				})
			}
			for i := range cases {
				next <- i
			}
			close(next)
			wg.Wait()
			for i, c := range cases {
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

func (e *engine) compile(c cases.Case, tt cases.Target) error {
	op, err := e.op(c.Config(tt))
	if err != nil {
		return err
	}
	return op.Prepare(c.Shape)
}
