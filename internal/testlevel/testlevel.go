// Package testlevel says how much the tests do. VKATTN_TEST_LEVEL names the level:
//
//	level       set by               runs
//	(unset)     go test              every test, every case of the tables for CPU drivers
//	default     make test            the first share of each table; no test of scripts/deep-tests.txt
//	full        make test-full       the other share of each table, and scripts/deep-tests.txt
//	exhaustive  gpu-run.sh options   every pair of values and large problems, which takes a GPU
//
// Default and full together run what the unset level runs, and nothing twice. docs/testing.md
// has the times.
package testlevel

import (
	"fmt"
	"os"
)

// Env is the environment variable that names the level.
const Env = "VKATTN_TEST_LEVEL"

// Level is how much the tests do.
type Level string

// The levels; the package comment says what each runs.
const (
	Unset      Level = ""
	Default    Level = "default"
	Full       Level = "full"
	Exhaustive Level = "exhaustive"
)

// Get is the level of this run. It panics if the environment names none of the levels, so that
// a misspelt level cannot pass for a test run.
func Get() Level {
	switch l := Level(os.Getenv(Env)); l {
	case Unset, Default, Full, Exhaustive:
		return l
	default:
		panic(fmt.Sprintf("%s is %q, want %s, %s, %s or nothing", Env, string(l), Default, Full, Exhaustive))
	}
}

// IsExhaustive reports whether this run has every pair of values and large problems.
func IsExhaustive() bool { return Get() == Exhaustive }

// Share reports whether a case runs at this level. First says whether the case is in the first
// share of its table.
func Share(first bool) bool {
	switch Get() {
	case Default:
		return first
	case Full:
		return !first
	}
	return true
}
