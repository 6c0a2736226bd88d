package main

import (
	"fmt"

	"vkattn/cmd/vkattn/internal/bench"
)

// outcome is what the rows of a benchmark come to.
type outcome struct {
	bench.Tally              // of the rows that count for the exit code
	list        []*bench.Row // all rows, with the rows of peers
	own         int          // rows that are neither baseline nor ceiling
	stopped     error        // what ended the run early
}

func (o *outcome) add(r *bench.Row) {
	o.list = append(o.list, r)
	compared := r.Baseline != "" || r.Ceiling != ""
	if r.Peer || compared && (r.Status == bench.Unsupported || r.Status == bench.OOM) {
		return
	}
	if !compared {
		o.own++
	}
	o.Add(r.Status, r.Reason)
}

// oomCount is the part of the last line that counts rows with the status OOM.
func oomCount(t *bench.Tally) string {
	if n := t.Count[bench.OOM]; n > 0 {
		return fmt.Sprintf("%d OOM, ", n)
	}
	return ""
}

func (o *outcome) err() error {
	refused, tooLarge := o.Count[bench.Unsupported], o.Count[bench.OOM]
	switch bad := failures(&o.Tally, false); {
	case o.stopped != nil:
		return o.stopped
	case bad != nil || o.own == 0:
		return bad
	case refused == o.own:
		return unsupportedf("no row is supported: %s", o.First[bench.Unsupported])
	case tooLarge == o.own:
		return unsupportedf("no row fits the memory: %s", o.First[bench.OOM])
	case refused+tooLarge == o.own:
		return unsupportedf("no row is supported and fits the memory: %s", o.First[bench.Unsupported])
	}
	return nil
}

// failures is the error of rows that are wrong, which are told if tell is set, or that failed; nil if there are none.
func failures(t *bench.Tally, tell bool) error {
	wrong, broken := t.Count[bench.Fail], t.Count[bench.Broken]
	switch {
	case wrong > 0 && tell:
		return fmt.Errorf("%d of %d rows are wrong: %s", wrong, t.Rows, t.First[bench.Fail])
	case wrong > 0:
		return fmt.Errorf("%d of %d rows are wrong", wrong, t.Rows)
	case broken > 0:
		return &coded{exitDevice, fmt.Errorf("%d of %d rows failed: %s", broken, t.Rows, t.First[bench.Broken])}
	}
	return nil
}
