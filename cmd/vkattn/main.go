// Command vkattn runs and measures exact attention on Vulkan devices and on the CPU.
//
//	vkattn info     list the devices and the tiers that run on each
//	vkattn run      compute attention of .npy files
//	vkattn bench    verify and time a sweep of problems
//	vkattn compare  tell which rows of two benchmarks differ in speed
//	vkattn verify   compare the results of all implementations
//	vkattn profile  show where the time of one problem goes
//	vkattn report   make a page or pictures of saved results
//	vkattn tune     find the fastest tile of each problem and store it
//	vkattn man      write the manual pages
//	vkattn version  print the version of the command
//
// An error is one line on standard error, except that a reader who closes standard output
// hears nothing, and that an internal error is a stack trace with exit code 2. Exit codes:
//
//	0    done
//	1    a wrong result, a slower row, or a failure of this machine such as a full disk
//	2    bad input or flags
//	3    no tier supports the request, or it does not fit the memory
//	4    the device failed
//	129  SIGHUP ended the command; 130: SIGINT, 143: SIGTERM
//	141  nobody reads the output
//
// SIGHUP, SIGINT and SIGTERM end a command in about a second and remove its temporary
// files. After a signal, run creates and replaces no output file; bench and verify print
// and save the finished rows, for which they wait at most ten seconds for a slow disk. A
// signal a second later or more ends every wait; before that it is the same request, which
// terminals and timeout send to the process and to its group. A command that finished
// before the signal exits with its own code. A process killed by SIGKILL leaves a temporary
// file; the next command that writes the same output removes it. A command that runs over
// several ranks removes that of a killed rank.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cmd/vkattn/internal/markdown"
	"vkattn/internal/atomicfile"
	"vkattn/internal/hostmem"
	"vkattn/vk"
)

func main() {
	hostmem.LimitHeap()
	// Signals stay handled to the end: a signal after the last rename must not make
	// the exit code say that nothing was written.
	code, _ := runUntilExit(os.Args[1:], os.Stdout, os.Stderr)
	os.Exit(code)
}

// app holds what all subcommands use.
type app struct {
	stdout, stderr io.Writer
	bar            progress
	args           []string // of the command
	validation     bool
	stats          bool          // open devices with compiler statistics
	labels         bool          // open devices with names for debugging tools
	timeout        time.Duration // of opened devices; 0: vk.DefaultTimeout
	onInterrupt    cleanup       // saves finished rows, and removes temporary files
	onSecondSignal cleanup       // removes temporary files without a wait
}

// grace is how long an interrupted command may take to end. Tests of work that ends raise it.
var grace = time.Second

// runUntilExit runs the command with its arguments and returns its exit code. Until release is called, signals are
// caught and have no effect.
func runUntilExit(args []string, stdout, stderr io.Writer) (code int, release func()) {
	signals := make(chan os.Signal, 1)
	a := &app{}
	a.bar.open(stderr)
	out := &output{w: a.bar.above(stdout), signals: signals}
	a.stdout, a.stderr = out, a.bar.above(stderr)
	ctx, cancel := context.WithCancel(context.Background())
	context.AfterFunc(ctx, a.bar.end)
	defer cancel()
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) { // nohup stays nohup
			signal.Notify(signals, s)
		}
	}
	// With SIGPIPE caught, a write to a broken pipe returns EPIPE. signal.Ignore would
	// do so too, but peers' processes would inherit it.
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
		if failed := out.failed.Load(); err == nil && failed != nil {
			err = *failed
		}
		return a.exit(err), release
	case s := <-signals:
		cancel()
		return a.ended(s, signals, done), release
	}
}

// ended waits until an interrupted command has cleaned up, at most grace, and returns
// the exit code. A second signal ends the wait, but not within grace of the first: timeout
// and a parent that passes signals on send one request as several signals.
func (a *app) ended(s os.Signal, signals <-chan os.Signal, done <-chan error) int {
	first := time.Now()
	// A computation on the CPU cannot be stopped, but its output can be discarded.
	cleaned := make(chan struct{})
	go func() {
		a.onInterrupt.run()
		close(cleaned)
	}()
	// The cleanup waits for renames under way. The limit starts after it, so that the
	// exit code tells whether the files were written.
	var limit <-chan time.Time
	var removed chan struct{} // nil: there was no second signal
	finished, waiting := false, true
	for waiting && (done != nil || cleaned != nil) {
		select {
		case err := <-done:
			finished, done = err == nil, nil
		case <-cleaned:
			limit, cleaned = time.After(grace), nil
		case <-limit:
			waiting = false
		case <-removed:
			waiting = false
		case again := <-signals:
			switch {
			case again == syscall.SIGPIPE || time.Since(first) < grace:
			case removed != nil: // a third one
				waiting = false
			default:
				removed, limit = make(chan struct{}), time.After(grace)
				go func() {
					a.onSecondSignal.run()
					close(removed)
				}()
			}
		}
	}
	number, known := s.(syscall.Signal)
	switch {
	case number == syscall.SIGPIPE:
		return a.exit(atomicfile.ErrNobodyReads)
	case finished: // before it saw the signal; its files are written
		return exitOK
	}
	fmt.Fprintln(a.stderr, interruptedText)
	if known {
		return exitSignal + int(number)
	}
	return exitFailure
}

// output is standard output. A failed write makes the command fail even if the caller
// ignores the error, as cobra does for help texts. EPIPE ends the command as SIGPIPE would.
type output struct {
	w       io.Writer
	signals chan<- os.Signal
	failed  atomic.Pointer[error] // of the last write that failed
}

func (o *output) Write(b []byte) (int, error) {
	n, err := o.w.Write(b)
	if err != nil {
		o.failed.Store(&err)
	}
	if errors.Is(err, syscall.EPIPE) {
		o.failed.Store(&atomicfile.ErrNobodyReads)
		select {
		case o.signals <- syscall.SIGPIPE:
		default: // another signal ends the command already
		}
	}
	return n, err
}

// nobodyReads reports whether standard output is a pipe whose reader has left.
func (a *app) nobodyReads() bool {
	o, ok := a.stdout.(*output)
	return ok && o.failed.Load() == &atomicfile.ErrNobodyReads
}

func (a *app) execute(ctx context.Context, args []string) error {
	a.args = args
	root := a.root()
	root.SetArgs(append([]string{}, args...)) // nil would mean os.Args
	err := root.ExecuteContext(ctx)
	if err != nil && strings.HasPrefix(err.Error(), unknownCommand) {
		// cobra has no type for it, and prints its suggestions on lines of their own.
		what, names, _ := strings.Cut(err.Error(), "\n\nDid you mean this?")
		if list := strings.Fields(names); len(list) > 0 {
			what += ", did you mean " + strings.Join(list, " or ") + "?"
		}
		err = badInput(errors.New(what))
	}
	return err
}

// unknownCommand is the beginning of cobra's error.
const unknownCommand = "unknown command"

// checkEnvironment refuses environment variables with invalid values, which would
// otherwise be ignored without a message. Variables that hold paths are checked when
// the path is opened.
func checkEnvironment() error {
	if _, err := vk.ValidationByEnv(); err != nil {
		var e *vk.Error
		if errors.As(err, &e) {
			err = errors.New(e.Detail) // without the name of a function of package vk
		}
		return err
	}
	return hostmem.CheckVariable()
}

// wanted says what the values of flags are, by pflag's name of their type.
var wanted = map[string]string{"int": "want a whole number", "uint64": "want a whole number from 0 on", "float64": "want a number",
	"bool": "want true or false", "duration": "want a duration, such as 2s"}

// invalidValue is the error of a value that a flag cannot have: the flag, the value and why.
func invalidValue(e *pflag.InvalidValueError) error {
	f, value := e.GetFlag(), strconv.Quote(e.GetValue())
	why := e.Unwrap().Error()
	if want := wanted[f.Value.Type()]; want != "" && !errors.Is(e, strconv.ErrRange) {
		why = want
	} else if errors.Is(e, strconv.ErrRange) {
		why = "value out of range"
	}
	if strings.Contains(why, value) {
		return fmt.Errorf("%s: %s", flagName(f), why)
	}
	return fmt.Errorf("%s %s: %s", flagName(f), value, why)
}

// flagName is a flag as errors name it.
func flagName(f *pflag.Flag) string {
	if f.Shorthand != "" {
		return "-" + f.Shorthand
	}
	return "--" + f.Name
}

// needFileNames refuses flags for files whose value is empty, such as that of a variable that is
// not set.
func needFileNames(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		if kind, _ := pflag.UnquoteUsage(f); kind == "file" && slices.Contains(values, "") && err == nil {
			err = badInputf("%s needs a file name", flagName(f))
		}
	})
	return err
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "vkattn",
		Short:         "exact attention on Vulkan devices and on the CPU",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(a.stdout) // before strictWords: the completion command keeps it
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		var invalid *pflag.InvalidValueError
		switch {
		case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "":
			var names []string
			c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
			return badInputf("%w%s", err, flagtext.Close("--"+unknown.GetSpecifiedName(), names))
		case errors.As(err, &invalid):
			return badInput(invalidValue(invalid))
		}
		return badInput(err)
	})
	root.PersistentFlags().BoolVar(&a.validation, "validation", false,
		"use the Vulkan validation layers; needs a Vulkan device (also "+vk.ValidationEnv+"=1, which the CPU tier ignores)")
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		if err := checkEnvironment(); err != nil {
			return badInput(err)
		}
		if name := c.Name(); a.validation && slices.Contains([]string{"info", "version", "compare", "report", "man"}, name) {
			return badInputf("--validation: %s opens no device", name)
		}
		return needFileNames(c.Flags())
	}
	benchmark := a.benchCommand()
	for _, c := range []*cobra.Command{a.infoCommand(), a.runCommand(), benchmark, a.compareCommand(),
		a.verifyCommand(), a.tuneCommand(), a.profileCommand(), a.reportCommand(), a.manCommand(), a.versionCommand()} {
		if c.Args == nil {
			c.Args = a.noArgs
		}
		complete(c)
		c.Version = versionLine()
		root.AddCommand(c)
	}
	root.Version = versionLine()
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages ",
		fmt.Sprintf(".FlagUsagesWrapped %d ", markdown.Width)))
	root.AddCommand(topicCommands(benchmark)...)
	strictWords(root)
	return root
}

// strictWords lets cobra's own commands, help and completion, refuse a word that they do not
// know. Without it they print it with a usage text and exit with 0.
func strictWords(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Args = func(_ *cobra.Command, words []string) error {
				_, _, err := root.Find(words)
				return err
			}
		case "completion":
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	}
}

// noArgs refuses positional arguments. One behind a flag that stands alone may be meant as its value.
func (a *app) noArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	for i, arg := range a.args[1:] {
		name, long := strings.CutPrefix(a.args[i], "--")
		if f := c.Flags().Lookup(name); arg == args[0] && long && f != nil && f.NoOptDefVal != "" {
			return badInputf("unexpected argument %q: the value of --%s is written --%[2]s=%[1]s", arg, name)
		}
	}
	return badInputf("unexpected argument %q", args[0])
}
