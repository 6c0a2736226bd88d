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
	"vkattn/cmd/vkattn/internal/chart"
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
		if csv, err = set.Add(path); err != nil {
			err = badInputf("--monitor %s: %w", path, err)
		} else if _, err = io.WriteString(csv, monitor.CSVHeader); err != nil {
			err = fmt.Errorf("--monitor %s: %w", path, err)
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
	return s, sync.OnceValue(func() error {
		if err := s.Close(); err != nil {
			return fmt.Errorf("--monitor %s: %w", path, err)
		}
		return nil
	}), nil
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
		w, err := set.Add(s.path)
		if err != nil {
			return nil, badInputf("--save %s: %w", s.path, err)
		}
		out = append(out, printer(s.format, &savedFile{w, s.path}))
	}
	return out, nil
}

// savedFile is a file of --save, whose errors name it.
type savedFile struct {
	w    io.Writer
	path string
}

func (f *savedFile) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err != nil {
		err = fmt.Errorf("--save %s: %w", f.path, err)
	}
	return n, err
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

// openPlots opens the files of --plot before anything is measured, and returns a printer
// that draws the rows when all are measured.
func (a *app) openPlots(set *atomicfile.Set, paths []string, c chart.Ceilings) (bench.Printer[*bench.Row], error) {
	p := &plotPrinter{paths: paths, ceilings: c, stderr: a.stderr}
	for _, path := range paths {
		w, err := set.Add(path)
		if err != nil {
			return nil, badInputf("--plot %s: %w", path, err)
		}
		p.files = append(p.files, w)
	}
	return p, nil
}

// plotPrinter draws pictures of the rows.
type plotPrinter struct {
	paths    []string
	files    []io.Writer
	ceilings chart.Ceilings
	rows     []*bench.Row
	stderr   io.Writer
}

func (p *plotPrinter) Row(r *bench.Row) error {
	if len(p.paths) > 0 {
		p.rows = append(p.rows, r)
	}
	return nil
}

func (p *plotPrinter) Close(info *bench.RunInfo) error {
	if len(p.paths) == 0 {
		return nil
	}
	figures := chart.Figures(p.rows, p.ceilings)
	if len(figures) == 0 {
		fmt.Fprintln(p.stderr, "vkattn: --plot: the picture is empty: speed over length needs two lengths, a roofline both ceilings")
	}
	caption := fmt.Sprintf("%s, %s %s, %s", info.Device.Name, info.Program, info.Version, info.Started.Format("2006-01-02"))
	for i, path := range p.paths {
		if err := drawPlot(p.files[i], path, figures, plotColumns, caption); err != nil {
			return fmt.Errorf("--plot %s: %w", path, err)
		}
	}
	return nil
}
