package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"vkattn/cmd/vkattn/internal/bench"
)

// progress is a progress bar if standard error is a terminal: rows done, time left, the
// best speed so far and the row under way. Otherwise it prints nothing. It has no colors,
// with or without NO_COLOR.
type progress struct {
	bar   *progressbar.ProgressBar
	width func() int // columns of the terminal
	best  string
	speed float64 // of best
}

func (a *app) progress(rows int) *progress {
	f, ok := a.stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || !moves(os.Getenv("TERM")) {
		return &progress{}
	}
	return newProgress(f, rows, 100*time.Millisecond, func() int {
		width, _, err := term.GetSize(int(f.Fd()))
		if err != nil || width <= 0 {
			return 80
		}
		return width
	})
}

// moves reports whether a terminal of a type moves its cursor: an unknown one may not.
func moves(kind string) bool { return kind != "" && kind != "dumb" }

// narrow is the width of a terminal below which only the numbers are printed, as a line
// that wraps would not be erased.
const narrow = 60

func newProgress(w io.Writer, rows int, throttle time.Duration, width func() int) *progress {
	bar := 16
	if width() < narrow {
		bar = 1
	}
	return &progress{width: width, bar: progressbar.NewOptions(rows, progressbar.OptionSetWriter(w), progressbar.OptionShowCount(),
		progressbar.OptionClearOnFinish(), progressbar.OptionSetWidth(bar), progressbar.OptionThrottle(throttle),
		progressbar.OptionSetTheme(progressbar.Theme{Saucer: "=", SaucerPadding: " ", BarStart: "|", BarEnd: "|"}), // in every locale
		progressbar.OptionSetElapsedTime(true), progressbar.OptionSetPredictTime(true))}
}

// say prints what the command does now, as far as the terminal is wide enough.
func (p *progress) say(what string) {
	if p.bar == nil {
		return
	}
	const numbers = 46 // columns of the bar, the counts and the times
	if p.best != "" {
		what = p.best + " | " + what
	}
	if room := p.width() - numbers; room > 8 {
		p.bar.Describe(text.Snip(what, room, "..."))
	} else {
		p.bar.Describe("")
	}
}

// Row keeps the best speed: progress is a printer of rows.
func (p *progress) Row(r *bench.Row) error {
	if p.bar != nil && r.Status == bench.OK && r.Ceiling == "" && r.TFLOPs > p.speed {
		p.speed, p.best = r.TFLOPs, fmt.Sprintf("best %s TFLOP/s (%s)", bench.Digits(r.TFLOPs), r.Who())
	}
	return nil
}

// Close implements bench.Printer.
func (p *progress) Close(*bench.RunInfo) error { return nil }

func (p *progress) step() {
	if p.bar != nil {
		_ = p.bar.Add(1)
	}
}

func (p *progress) end() {
	if p.bar != nil {
		_ = errors.Join(p.bar.Finish(), p.bar.Clear())
	}
}
