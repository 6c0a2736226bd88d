package peer

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// process is one run of a peer's command. Every started process is reaped.
type process struct {
	in        io.WriteCloser
	out       *os.File
	answers   *bufio.Scanner // of out
	stderr    tail
	kill      context.CancelFunc
	exited    chan struct{} // closed once the process is reaped
	state     error         // exit state, valid after exited is closed
	lastID    int
	lastWords time.Duration
}

const maxLine = 1 << 20 // bytes of an answer

// Tests raise these.
var (
	lastWords   = 200 * time.Millisecond // wait for the exit state after the output ended, or the other way round
	endPatience = 5 * time.Second        // wait for the process to end by itself
)

// start runs a command line in a shell, in its own process group: killing the group also
// kills the processes that it started, and an interrupt from the terminal reaches it only
// through ctx.
func start(ctx context.Context, command string) (*process, error) {
	// Not StdoutPipe: Wait would close it before the last answer is read.
	ours, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	ctx, kill := context.WithCancel(ctx)
	p := &process{out: ours, answers: bufio.NewScanner(ours), kill: kill, exited: make(chan struct{}), lastWords: lastWords}
	p.answers.Buffer(nil, maxLine)
	cmd := exec.CommandContext(ctx, shell[0], shell[1], command)
	cmd.Stdout, cmd.Stderr = theirs, &p.stderr
	group(cmd)
	cmd.WaitDelay = time.Second // if a grandchild keeps standard error open
	if p.in, err = cmd.StdinPipe(); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		kill()
		return nil, errors.Join(err, ours.Close())
	}
	go func() {
		p.state = cmd.Wait()
		close(p.exited)
		time.AfterFunc(p.lastWords, func() { _ = ours.Close() }) // a grandchild may hold the other end
	}()
	return p, nil
}

// ask sends a request and decodes the answer. After an error that is no refusal the
// process cannot be used any more; end it.
func (p *process) ask(ctx context.Context, op string, request, answer any, timeout time.Duration) error {
	p.lastID++
	line, err := requestLine(op, p.lastID, request)
	if err != nil {
		return err
	}
	_, _ = p.in.Write(line) // without a reader the answers end, and say why
	defer context.AfterFunc(ctx, p.kill)()
	late := make(chan struct{})
	timer := time.AfterFunc(timeout, func() {
		close(late)
		p.kill()
	})
	answered := p.answers.Scan()
	if !timer.Stop() && !answered {
		<-late
		return cmp.Or(ctx.Err(), fmt.Errorf("gave no answer to %q within %v and was stopped%s", op, timeout, p.stderr.quote()))
	}
	return p.decode(ctx, op, p.answers.Text(), answered, answer)
}

// requestLine encodes a request with op and id.
func requestLine(op string, id int, request any) ([]byte, error) {
	var b bytes.Buffer
	head, err := json.Marshal(struct {
		Op string `json:"op"`
		ID int    `json:"id"`
	}{op, id})
	if err != nil {
		return nil, err
	}
	b.Write(head)
	if request != nil {
		body, err := json.Marshal(request)
		if err != nil {
			return nil, err
		}
		b.Truncate(b.Len() - 1)
		b.WriteByte(',')
		b.Write(body[1:])
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

func (p *process) decode(ctx context.Context, op, text string, ok bool, answer any) error {
	if !ok {
		if errors.Is(p.answers.Err(), bufio.ErrTooLong) {
			return fmt.Errorf("%w to %q: a line of over %d bytes", errRubbish, op, maxLine)
		}
		return p.died(ctx, op)
	}
	var head struct {
		ID int `json:"id"`
		verdict
	}
	if err := json.Unmarshal([]byte(text), &head); err != nil || head.ID != p.lastID {
		return fmt.Errorf("%w to %q: %s", errRubbish, op, quote(text))
	}
	if answer != nil {
		if err := json.Unmarshal([]byte(text), answer); err != nil {
			return fmt.Errorf("%w to %q: %s", errRubbish, op, quote(text))
		}
	}
	return head.err()
}

// errEnded is a process that ended by itself, not by a signal.
var errEnded = errors.New("ended")

// died returns the error of a process that ended during a request.
func (p *process) died(ctx context.Context, op string) error {
	select {
	case <-p.exited:
	case <-time.After(p.lastWords): // the process closed its output and still runs
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	select {
	case <-p.exited:
		var signaled *exec.ExitError
		switch {
		case p.state == nil:
			return fmt.Errorf("%w at %q (exit status 0)%s", errEnded, op, p.stderr.quote())
		case errors.As(p.state, &signaled) && !signaled.Exited():
			return fmt.Errorf("ended at %q (%v)%s", op, p.state, p.stderr.quote())
		}
		return fmt.Errorf("%w at %q (%v)%s", errEnded, op, p.state, p.stderr.quote())
	default:
		return fmt.Errorf("closed its output at %q%s", op, p.stderr.quote())
	}
}

// end stops the process and returns when it is reaped. It first gives the process
// patience to end by itself.
func (p *process) end(patience time.Duration) {
	_ = p.in.Close()
	go func() { _, _ = io.Copy(io.Discard, p.out) }() // it must not wait for a reader
	select {
	case <-p.exited:
	case <-time.After(patience):
	}
	p.kill()
	<-p.exited
	_ = p.out.Close()
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 4096

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if over := len(t.text) - tailBytes; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(b), nil
}

// quote returns the last line that is not blank, after a colon, or "".
func (t *tail) quote() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(string(t.text), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if l := oneLine(lines[i]); l != "" {
			return ": " + l
		}
	}
	return ""
}
