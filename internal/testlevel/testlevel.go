// Package testlevel says how much the tests do. VKATTN_TEST_LEVEL names the level:
//
//	level       set by                  runs
//	brief       go test ./... (unset)   the first share of each table; no long test of the host
//	default     make test               the first share of each table; no test of scripts/deep-tests.txt
//	full        make test-full          the other share of each table, and scripts/deep-tests.txt
//	all         go test -run (unset)    what default and full run
//	exhaustive  gpu-run.sh options      every pair of values and large problems, which takes a GPU
//
// Default and full together run what all runs, and nothing twice. docs/testing.md has the
// limits on time.
package testlevel

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// Env is the environment variable that names the level.
const Env = "VKATTN_TEST_LEVEL"

// Level is how much the tests do.
type Level string

// The levels; the package comment says what each runs.
const (
	Brief      Level = "brief"
	Default    Level = "default"
	Full       Level = "full"
	All        Level = "all"
	Exhaustive Level = "exhaustive"
)

// Get is the level of this run. Where the environment names none it is Brief, or All for tests
// that the command line names. Get panics if the environment names an unknown level: a
// misspelt one must not pass for a test run.
func Get() Level {
	switch l := Level(os.Getenv(Env)); l {
	case "":
		if f := flag.Lookup("test.run"); f != nil && f.Value.String() != "" {
			return All
		}
		return Brief
	case Brief, Default, Full, All, Exhaustive:
		return l
	default:
		panic(fmt.Sprintf("%s is %q, want %s, %s, %s, %s or %s", Env, string(l), Brief, Default, Full, All, Exhaustive))
	}
}

// IsExhaustive reports whether this run has every pair of values and large problems.
func IsExhaustive() bool { return Get() == Exhaustive }

// IsBrief reports whether this run is to be short on a machine without a Vulkan driver too.
func IsBrief() bool { return Get() == Brief }

// Long skips a test of the host that takes long.
func Long(t testing.TB) {
	t.Helper()
	if IsBrief() {
		t.Skip("long: make test runs it, and go test -run with its name")
	}
}

// Share reports whether a case runs at this level. First says whether the case is in the first
// share of its table.
func Share(first bool) bool {
	switch Get() {
	case Brief, Default:
		return first
	case Full:
		return !first
	}
	return true
}

// Seed is what a test of random values starts from, and logs it: $RAPID_SEED, which rapid reads too, or a random number
// where that is not given or 0.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("RAPID_SEED"), "0"), 10, 64)
	if err != nil {
		t.Fatalf("RAPID_SEED: %v", err)
	}
	seed = cmp.Or(seed, rand.Uint64())
	t.Logf("RAPID_SEED=%d", seed)
	return seed
}

// Announce says in one line what a brief run leaves out. go test discards the output of
// packages that pass, so on Linux the line goes to the standard error of the go command,
// which is the parent of this process, if that is a terminal or a pipe: in a file the two would
// write over one another. Elsewhere only go test -v shows the line.
func Announce() {
	if !IsBrief() {
		return
	}
	const line = "left out: long tests, shares of the tables, and Vulkan drivers that are not installed: " +
		"run make test, then make test-full (docs/testing.md)\n"
	parent := fmt.Sprintf("/proc/%d", os.Getppid())
	if exe, err := os.Readlink(filepath.Join(parent, "exe")); err == nil && filepath.Base(exe) == "go" {
		stderr := filepath.Join(parent, "fd/2")
		if info, err := os.Stat(stderr); err == nil && info.Mode()&(os.ModeNamedPipe|os.ModeCharDevice) != 0 {
			if w, err := os.OpenFile(stderr, os.O_WRONLY, 0); err == nil {
				defer w.Close()
				if _, err := w.WriteString(line); err == nil {
					return
				}
			}
		}
	}
	fmt.Print(line)
}

// HostOnly skips a test that uses no device, except in the run without a driver: its result
// is the same on every driver.
func HostOnly(t testing.TB) {
	t.Helper()
	if name := os.Getenv("VKATTN_DRIVER"); name != "" && name != "none" {
		t.Skip("the same without a Vulkan driver")
	}
}

// OnceOnly is HostOnly for a test that takes long.
func OnceOnly(t testing.TB) {
	t.Helper()
	HostOnly(t)
	Long(t)
}
