package tests

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"vkattn/internal/testlevel"
)

// Flags of the test binary, and the end of a run: reports, closing the device, messages of
// the validation layers.

var update = flag.Bool("update", false, "write the golden files anew")

// TestMain sums up journals if -report is given (see report). Otherwise it closes the
// device after the last test, and fails the run if the validation layers reported anything.
func TestMain(m *testing.M) {
	flag.Parse()
	if *report != "" {
		if err := writeReport(*report, flag.Args()); err != nil {
			fmt.Fprintln(os.Stderr, "report:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testlevel.Announce()
	tuneProperties()
	code := m.Run()
	if n := closeSession(); n > 0 && code == 0 {
		code = 1
	}
	os.Exit(code)
}

// closeSession returns the number of complaints.
func closeSession() (complaints int) {
	s, err := theSession()
	if err != nil || s.dev == nil {
		return 0 // a test has failed with err
	}
	if err := s.dev.Close(); err != nil {
		fmt.Println("closing the device:", err)
		complaints++
	}
	// After Close, since the layers then report objects that were never destroyed.
	if validation() {
		for _, m := range s.dev.ValidationMessages() {
			fmt.Printf("validation: %+v\n", m)
			complaints++
		}
		if complaints == 0 {
			fmt.Println("validation: no messages")
		}
	}
	return complaints
}
