// Command vkattn runs and measures exact attention on Vulkan devices and on the CPU.
//
//	vkattn info     what this machine has, and which implementations run on it
//	vkattn run      attention of .npy files
//	vkattn bench    verified timings over a sweep of problems
//	vkattn verify   every implementation beside the others
//	vkattn tune     the fastest tile of each problem, kept for later runs
//	vkattn version  what was built
//
// Exit codes: 0 done; 1 a wrong result or a failure of this machine (a full
// disk, say); 2 bad input or flags; 3 a request that nothing here supports, or too
// large for the memory of this machine or device; 4 a device that failed; 128 plus
// the signal's number when a signal ended the command: 129 SIGHUP, 130 SIGINT,
// 143 SIGTERM, and 141 when nobody reads the output. What goes wrong is one line on
// standard error.
//
// SIGHUP, SIGINT and SIGTERM end a command within about three seconds. Temporary files
// are removed. After the signal run makes and replaces no output file; bench and
// verify first print and save the rows that are finished, if there are any, and then
// replace nothing more. A command that has finished before the signal exits with its
// own code. The next command that writes the same file removes the temporary file of
// a killed one.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"vkattn/attention/cases"
	"vkattn/vk"
	"vkattn/vk/hostmem"
)

func main() {
	hostmem.LimitHeap()
	// Signals stay handled to the end: one that comes after the last file is in place
	// does not turn the exit code into that of a command which changed nothing.
	code, _ := runUntilExit(os.Args[1:], os.Stdout, os.Stderr)
	os.Exit(code)
}

// app is what the subcommands share.
type app struct {
	stdout, stderr io.Writer
	validation     bool
	stats          bool                                               // devices keep compiler statistics
	touch          func(who string, p *cases.Problem, after [][]byte) // see verify.Verifier; for tests
	spoil          func(o []byte)                                     // changes what run --verify looks at; for tests
	onInterrupt    cleanup                                            // takes away what a run must not leave
}

// grace is how long an interrupted command may take to end by itself.
const grace = time.Second

// Main runs the command with its arguments and returns its exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	code, release := runUntilExit(args, stdout, stderr)
	release()
	return code
}

// runUntilExit is Main, but signals stay handled, and change nothing, until release.
func runUntilExit(args []string, stdout, stderr io.Writer) (code int, release func()) {
	signals := make(chan os.Signal, 1)
	out := &output{w: stdout, signals: signals}
	a := &app{stdout: out, stderr: stderr}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) { // nohup stays nohup
			signal.Notify(signals, s)
		}
	}
	// Writing to a broken pipe is an error then, and not the end of the process.
	// Not signal.Ignore, which the commands of peers would inherit.
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	release = func() {
		signal.Stop(signals)
		signal.Stop(pipes)
	}

	done := make(chan error, 1)
	go func() { done <- a.execute(ctx, args) }()
	select {
	case err := <-done:
		if err == nil && out.broken.Load() {
			err = errNobodyReads
		}
		return a.exit(err), release
	case s := <-signals:
		cancel()
		return a.ended(s, signals, done), release
	}
}

// ended gives a command that a signal ends a moment, and returns its exit code. A
// second signal ends it at once.
func (a *app) ended(s os.Signal, signals <-chan os.Signal, done <-chan error) int {
	// Work on the CPU cannot be stopped half way; its output can.
	cleaned := make(chan struct{})
	go func() {
		a.onInterrupt.run()
		close(cleaned)
	}()
	// Cleaning waits for files that are being moved into place. Only then does the
	// moment begin: the exit code has to say that they are there.
	var limit <-chan time.Time
	finished, waiting := false, true
	for waiting && (done != nil || cleaned != nil) {
		select {
		case err := <-done:
			finished, done = err == nil, nil
		case <-cleaned:
			limit, cleaned = time.After(grace), nil
		case <-limit:
			waiting = false
		case again := <-signals:
			waiting = again == syscall.SIGPIPE
		}
	}
	number, known := s.(syscall.Signal)
	switch {
	case number == syscall.SIGPIPE:
		return a.exit(errNobodyReads)
	case finished: // before it knew of the signal: what it wrote is in place
		return exitOK
	}
	fmt.Fprintln(a.stderr, "vkattn: interrupted")
	if known {
		return exitSignal + int(number)
	}
	return exitFailure
}

// output is standard output. When nobody reads it any more the command ends as by
// SIGPIPE, also where whoever prints ignores errors.
type output struct {
	w       io.Writer
	signals chan<- os.Signal
	broken  atomic.Bool
}

var errNobodyReads = fmt.Errorf("standard output: %w", syscall.EPIPE)

func (o *output) Write(b []byte) (int, error) {
	n, err := o.w.Write(b)
	if errors.Is(err, syscall.EPIPE) {
		o.broken.Store(true)
		select {
		case o.signals <- syscall.SIGPIPE:
		default: // something else ends the command already
		}
	}
	return n, err
}

func (a *app) execute(ctx context.Context, args []string) (err error) {
	defer func() {
		if v := os.Getenv(traceEnv); v != "" && v != "0" {
			return
		}
		if v := recover(); v != nil {
			err = fmt.Errorf("internal error: %v (%s=1 shows where)", v, traceEnv)
		}
	}()
	root := a.root()
	root.SetArgs(append([]string{}, args...)) // nil would mean os.Args
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	return root.ExecuteContext(ctx)
}

// traceEnv lets a panic through, for its trace.
const traceEnv = "VKATTN_TRACE"

// checkEnvironment refuses variables with values that mean nothing: to go on without
// what somebody asked for would hide the mistake. Paths show theirs when they are
// opened.
func checkEnvironment() error {
	if _, err := vk.ValidationByEnv(); err != nil {
		return err
	}
	if err := hostmem.CheckVariable(); err != nil {
		return err
	}
	if v := os.Getenv(traceEnv); v != "" && v != "0" && v != "1" {
		return fmt.Errorf("%s is %q, want 1, 0 or nothing", traceEnv, v)
	}
	return nil
}

// parsing is what strconv says of itself.
var parsing = regexp.MustCompile(`strconv\.\w+: parsing "[^"]*": `)

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "vkattn",
		Short:         "exact attention on Vulkan devices and on the CPU",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return badInput(errors.New(parsing.ReplaceAllString(err.Error(), "")))
	})
	root.PersistentFlags().BoolVar(&a.validation, "validation", false,
		"run under the Vulkan validation layers, on a Vulkan device only (also "+vk.ValidationEnv+"=1, which the CPU ignores)")
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		if err := checkEnvironment(); err != nil {
			return badInput(err)
		}
		if name := c.Name(); a.validation && (name == "info" || name == "version") {
			return badInputf("--validation: %s opens no device", name)
		}
		return nil
	}
	for _, c := range []*cobra.Command{a.infoCommand(), a.runCommand(), a.benchCommand(), a.verifyCommand(), a.tuneCommand(), a.versionCommand()} {
		c.Args = noArgs
		root.AddCommand(c)
	}
	return root
}

// noArgs refuses words that are not flags.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return badInputf("unexpected argument %q", args[0])
	}
	return nil
}
