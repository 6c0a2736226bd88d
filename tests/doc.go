// Package tests holds the tests that cross packages: tables of problems that run on every
// tier of the device under test, properties that hold for any problem, golden outputs, and
// the errors of wrong calls.
//
// The environment selects the device and the tests:
//
//	VKATTN_DRIVER      the driver under test, set by scripts/run-with. Unset: the
//	                   CPU tier, and the machine's own device if there is one.
//	                   "none": only the CPU tier. "native": the machine's own
//	                   device, which must exist.
//	VKATTN_VALIDATION  1: run under the validation layers; any message is a failure.
//	VKATTN_TEST_LEVEL  how much is tested; internal/testlevel has the levels.
//	VKATTN_TEST_CASES  a regular expression: only the cases of the tables whose names
//	                   match are computed.
//	VKATTN_TEST_LOG    a file that gets a line of JSON for each case of a table as
//	                   soon as it is judged: its errors and its times.
//
//	VKATTN_SOAK_SECONDS how long TestSoak takes, in several processes; unset: some
//	                   seconds in this one. VKATTN_SOAK_SEED fixes its compositions,
//	                   VKATTN_SOAK_CASE computes the one case that a failure names.
//	                   soak_test.go and soak_processes_test.go have the others.
//
// drivers_test.go states the tiers that each driver must offer, so that a missing tier is
// a failure and not a shorter test.
package tests
