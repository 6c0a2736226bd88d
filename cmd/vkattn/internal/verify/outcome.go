package verify

import (
	"fmt"

	"vkattn/cmd/vkattn/internal/bench"
)

// Outcome is what the rows come to.
type Outcome struct {
	bench.Tally
	Problems   int
	Uncompared int // problems that no implementation computed
}

// Of counts the rows of one problem.
func (o *Outcome) Of(rows []*Row) {
	o.Problems++
	computed := false
	for _, r := range rows {
		o.Add(r.Status, fmt.Sprintf("%s, %s: %s", r.Who, r.Problem(), r.Note()))
		computed = computed || r.Status == bench.Fail || r.Status == bench.OK && !r.Is
	}
	if !computed {
		o.Uncompared++
	}
}
