package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vkattn/attention"
	"vkattn/attention/parallel"
	"vkattn/attention/parallel/processes"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/ranks"
	"vkattn/internal/atomicfile"
	"vkattn/internal/control"
	"vkattn/vk"
)

// ranksFlags are the flags of a command that runs over several ranks, not parsed yet.
type ranksFlags struct {
	ranks     int
	modes     string
	transport string
	schedule  string
	splits    string
	inner     int
}

func (o *ranksFlags) add(f *pflag.FlagSet) {
	f.IntVar(&o.ranks, "ranks", 0, "`number` of processes, one for each GPU (0: this process alone)")
	f.StringVar(&o.modes, "parallel", "",
		"`list` of modes of --ranks: auto, ring, ulysses, allgather, 2d, decode (default ring,ulysses,allgather)")
	f.StringVar(&o.schedule, "schedule", "auto", "when blocks of a ring move in the forward pass of --ranks: auto, overlap or gather")
	f.StringVar(&o.splits, "split", "auto",
		"`list` of splits of rows and keys over the ranks: auto, contiguous, zigzag, striped; decode takes none")
	f.IntVar(&o.inner, "inner", 0, "`number` of consecutive ranks that share heads in --parallel 2d (0: those of a host)")
	f.StringVar(&o.transport, "transport", "auto", "what moves tensors between ranks: auto, nccl or tcp")
}

// ranksPlan holds the parsed flags.
type ranksPlan struct {
	modes     []ranks.Mode
	transport processes.Transport
	schedule  parallel.Schedule
	world     control.World
	joins     bool // the environment has a world
}

// plan parses the flags; nil: the command runs in this process alone.
func (o *ranksFlags) plan(f *pflag.FlagSet) (*ranksPlan, error) {
	if o.ranks == 0 {
		alone := func(flag string) bool { return flag != "ranks" && f.Changed(flag) } // --ranks 0 is none
		return nil, needs(alone, "parallel transport schedule split inner", "ranks")
	}
	p := &ranksPlan{modes: []ranks.Mode{{Mode: parallel.ModeRing}, {Mode: parallel.ModeUlysses}, {Mode: parallel.ModeAllGather}}}
	if o.ranks < 1 || o.ranks > parallel.MaxRanks {
		return nil, badInputf("--ranks %d: want 1 to %d", o.ranks, parallel.MaxRanks)
	}
	if err := words(&p.modes, o.modes, ranks.ParseMode); err != nil {
		return nil, badInputf("--parallel: %w", err)
	}
	if err := o.divide(p); err != nil {
		return nil, err
	}
	var err error
	if p.transport, err = processes.ParseTransport(o.transport); err != nil {
		return nil, badInputf("--transport: %w", err)
	}
	if p.schedule, err = parallel.ParseSchedule(o.schedule); err != nil {
		return nil, badInputf("--schedule: %w", err)
	}
	if p.world, p.joins, err = control.FromEnvironment(); err != nil {
		return nil, badInput(err)
	}
	if p.joins && p.world.Ranks != o.ranks {
		return nil, badInputf("--ranks %d: the environment has a world of %d ranks", o.ranks, p.world.Ranks)
	}
	return p, nil
}

// divide gives each mode each of the splits, and the ranks that share heads.
func (o *ranksFlags) divide(p *ranksPlan) error {
	var splits []parallel.Order
	if err := words(&splits, o.splits, parallel.ParseOrder); err != nil {
		return badInputf("--split: %w", err)
	}
	grouped := func(m ranks.Mode) bool {
		return !m.Decode && (m.Mode == parallel.Mode2D || m.Mode == parallel.ModeAuto)
	}
	switch {
	case o.inner < 0 || o.inner > parallel.MaxRanks:
		return badInputf("--inner %d: want 1 to %d, or 0 for the ranks of a host", o.inner, parallel.MaxRanks)
	case o.inner > 0 && !slices.ContainsFunc(p.modes, grouped):
		return badInputf("--inner needs --parallel 2d or auto")
	}
	var modes []ranks.Mode
	for _, m := range p.modes {
		if grouped(m) {
			m.Inner = o.inner
		}
		for _, m.Split = range splits {
			modes = append(modes, m)
		}
	}
	p.modes = modes
	return nil
}

// ranksWork is what a command does on every rank: a row for each problem, tier and mode.
type ranksWork struct {
	problems []bench.Problem
	tiers    []attention.Tier
	timed    bool
	row      func(ctx context.Context, x bench.Problem, tier attention.Tier, mode ranks.Mode, seed uint64) (*ranks.Row, error)
}

// workOf lists the work on a rank.
type workOf func(*ranks.Session) (ranksWork, error)

// onRanks runs a command as its flags and the environment say: in this process alone, as a rank, or as the parent of
// the ranks. plan parses its flags, and refuses those that ranks do not take.
func (a *app) onRanks(c *cobra.Command, o *benchFlags, alone func() error, plan func() (*benchPlan, workOf, error)) error {
	p, err := o.ranksFlags.plan(c.Flags())
	if err != nil {
		return err
	}
	if p == nil {
		return alone()
	}
	b, work, err := plan()
	switch {
	case err != nil:
		return err
	case !p.joins:
		return a.startRanks(c.Context(), o.ranks, b.saved)
	}
	return a.onSession(c.Context(), p, o, b, work)
}

// listenerEnv has the file descriptor of the socket at which rank 0 listens.
const listenerEnv = "VKATTN_RANK_LISTENER"

// onSession joins the world, does the work and leaves it.
func (a *app) onSession(ctx context.Context, p *ranksPlan, o *benchFlags, plan *benchPlan, work workOf) error {
	s, done, err := a.session(ctx, p, o.device, plan.tiers, plan.allTiers)
	if err != nil {
		return err
	}
	defer done()
	s.Schedule = p.schedule
	var set atomicfile.Set
	defer a.flushed(&set)()
	all, err := a.rowsOnRanks(ctx, s, p, o, plan, &set, work)
	if err != nil {
		return errors.Join(err, s.Group.Close())
	}
	if err := s.Close(ctx); err != nil {
		return err
	}
	return errors.Join(all.err(), validated(s.Device))
}

// session joins the world of the environment with the device of this rank.
func (a *app) session(ctx context.Context, p *ranksPlan, device string, tiers []attention.Tier,
	allTiers bool) (s *ranks.Session, done func(), err error) {
	o := processes.Options{Transport: p.transport, Control: control.Options{Join: 2 * time.Minute}}
	if text := os.Getenv(listenerEnv); text != "" && p.world.Rank == 0 {
		fd, err := strconv.Atoi(text)
		if err != nil {
			return nil, nil, badInputf("%s is %q, want a number", listenerEnv, text)
		}
		file := os.NewFile(uintptr(fd), "listener")
		l, err := net.FileListener(file)
		_ = file.Close()
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", listenerEnv, err)
		}
		o.Control.Listener = l
	}
	if auto := device == "" || strings.EqualFold(device, "auto"); auto && needOfTiers(tiers, allTiers) != needCPU {
		name, err := processes.Device(p.world.LocalRank)
		switch {
		case err == nil:
			device = name
		case !errors.Is(err, vk.ErrNoDevice) && !errors.Is(err, vk.ErrUnsupported):
			return nil, nil, err
		case processes.GPUs() > 0:
			return nil, nil, &coded{exitUnsupported, err}
		}
	}
	dev, err := a.openDevice(device, needOfTiers(tiers, allTiers), firstTier(tiers))
	if err != nil {
		return nil, nil, err
	}
	t, err := processes.Join(ctx, dev, p.world, o)
	if err == nil {
		s, err = ranks.NewSession(dev, t)
	}
	if err == nil {
		if err = s.FindHosts(ctx, p.world.LocalRank); err != nil {
			_ = s.Group.Close()
		}
	}
	if err != nil {
		_ = dev.Close()
		return nil, nil, err
	}
	return s, func() { _ = dev.Close() }, nil
}

// startRanks runs this command with the same arguments in a process for each rank of this host. The
// first gets standard output; the lines on standard error of the others are prefixed. An error that several
// ranks report, such as bad input, is printed once. An interrupted command waits for its ranks.
func (a *app) startRanks(ctx context.Context, n int, files []saved) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	socket, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	defer socket.Close()
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	asked := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex // of standard error
	var all sync.WaitGroup
	failed := make([]error, n)
	said := map[string]bool{}   // errors printed
	last := make([][]string, n) // errors of ranks, which wait for those of rank 0
	over := make(chan struct{})
	a.onInterrupt.add(func() { <-over })
	var started []*exec.Cmd
	for r := range n {
		c := exec.CommandContext(ctx, self, a.args...)
		c.Cancel = func() error { return terminate(c.Process) }
		c.WaitDelay = endOfRank()
		c.Env = append(os.Environ(), "RANK="+strconv.Itoa(r), "WORLD_SIZE="+strconv.Itoa(n), "LOCAL_RANK="+strconv.Itoa(r),
			"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port, control.PortEnv+"="+port, listenerEnv+"=")
		if r == 0 {
			c.Stdout = a.stdout
			c.Env = append(c.Env, listenerEnv+"=3")
			c.ExtraFiles = []*os.File{socket}
		}
		stderr, err := c.StderrPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			failed[r] = err // the other ranks wait for it, and then end
			continue
		}
		started = append(started, c)
		all.Go(func() {
			lines := bufio.NewScanner(stderr)
			lines.Buffer(nil, 1<<20)
			for lines.Scan() {
				text := lines.Text()
				if a.nobodyReads() {
					continue // nor wants to know how the rank ends
				}
				isError := strings.HasPrefix(text, errorPrefix)
				if isError && (r > 0 || text == interruptedText) {
					last[r] = append(last[r], text)
					continue
				}
				mu.Lock()
				if r > 0 {
					text = fmt.Sprintf("rank %d: %s", r, text)
				}
				fmt.Fprintln(a.stderr, text)
				if isError {
					said[text] = true
				}
				mu.Unlock()
			}
			_, _ = io.Copy(io.Discard, stderr) // behind a line that is too long; the rank must not wait for a reader
			failed[r] = c.Wait()
			if failed[r] != nil {
				// The others notice when they wait for it, if they do not compute for too long.
				stop := time.AfterFunc(endOfOthers, cancel)
				context.AfterFunc(asked, func() { stop.Stop() })
			}
		})
	}
	_ = socket.Close()
	a.onSecondSignal.add(func() {
		for _, c := range started {
			_ = c.Process.Kill()
		}
		<-over
	})
	all.Wait()
	for _, f := range files { // a rank that is killed leaves a temporary file
		atomicfile.RemoveLeftovers(f.path)
	}
	close(over)
	// A signal to all processes may reach the ranks before it reaches this one.
	if slices.ContainsFunc(last, func(list []string) bool { return slices.Contains(list, interruptedText) }) {
		select {
		case <-asked.Done():
		case <-time.After(grace):
		}
	}
	for r, list := range last {
		for _, text := range list {
			if text == interruptedText && asked.Err() != nil {
				continue // this process says so
			}
			if !said[text] {
				fmt.Fprintf(a.stderr, "rank %d: %s\n", r, text)
				said[text] = true
			}
		}
	}
	if err := asked.Err(); err != nil {
		return err
	}
	var exit *exec.ExitError
	for r, err := range failed {
		if errors.As(err, &exit) && exit.ExitCode() < 0 { // the reason why the others failed
			return fmt.Errorf("rank %d: %w", r, err)
		}
	}
	for r, err := range failed {
		switch {
		case errors.As(err, &exit) && exit.ExitCode() > 0:
			if len(said) > 0 {
				return &coded{exit.ExitCode(), errSaid}
			}
			return &coded{exit.ExitCode(), fmt.Errorf("rank %d ended with exit code %d", r, exit.ExitCode())}
		case err != nil:
			return fmt.Errorf("rank %d: %w", r, err)
		}
	}
	return nil
}

// endOfOthers is how long the other ranks may go on after one has failed.
const endOfOthers = 30 * time.Second

// endOfRank is how long an interrupted rank may take to save its rows and to end.
func endOfRank() time.Duration { return flushTime + 2*grace }
