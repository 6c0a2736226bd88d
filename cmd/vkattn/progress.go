package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"
)

// progress is the last line of a terminal while a command runs: the row under way, the time
// left and the problem, in progressWidth columns. The zero value shows nothing.
// It has no colors, with or without NO_COLOR.
type progress struct {
	w     io.Writer  // nil: no terminal
	width func() int // columns of the terminal

	mu          sync.Mutex
	unit        string // of rows
	rows, done  int
	began, last time.Time // of the command; the end of the last row
	what        string
	drawn       bool        // the line is on the terminal
	midLine     bool        // output ends within a line: there is no room for this one
	again       *time.Timer // draws the line with the time left, and with a text that came too soon
	recent      bool        // it was drawn a moment ago
}

// open makes the line one of standard error if that is a terminal. It shows nothing before start.
func (p *progress) open(stderr io.Writer) {
	f, ok := stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || !moves(os.Getenv("TERM")) {
		return
	}
	p.w = f
	p.width = func() int {
		width, _, err := term.GetSize(int(f.Fd()))
		if err != nil || width <= 0 {
			return 80
		}
		return width
	}
}

// moves reports whether a terminal of a type moves its cursor: an unknown one may not.
func moves(kind string) bool { return kind != "" && kind != "dumb" }

// above returns a writer to w. If that is a terminal, the line stays below what is written.
func (p *progress) above(w io.Writer) io.Writer {
	if f, ok := w.(*os.File); p.w == nil || !ok || !term.IsTerminal(int(f.Fd())) {
		return w
	}
	return &above{p, w}
}

type above struct {
	p *progress
	w io.Writer
}

func (a *above) Write(b []byte) (int, error) {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	a.p.clear()
	if len(b) > 0 {
		a.p.midLine = b[len(b)-1] != '\n'
	}
	return a.w.Write(b)
}

// start shows the line of a command that makes that many rows.
func (p *progress) start(unit string, rows int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w != nil {
		p.unit, p.rows, p.began = unit, rows, time.Now()
		p.again = time.AfterFunc(time.Hour, p.redraw)
	}
}

// say shows what the command does now: the problem first.
func (p *progress) say(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.what = what
	if !p.recent || !p.drawn {
		p.draw()
	}
}

// step counts a row that is done.
func (p *progress) step() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	p.last = time.Now()
	p.draw()
}

// end erases the line. Nothing shows it again.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	if p.again != nil {
		p.again.Stop()
		p.again = nil
	}
}

// redraw shows the line after a moment, and then every second.
func (p *progress) redraw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draw()
	if p.again != nil {
		p.recent = false
		p.again.Reset(time.Second)
	}
}

// clear erases the line.
func (p *progress) clear() {
	if p.drawn {
		_, _ = io.WriteString(p.w, erase)
		p.drawn = false
	}
}

const progressWidth = 60

// erase moves to the first column and erases the line, with the ^C of a terminal behind it.
const erase = "\r\x1b[K"

// draw shows the line. A terminal would wrap a longer one, of which erase leaves a part.
func (p *progress) draw() {
	if p.again == nil || p.midLine || p.rows == 0 {
		return
	}
	room := max(1, min(p.width()-1, progressWidth))
	line := fmt.Sprintf("%s %d of %d", p.unit, min(p.done+1, p.rows), p.rows)
	if p.done > 0 {
		left := p.last.Sub(p.began)/time.Duration(p.done)*time.Duration(p.rows-p.done) - time.Since(p.last)
		line += fmt.Sprintf(", %v left", max(0, left).Round(time.Second))
	}
	line = text.Snip(line+": "+p.what, room, "...")
	_, _ = io.WriteString(p.w, erase+line)
	p.drawn, p.recent = true, true
	p.again.Reset(100 * time.Millisecond)
}
