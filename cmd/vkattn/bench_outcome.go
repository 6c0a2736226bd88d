package main

import (
	"fmt"

	"vkattn/cmd/vkattn/internal/bench"
)

// outcome counts the rows by status, for the exit code.
type outcome struct {
	list              []*bench.Row            // all rows, with the rows of peers
	rows, own         int                     // rows that count for the exit code; rows that are neither baseline nor ceiling
	refused, tooLarge int                     // Unsupported, OOM
	failed, broken    int                     // Fail, Broken
	why               map[bench.Status]string // reason of the first row of each status
	stopped           error                   // what ended the run early
}

func (o *outcome) add(r *bench.Row) {
	o.list = append(o.list, r)
	compared := r.Baseline != "" || r.Ceiling != ""
	if r.Peer || compared && (r.Status == bench.Unsupported || r.Status == bench.OOM) {
		return
	}
	o.rows++
	if !compared {
		o.own++
	}
	switch r.Status {
	case bench.Fail:
		o.failed++
	case bench.Broken:
		o.broken++
	case bench.Unsupported:
		o.refused++
	case bench.OOM:
		o.tooLarge++
	}
	if o.why == nil {
		o.why = map[bench.Status]string{}
	}
	if o.why[r.Status] == "" {
		o.why[r.Status] = r.Reason
	}
}

// oomCount is the part of the last line that counts rows with the status OOM.
func oomCount(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d OOM, ", n)
}

func (o *outcome) err() error {
	switch {
	case o.stopped != nil:
		return o.stopped
	case o.failed > 0:
		return fmt.Errorf("%d of %d rows are wrong", o.failed, o.rows)
	case o.broken > 0:
		return &coded{exitDevice, fmt.Errorf("%d of %d rows failed: %s", o.broken, o.rows, o.why[bench.Broken])}
	case o.refused == o.own && o.own > 0:
		return unsupportedf("no row is supported: %s", o.why[bench.Unsupported])
	case o.tooLarge == o.own && o.own > 0:
		return unsupportedf("no row fits the memory: %s", o.why[bench.OOM])
	case o.refused+o.tooLarge == o.own && o.own > 0:
		return unsupportedf("no row is supported and fits the memory: %s", o.why[bench.Unsupported])
	}
	return nil
}
