package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cmd/vkattn/internal/monitor"
	"vkattn/cudapath"
	"vkattn/internal/atomicfile"
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
func measure(ctx context.Context, b *bench.Bench, problems []bench.Problem, to bench.Printer[*bench.Row],
	info *bench.RunInfo) (all outcome, err error) {
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
func (a *app) flushed(set *atomicfile.Set) func() {
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

// monitorUsage is the help of --monitor.
const monitorUsage = "write clocks, temperature, power and throttle reasons of an NVIDIA GPU to `file` every 10 ms, as CSV with the columns of nvidia-smi"

// openMonitor starts to read the clocks of a device and writes them to path, if it is not
// empty. Where the clocks cannot be read the sampler is nil and the file has its header
// alone. stop ends the readings and may be called again.
func (a *app) openMonitor(set *atomicfile.Set, path string, dev *attention.Device) (s *monitor.Sampler, stop func() error, err error) {
	var gpu monitor.GPU
	if v := dev.Vulkan(); v != nil {
		gpu = monitor.Open(v.Info().UUID)
	} else if c := cudapath.ContextOf(dev); c != nil {
		gpu = monitor.Open(c.Info().UUID)
	}
	var csv io.Writer
	if path != "" {
		if csv, err = addOutput(set, "--monitor", path); err == nil {
			_, err = io.WriteString(csv, monitor.CSVHeader)
		}
		if err != nil {
			if gpu != nil {
				gpu.Close()
			}
			return nil, func() error { return nil }, err
		}
		if gpu == nil {
			fmt.Fprintln(a.stderr, "vkattn: --monitor: no clocks of this device can be read (NVML reads NVIDIA GPUs only)")
		}
	}
	s = monitor.Start(gpu, csv, monitor.Interval)
	return s, sync.OnceValue(s.Close), nil
}

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
	if o.stopped != nil {
		return o.stopped
	}
	return cmp.Or(failures(&o.Tally, false), noneRan(&o.Tally, "row", o.own))
}

// noneRan is the error if all of some rows or problems are unsupported or do not fit the memory.
func noneRan(t *bench.Tally, what string, of int) error {
	refused, tooLarge := t.Count[bench.Unsupported], t.Count[bench.OOM]
	switch {
	case of == 0 || refused+tooLarge != of:
		return nil
	case tooLarge == 0:
		return unsupportedf("no %s is supported: %s", what, t.First[bench.Unsupported])
	case refused == 0:
		return unsupportedf("no %s fits the memory: %s", what, t.First[bench.OOM])
	}
	return unsupportedf("no %s is supported and fits the memory: %s", what, t.First[bench.Unsupported])
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

// saved is a file of --save with the format of its extension.
type saved struct {
	path   string
	format bench.Format
}

// parseSaved parses the files of --save, each in one of the formats.
func parseSaved(paths []string, formats []bench.Format) ([]saved, error) {
	var out []saved
	for _, path := range paths {
		format, err := bench.ParseFormat(strings.TrimPrefix(filepath.Ext(path), "."), formats)
		if err != nil {
			return nil, badInputf("--save %s: the name ends in none of .%s", path, strings.Join(flagtext.Texts(formats), ", ."))
		}
		out = append(out, saved{path, format})
	}
	return out, nil
}

// openSaved opens the files before anything is measured, so that a folder that cannot
// be written to is refused at once. Commit moves them into place.
func openSaved[R any](set *atomicfile.Set, list []saved, printer func(bench.Format, io.Writer) bench.Printer[R]) ([]bench.Printer[R], error) {
	var out []bench.Printer[R]
	for _, s := range list {
		w, err := addOutput(set, "--save", s.path)
		if err != nil {
			return nil, err
		}
		out = append(out, printer(s.format, w))
	}
	return out, nil
}

// flagFile is the output file of a flag, whose errors name both.
type flagFile struct {
	w          io.Writer
	flag, path string
}

func (f *flagFile) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err != nil {
		err = fmt.Errorf("%s %s: %w", f.flag, f.path, err)
	}
	return n, err
}

// addOutput adds the file of a flag to a set.
func addOutput(set *atomicfile.Set, flag, path string) (*flagFile, error) {
	w, err := set.Add(path)
	if err != nil {
		return nil, badInputf("%s %s: %w", flag, path, err)
	}
	return &flagFile{w, flag, path}, nil
}

// commitRows moves the files of --save into place. After a signal it does so only if a
// row is finished: otherwise the old files are worth more. The cleanup of the signal
// waits flushTime for it and then discards the files.
func commitRows(ctx context.Context, set *atomicfile.Set, finished int) error {
	if finished > 0 {
		ctx = context.WithoutCancel(ctx)
	} else if ctx.Err() != nil {
		return nil
	}
	if err := set.Commit(ctx); err != nil {
		return fmt.Errorf("--save: %w", err)
	}
	return nil
}
