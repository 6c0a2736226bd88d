package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cmd/vkattn/internal/outfile"
)

// patience is how long an interrupted command waits for the problem under way. A
// computation on the CPU cannot be stopped.
const patience = 300 * time.Millisecond

// flushTime is how long the cleanup of a signal waits for the files of --save. On a
// busy machine a process of low priority takes seconds to flush them to the disk. A
// second signal ends the wait. Tests raise it.
var flushTime = 10 * time.Second

// measure runs the problems and prints their rows. If an error or a signal stops it,
// the outcome has the reason, and the rows under way are printed with the status
// Interrupted. err is an error of printing.
func measure(ctx context.Context, b *bench.Bench, problems []bench.Problem, to bench.Printer[*bench.Row], info *bench.RunInfo) (all outcome, err error) {
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

// group measures one problem. If that takes longer than patience after an interrupt,
// group returns its rows without results.
func group(ctx context.Context, b *bench.Bench, p bench.Problem) ([]*bench.Row, error) {
	rows, late, err := patiently(ctx, func() ([]*bench.Row, error) { return b.Group(ctx, p) })
	if late {
		rows = b.Unfinished(p)
	}
	return rows, err
}

// patiently returns what work returns, or late and the error of ctx if work takes longer
// than patience after an interrupt. The work then goes on.
func patiently[T any](ctx context.Context, work func() (T, error)) (x T, late bool, err error) {
	type outcome struct {
		x   T
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		o.x, o.err = work()
		done <- o
	}()
	select {
	case o := <-done:
		return o.x, false, o.err
	case <-ctx.Done():
	}
	select {
	case o := <-done:
		return o.x, false, o.err
	case <-time.After(patience):
		return x, true, ctx.Err()
	}
}

// stopReason is RunInfo.Stopped of a run that ended with err.
func stopReason(err error) string {
	if errors.Is(err, context.Canceled) {
		return string(bench.Interrupted)
	}
	return flagtext.OneLine(err.Error())
}

// flushed registers a cleanup that discards the temporary files of the set after an
// interrupt, once the command has returned or flushTime has passed, and after a second
// signal at once. The command calls the returned function when it returns.
func (a *app) flushed(set *outfile.Set) func() {
	a.onSecondSignal.add(set.Discard)
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
