package oracle

import (
	"vkattn/attention/score"
	"vkattn/internal/problem"
)

// Roundings are what Low rounds with, for tests that plant faults in them.
type Roundings struct {
	Round, Store func(float32) float32 // what is stored; a score
	Score        func(float64) float64 // an operation of the score
}

// LowWith is Low with other roundings.
func LowWith(cfg problem.Config, a problem.Args, sample []problem.Rows, change func(*Roundings)) (o, lse []float32, err error) {
	how := lowOf(cfg.DType)
	r := Roundings{how.round, how.store, score.Float32}
	change(&r)
	how.round, how.store = r.Round, r.Store
	for _, s := range sample {
		n := len(s.Rows)
		part, partLSE := make([]float32, n*cfg.ValueDim()), make([]float32, n)
		err := eachBlock(&cfg, &a, []problem.Rows{s}, how, func(w *worker[float32], s problem.Rows, at int) {
			w.score = score.NewEvaluator(scoreOf(w.Call), r.Score)
			w.forward(s, part[at*cfg.ValueDim():], partLSE[at:])
		})
		if err != nil {
			return nil, nil, err
		}
		o, lse = append(o, part...), append(lse, partLSE...)
	}
	return o, lse, nil
}
