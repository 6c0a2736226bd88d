package main

import (
	"fmt"

	"vkattn/cmd/vkattn/internal/bench"
)

// outcome sums up the rows for the exit code.
type outcome struct {
	list               []*bench.Row // peers' too
	rows, own, refused int          // own are what was asked for: not what it is compared with
	failed, broken     int
	why                string // of the first row that has no speed
	stopped            error
}

func (o *outcome) add(r *bench.Row) {
	o.list = append(o.list, r)
	compared := r.Form != ""
	if r.Peer || compared && r.Status == bench.Unsupported {
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
	}
	if o.why == "" {
		o.why = r.Reason
	}
}

func (o *outcome) err() error {
	switch {
	case o.stopped != nil:
		return o.stopped
	case o.failed > 0:
		return fmt.Errorf("%d of %d rows are wrong", o.failed, o.rows)
	case o.broken > 0:
		return &coded{exitDevice, fmt.Errorf("%d of %d rows failed: %s", o.broken, o.rows, o.why)}
	case o.refused == o.own && o.own > 0:
		return unsupportedf("no row is supported: %s", o.why)
	}
	return nil
}
