// Package tests holds the tests that cross packages: one table of problems run
// on every tier of whatever device is there, properties that hold for any
// problem, golden outputs, and what a caller can do wrong.
//
// Which device that is comes from the environment:
//
//	VKATTN_DRIVER      the driver under test, set by scripts/run-with. Unset: the
//	                   CPU tier, and the machine's own device where there is one.
//	                   "none": the CPU tier alone. "native": the machine's own
//	                   device, which must be there.
//	VKATTN_VALIDATION  1: under the validation layers; any message is a failure.
//	VKATTN_TEST_LEVEL  how much is tested; internal/testlevel has the levels.
//	VKATTN_TEST_CASES  a regular expression: of the tables of features only the
//	                   cases whose names match are computed.
//	VKATTN_TEST_LOG    a file that gets a line of JSON for each case of a table as
//	                   soon as it is judged: its errors, and where its time went.
//
//	VKATTN_SOAK_SECONDS how long TestSoak takes, in several processes; unset: some
//	                   seconds in this one. VKATTN_SOAK_SEED fixes its compositions,
//	                   VKATTN_SOAK_CASE computes one case alone, as failures name it.
//	                   soak_test.go and soak_processes_test.go have the others.
//
// What each driver must offer is stated in drivers_test.go, so that a tier that
// went missing is a failure and not a shorter test.
package tests
