package main

import (
	"errors"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress is a progress bar if standard error is a terminal. Otherwise it prints nothing.
type progress struct{ bar *progressbar.ProgressBar }

func (a *app) progress(rows int) *progress {
	f, ok := a.stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return &progress{}
	}
	return &progress{progressbar.NewOptions(rows, progressbar.OptionSetWriter(io.Writer(f)),
		progressbar.OptionShowCount(), progressbar.OptionClearOnFinish(), progressbar.OptionSetWidth(16),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetElapsedTime(true))}
}

func (p *progress) say(text string) {
	if p.bar != nil {
		p.bar.Describe(text)
	}
}

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
