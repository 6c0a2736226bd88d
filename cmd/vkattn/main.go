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
// disk, say); 2 bad input or flags; 3 a request that nothing here supports; 4 a
// device that failed; 128 plus the signal's number when interrupted. What goes
// wrong is one line on standard error.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"vkattn/attention/cases"
	"vkattn/vk"
)

func main() { os.Exit(Main(os.Args[1:], os.Stdout, os.Stderr)) }

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
	a := &app{stdout: stdout, stderr: stderr}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 1)
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) { // nohup stays nohup
			signal.Notify(signals, s)
		}
	}
	defer signal.Stop(signals)

	done := make(chan error, 1)
	go func() { done <- a.execute(ctx, args) }()
	select {
	case err := <-done:
		return a.exit(err)
	case s := <-signals:
		// Work on the CPU cannot be stopped half way; its output can.
		cancel()
		a.onInterrupt.run()
		select {
		case <-done:
		case <-time.After(grace):
		}
		fmt.Fprintln(stderr, "vkattn: interrupted")
		if n, ok := s.(syscall.Signal); ok {
			return 128 + int(n)
		}
		return exitFailure
	}
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
