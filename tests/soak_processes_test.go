package tests

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A soak that takes minutes runs in several processes. A process that loses its device,
// crashes or hangs is a failure, and the others continue.

const (
	soakJournalEnv   = "VKATTN_SOAK_JOURNAL"   // of a child process
	soakOutEnv       = "OUT"                   // folder of soak.md and soak.jsonl; unset: the temporary folder
	soakProcessesEnv = "VKATTN_SOAK_PROCESSES" // how many; unset: soakProcessesDefault
	soakSmallEnv     = "VKATTN_SOAK_SMALL"     // set: only head dims that compile quickly
	soakStuckEnv     = "VKATTN_SOAK_STUCK"     // seconds without news of a composition after which it is stuck

	soakProcessesDefault = 4
	soakStuckDefault     = 300 // a composition may need three pipelines of a minute, on processors that others use
	soakLostDevice       = 3   // exit status
)

// soakRunner runs the processes of a soak.
type soakRunner struct {
	dir     string // of the journal, the summary and the output of processes
	program string // the test binary, which the processes run
	journal *os.File
	seed    uint64
	workers int
	until   time.Time
	stuck   time.Duration
	started int // processes
	command func(c *soakChild) *exec.Cmd
	begin   time.Time
	tick    func() time.Time // waits for the next time to look at the processes
}

// soakChild is a process.
type soakChild struct {
	n      int
	cmd    *exec.Cmd // nil: it could not be started
	output string
	exited chan error
}

func environmentInt(t *testing.T, name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoErrorf(t, err, "%s", name)
	require.Positivef(t, n, "%s", name)
	return n
}

func soakProcesses(t *testing.T) {
	start := time.Now()
	seconds := environmentInt(t, soakSecondsEnv, 0)
	processes := environmentInt(t, soakProcessesEnv, soakProcessesDefault)
	dir := os.Getenv(soakOutEnv)
	if dir == "" {
		dir = t.TempDir()
	}
	k := &soakRunner{
		dir: dir, seed: soakSeed(t), workers: soakWorkers(processes),
		begin: start, until: start.Add(time.Duration(seconds) * time.Second),
		stuck: time.Duration(environmentInt(t, soakStuckEnv, soakStuckDefault)) * time.Second,
	}
	k.command = k.worker
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	k.tick = func() time.Time { return <-ticker.C }
	var err error
	k.program, err = filepath.Abs(os.Args[0])
	require.NoError(t, err)
	k.journal, err = os.Create(filepath.Join(dir, "soak.jsonl"))
	require.NoError(t, err)
	unfinished := k.run(processes)
	require.NoError(t, k.journal.Close())
	records, err := readSoak(k.journal.Name())
	require.NoError(t, err)
	heading := fmt.Sprintf("Random compositions with extreme numbers, %s=%d, %d s in %d processes of %d compositions at once.",
		soakSeedEnv, k.seed, int(time.Since(start).Seconds()), processes, k.workers)
	var b bytes.Buffer
	failures := describeSoak(&b, records, heading, unfinished)
	require.NoError(t, writeWhole(filepath.Join(dir, "soak.md"), b.Bytes()))
	head, _, _ := bytes.Cut(b.Bytes(), []byte("\n- FAIL"))
	fmt.Printf("%s\n", head)
	for i, r := range failures {
		if i == 40 {
			t.Errorf("and %d more, in soak.md", len(failures)-i)
			break
		}
		t.Errorf("%s", r.failure())
	}
	done := 0
	for _, r := range records {
		if r.Event == soakDone {
			done++
		}
	}
	require.Positive(t, done, "no case was computed; see the output of the processes in %s", dir)
}

// run keeps processes running until the time is over. It returns the compositions that
// were unfinished then, each with its last case.
//
// When the time is over, run ends the processes. A composition that had no news for the
// time limit of a stuck one is then reported as stuck.
func (k *soakRunner) run(processes int) (unfinished []soakRecord) {
	children := make([]*soakChild, processes)
	deaths := 0
	for i := range children {
		children[i] = k.start()
	}
	now := k.begin
	for ; now.Before(k.until); now = k.tick() {
		records, err := readSoak(k.journal.Name())
		for i, c := range children {
			if c == nil {
				continue
			}
			over := false
			select {
			case failed := <-c.exited:
				over = true
				if failed != nil {
					k.died(c, records, failed)
					deaths++
				}
			default:
				if err == nil {
					over = k.endIfStuck(c, records, now)
				}
			}
			if over && k.until.Sub(now) < 2*time.Second || deaths > 100 {
				children[i] = nil
			} else if over {
				children[i] = k.start()
			}
		}
	}
	// Children begin nothing new. Unfinished work is cut off.
	records, _ := readSoak(k.journal.Name())
	for _, c := range children {
		if c == nil {
			continue
		}
		select {
		case failed := <-c.exited:
			if failed != nil {
				k.died(c, records, failed)
			}
		default:
			if !k.endIfStuck(c, records, now) {
				unfinished = slices.AppendSeq(unfinished, maps.Values(underway(records, c.n)))
				k.kill(c)
			}
		}
	}
	return unfinished
}

// start starts the next process.
func (k *soakRunner) start() *soakChild {
	c := &soakChild{n: k.started, exited: make(chan error, 1)}
	k.started++
	c.output = filepath.Join(k.dir, fmt.Sprintf("soak-%d.txt", c.n))
	out, err := os.Create(c.output)
	if err != nil {
		c.exited <- err
		return c
	}
	cmd := k.command(c)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		c.exited <- errors.Join(err, out.Close())
		return c
	}
	c.cmd = cmd
	go func() { c.exited <- errors.Join(cmd.Wait(), out.Close()) }()
	return c
}

// worker returns the command of a process: the same test binary.
func (k *soakRunner) worker(c *soakChild) *exec.Cmd {
	line := append(strings.Fields(os.Getenv("VKATTN_EXEC")), k.program, "-test.run=^TestSoak$", "-test.count=1", "-test.timeout=0", "-test.v")
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(os.Environ(),
		fmt.Sprintf("%s=%d %d %d %d", soakWorkerEnv, c.n, k.workers, k.seed, k.until.UnixMilli()),
		soakJournalEnv+"="+k.journal.Name())
	return cmd
}

func (k *soakRunner) kill(c *soakChild) {
	if c.cmd == nil {
		return
	}
	_ = c.cmd.Process.Kill() // it may have ended
	// Do not wait for a process that a driver keeps in the kernel.
	select {
	case <-c.exited:
	case <-time.After(time.Minute):
	}
}

// died reports a process that ended with an error, and its unfinished compositions.
func (k *soakRunner) died(c *soakChild, records []soakRecord, failed error) {
	fresh, err := readSoak(k.journal.Name())
	if err == nil {
		records = fresh
	}
	doing := underway(records, c.n)
	text := fmt.Sprintf("process %d ended with %v, its output is in %s%s", c.n, failed, filepath.Base(c.output), lastLines(c.output))
	k.broken(c, doing, text, "dead process")
}

// endIfStuck ends a process that has a composition without news for too long.
func (k *soakRunner) endIfStuck(c *soakChild, records []soakRecord, now time.Time) bool {
	stuck := map[string]soakRecord{}
	for name, r := range underway(records, c.n) {
		if now.Sub(time.UnixMilli(r.At)) > k.stuck {
			stuck[name] = r
		}
	}
	if len(stuck) == 0 {
		return false
	}
	k.kill(c)
	k.broken(c, stuck, fmt.Sprintf("no news for %v", k.stuck), "stuck")
	return true
}

// broken writes the failure of a process's compositions to the journal.
func (k *soakRunner) broken(c *soakChild, doing map[string]soakRecord, text, class string) {
	r := soakRecord{Event: soakBroken, Process: c.n, At: time.Now().UnixMilli(), Error: text, Class: class}
	if len(doing) == 0 {
		r.Case = "no composition"
		_ = r.writeTo(k.journal) // as the children do; the test fails where the file cannot be read
	}
	for _, last := range doing {
		r.Case = last.Case
		if last.Event == soakDone {
			r.Error = "after this case, " + text
		}
		_ = r.writeTo(k.journal)
	}
}

// lastLines returns the first line of a crash in a process's output, or "".
func lastLines(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	for _, mark := range []string{"panic: ", "fatal error: ", "SIG", "--- FAIL"} {
		if i := bytes.Index(text, []byte(mark)); i >= 0 {
			line, _, _ := bytes.Cut(text[i:], []byte("\n"))
			return ": " + string(line)
		}
	}
	return ""
}
