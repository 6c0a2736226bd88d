package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/outfile"
)

// Work on the CPU cannot be stopped half way. An interrupted command waits this long
// for what it does at the moment. Its cleanup waits longer for the output: a busy
// machine takes its time to flush files to the disk.
const (
	patience  = 300 * time.Millisecond
	flushTime = 2 * time.Second
)

// measure runs the problems and prints their rows. What stops it early is in
// the outcome; the error is one of printing. Interrupted, it prints the rows that
// were under way as such.
func measure(ctx context.Context, b *bench.Bench, problems []bench.Problem, to bench.Printer, info *bench.RunInfo) (all outcome, err error) {
	for _, p := range problems {
		rows, err := group(ctx, b, p)
		if err != nil {
			all.stopped, info.Stopped = err, stopReason(err)
		}
		for _, r := range rows {
			if r.Status == "" {
				r.Status = bench.Interrupted // before it had a speed
			} else {
				all.add(r)
			}
			if err := to.Row(r); err != nil {
				return all, err
			}
		}
		if err != nil {
			break
		}
	}
	return all, to.Close(info)
}

// group measures one problem. Where that does not end soon after an interrupt, its
// rows are given up.
func group(ctx context.Context, b *bench.Bench, p bench.Problem) ([]*bench.Row, error) {
	type measured struct {
		rows []*bench.Row
		err  error
	}
	done := make(chan measured, 1)
	go func() {
		var m measured
		m.rows, m.err = b.Group(ctx, p)
		done <- m
	}()
	select {
	case m := <-done:
		return m.rows, m.err
	case <-ctx.Done():
	}
	select {
	case m := <-done:
		return m.rows, m.err
	case <-time.After(patience):
		return b.Unfinished(p), ctx.Err()
	}
}

// stopReason is what the output says of a run that ended early.
func stopReason(err error) string {
	if errors.Is(err, context.Canceled) {
		return string(bench.Interrupted)
	}
	return oneLine(err.Error())
}

// flushed takes away the files of a command that ends without them. An interrupt
// gives it a moment to put what is finished in place. The command calls the function
// when it returns.
func (a *app) flushed(set *outfile.Set) func() {
	done := make(chan struct{})
	a.onInterrupt.add(func() {
		select {
		case <-done:
		case <-time.After(flushTime):
		}
		set.Discard()
	})
	return sync.OnceFunc(func() {
		set.Discard()
		close(done)
	})
}
