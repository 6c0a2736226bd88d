package merge

import (
	"vkattn/attention"
	"vkattn/internal/errs"
	"vkattn/internal/par"
	"vkattn/internal/problem"
)

// SumArgs are the tensors of one sum: [B, Hq, Sq, HeadDim] each, all on the same side.
type SumArgs struct {
	attention.Shape                  // B, Hq and Sq, of which B and Sq may be 0; Hkv and Sk are ignored
	First, Second   attention.Tensor // float32; Second is optional
	Out             attention.Tensor // of MergeConfig.DType; it may be exactly First or Second if that is float32
}

// Sum adds two float32 tensors and rounds the sum to a storage type, or rounds one. Partial
// gradients that Backward writes with Config.F32Gradients are added in this way. It is used as
// a [Merge], on the same tiers.
type Sum struct{ merge *Merge }

// NewSum makes an operation as NewMerge does. The config has F32States.
func NewSum(d *attention.Device, cfg MergeConfig) (*Sum, error) {
	if !cfg.F32States {
		return nil, &problem.ShapeError{Field: "F32States", Got: false, Want: "true: a Sum adds float32"}
	}
	m, err := newMerge(d, cfg, true)
	if err != nil {
		return nil, err
	}
	return &Sum{m}, nil
}

// Forward adds, as Merge.Forward merges.
func (s *Sum) Forward(stream *attention.Stream, a SumArgs) error {
	if s == nil || s.merge == nil {
		return errs.Unmade("NewSum")
	}
	return s.merge.Forward(stream, MergeArgs{Shape: a.Shape, First: States{O: a.First}, Second: States{O: a.Second}, O: a.Out})
}

// Close gives the pipelines back to the device. It is idempotent.
func (s *Sum) Close() error {
	if s == nil {
		return nil
	}
	return s.merge.Close()
}

// sumCPU computes a checked sum in host memory.
func sumCPU(cfg MergeConfig, l *mergeLayouts) {
	first, second, out := &l.list[mergeFirst], &l.list[mergeSecond], &l.list[mergeO]
	rows := out.Counts[0] * out.Counts[1] * out.Counts[2]
	par.Each((rows+mergeBlock-1)/mergeBlock, func() func(int64) {
		total, term := make([]float32, cfg.HeadDim), make([]float32, cfg.HeadDim)
		return func(block int64) {
			for row := block * mergeBlock; row < min(rows, (block+1)*mergeBlock); row++ {
				problem.F32.Decode(total, first.hostRow(0, row))
				if second.states != 0 {
					problem.F32.Decode(term, second.hostRow(0, row))
					for i, x := range term {
						total[i] += x
					}
				}
				cfg.DType.Encode(out.hostRow(0, row), total)
			}
		}
	})
}
