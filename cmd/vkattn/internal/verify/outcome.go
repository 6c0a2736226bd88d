package verify

import (
	"fmt"

	"vkattn/cmd/vkattn/internal/bench"
)

// Outcome counts rows by status, for the exit code.
type Outcome struct {
	Problems                    int
	Rows                        int
	Failed, Broken, Refused     int
	TooLarge                    int    // OOM
	FirstFail, FirstBroken, Why string // the first Fail, the first Broken, and the first row that was refused
	Uncompared                  int    // problems that no implementation computed
}

// Add counts the rows of one problem.
func (o *Outcome) Add(rows []*Row) {
	o.Problems++
	computed := false
	for _, r := range rows {
		o.Rows++
		first := &o.Why
		switch r.Status {
		case bench.OK:
			computed = computed || !r.Is
			continue
		case bench.Fail:
			o.Failed++
			first = &o.FirstFail
			computed = true
		case bench.Unsupported:
			o.Refused++
		case bench.OOM:
			o.TooLarge++
		default:
			o.Broken++
			first = &o.FirstBroken
		}
		if *first == "" {
			*first = fmt.Sprintf("%s, %s: %s", r.Who, r.Problem(), r.Note())
		}
	}
	if !computed {
		o.Uncompared++
	}
}
