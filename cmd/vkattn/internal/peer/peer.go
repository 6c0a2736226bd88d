package peer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// DefaultTimeout is how long a peer may take for one answer. It may import a framework
// from a cold disk, or compile a kernel.
const DefaultTimeout = 2 * time.Minute

// Options are the options of Open.
type Options struct {
	UUID    string        // of the GPU under test; empty: any device
	Timeout time.Duration // of one answer; 0: DefaultTimeout
}

// Peer is a command that times another implementation. If its process fails, it is
// stopped and restarted at the next problem; after a second failure it is not. A Peer is
// not safe for concurrent use.
type Peer struct {
	options  Options
	command  string // as given; info has it without folders
	info     Info
	process  *process // nil: not running
	failures int
	last     error // of the last failure
	refused  error // the refusal of hello by a peer that cannot work on this machine
}

const maxFailures = 2

// Open starts a command and sends hello. It always returns a Peer, which the caller must
// close: if the command fails, Open and each Problem return the error. It matches ErrNoPeer
// if the command ends by itself or answers something else. Cancelling ctx kills the process.
func Open(ctx context.Context, command string, o Options) (*Peer, error) {
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	told := WithoutFolders(command)
	p := &Peer{options: o, command: command, info: Info{Command: told, Name: oneLine(told)}}
	return p, p.greet(ctx)
}

func (p *Peer) greet(ctx context.Context) error {
	child, err := start(ctx, p.command)
	if err != nil {
		return p.fail(ctx, err)
	}
	p.process = child
	var info Info
	request := struct {
		Protocol int    `json:"protocol"`
		UUID     string `json:"uuid"`
	}{protocol, p.options.UUID}
	err = child.ask(ctx, "hello", request, &info, p.options.Timeout)
	var said *refusal
	if err == nil || errors.As(err, &said) {
		err = info.check(p.options.UUID)
	}
	if err != nil {
		failed := p.fail(ctx, err)
		if !p.known() && (errors.Is(err, errEnded) || errors.Is(err, errRubbish)) {
			return noPeer{failed}
		}
		return failed
	}
	info.Command = p.info.Command
	if p.known() {
		info.Name = p.info.Name // the name before the restart
	}
	p.info = info
	if said != nil {
		p.stop()
		p.refused = said
		return said
	}
	return nil
}

func (p *Peer) known() bool { return p.info.Name != oneLine(p.info.Command) }

// Info is the peer's answer to hello. Before the answer its name is the command.
func (p *Peer) Info() Info { return p.info }

// Rename changes the name of the peer, which must be unique in a run.
func (p *Peer) Rename(name string) { p.info.Name = name }

// Problem has the peer prepare a problem, run it once and verify the result. If the peer
// refuses, the error matches ErrUnsupported or ErrWrong.
func (p *Peer) Problem(ctx context.Context, problem Problem) (Answer, error) {
	if p.process == nil {
		if p.refused != nil {
			return Answer{}, p.refused
		}
		if p.failures >= maxFailures {
			return Answer{}, fmt.Errorf("given up: %w", p.last)
		}
		if err := p.greet(ctx); err != nil {
			return Answer{}, err
		}
	}
	var a Answer
	err := p.ask(ctx, "problem", problem, &a)
	if err == nil && a.Pass != problem.Pass {
		return a, &refusal{"the peer times no backward pass", ErrUnsupported}
	}
	return a, err
}

// Time runs the problem n times and returns the time of each run.
func (p *Peer) Time(ctx context.Context, n int) ([]time.Duration, error) {
	var answer struct {
		Ms []float64 `json:"ms"`
	}
	if err := p.ask(ctx, "time", map[string]int{"n": n}, &answer); err != nil {
		return nil, err
	}
	times, err := durations(answer.Ms, n)
	if err != nil {
		return nil, p.fail(ctx, err)
	}
	return times, nil
}

// Release has the peer free the memory of the problem.
func (p *Peer) Release(ctx context.Context) error {
	if p.process == nil {
		return nil
	}
	return p.ask(ctx, "release", nil, nil)
}

// Close ends the process and waits for it. Further calls do nothing.
func (p *Peer) Close() error {
	if p.process == nil {
		return nil
	}
	child := p.process
	p.process = nil
	err := child.ask(context.Background(), "end", nil, nil, endPatience)
	if err != nil {
		child.end(0)
		return err
	}
	child.end(endPatience)
	return nil
}

func (p *Peer) ask(ctx context.Context, op string, request, answer any) error {
	if p.process == nil {
		return errors.New("is not running")
	}
	err := p.process.ask(ctx, op, request, answer, p.options.Timeout)
	var said *refusal
	if err == nil || errors.As(err, &said) {
		return err
	}
	return p.fail(ctx, err)
}

// fail stops the process and counts the failure, unless ctx was cancelled.
func (p *Peer) fail(ctx context.Context, err error) error {
	p.stop()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	p.failures++
	p.last = errors.New(oneLine(err.Error()))
	return p.last
}

func (p *Peer) stop() {
	if p.process != nil {
		p.process.end(0)
		p.process = nil
	}
}

// absolute matches an absolute path in a text, behind a character that can stand before one.
var absolute = regexp.MustCompile(`(^|[\s'"=:(])(/[^\s'":;,()]+)`)

// WithoutFolders replaces the absolute paths of a text, for results that other people read: a
// file below the working folder by its path from there, any other by its name.
func WithoutFolders(text string) string {
	here, err := os.Getwd()
	if err != nil {
		here = ""
	}
	return withoutFolders(text, here)
}

func withoutFolders(text, here string) string {
	return absolute.ReplaceAllStringFunc(text, func(match string) string {
		at := len(match) - len(absolute.FindStringSubmatch(match)[2])
		path := filepath.Clean(match[at:])
		if here != "" {
			if rel, err := filepath.Rel(here, path); err == nil && filepath.IsLocal(rel) && rel != "." {
				return match[:at] + rel
			}
		}
		return match[:at] + filepath.Base(path)
	})
}
