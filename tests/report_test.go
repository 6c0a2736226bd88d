package tests

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	pretty "github.com/jedib0t/go-pretty/v6/table"
	"github.com/stretchr/testify/require"
)

// The test binary also sums up the journals of its runs (see entry), for machines without
// Go:
//
//	tests.test -report summary.md journal.jsonl...
var report = flag.String("report", "", "run nothing; sum up the journals named by the arguments in this file")

// summary sums up the cases of one test in the journals, such as the cases of a tier in a
// storage type.
type summary struct {
	test          string
	cases, failed int
	rows          int
	worst         entry // the passed case with the largest Share
	max, nmse     float64
	ms            spent
}

// writeReport sums up journals as Markdown. It returns an error if a case has failed or if
// there are no cases.
func writeReport(name string, journals []string) error {
	var entries []entry
	for _, j := range journals {
		list, err := readJournal(j)
		if err != nil {
			return err
		}
		entries = append(entries, list...)
	}
	var b bytes.Buffer
	failed := describe(&b, entries)
	if err := writeWhole(name, b.Bytes()); err != nil {
		return err
	}
	switch {
	case len(entries) == 0:
		return errors.New("the journals hold no case")
	case failed > 0:
		return fmt.Errorf("%d of %d cases failed", failed, len(entries))
	}
	return nil
}

// writeWhole replaces a file atomically: the file is the old one or the new one.
func writeWhole(name string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // nothing after the rename
	_, err = f.Write(b)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// readJournal reads a journal. It ignores a last line that was cut off.
func readJournal(name string) (list []entry, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer closing(f, &err)
	r := bufio.NewReader(f)
	for n := 1; ; n++ {
		line, failed := r.ReadBytes('\n')
		if failed == io.EOF {
			return list, nil
		}
		if failed != nil {
			return nil, failed
		}
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", name, n, err)
		}
		list = append(list, e)
	}
}

// describe writes the report and returns how many cases failed.
func describe(w io.Writer, entries []entry) (failed int) {
	byTest := map[string]*summary{}
	var tests []string
	kinds := map[string]map[string][2]int{} // passed and all, by kind of case and test
	for _, e := range entries {
		s := byTest[e.Test]
		if s == nil {
			s = &summary{test: e.Test}
			byTest[e.Test] = s
			tests = append(tests, e.Test)
		}
		s.add(e)
		kind := kindOf(e.Case)
		if kinds[kind] == nil {
			kinds[kind] = map[string][2]int{}
		}
		n := kinds[kind][e.Test]
		n[1]++
		if e.Error == "" {
			n[0]++
		}
		kinds[kind][e.Test] = n
		if e.Error != "" {
			failed++
		}
	}
	slices.Sort(tests)
	render := func(t pretty.Writer) { fmt.Fprintf(w, "%s\n\n", t.RenderMarkdown()) }

	fmt.Fprintf(w, "%d cases, %d failed.\n\n", len(entries), failed)
	t := pretty.NewWriter()
	t.AppendHeader(pretty.Row{"test", "cases", "failed", "rows judged", "largest error of O", "largest NMSE of O", "of what is allowed", "in"})
	for _, name := range tests {
		s := byTest[name]
		t.AppendRow(pretty.Row{short(name), s.cases, s.failed, s.rows, fmt.Sprintf("%.2g", s.max), fmt.Sprintf("%.2g", s.nmse),
			fmt.Sprintf("%.0f %%", 100*s.worst.Share), s.worst.Case})
	}
	render(t)

	fmt.Fprint(w, "Cases that passed, of those computed, by the option that their table is about:\n\n")
	t = pretty.NewWriter()
	header := pretty.Row{""}
	for _, name := range tests {
		header = append(header, short(name))
	}
	t.AppendHeader(header)
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		row := pretty.Row{kind}
		for _, name := range tests {
			if n := kinds[kind][name]; n[1] > 0 {
				row = append(row, fmt.Sprintf("%d/%d", n[0], n[1]))
			} else {
				row = append(row, "")
			}
		}
		t.AppendRow(row)
	}
	render(t)

	fmt.Fprint(w, "Seconds of all workers together:\n\n")
	t = pretty.NewWriter()
	t.AppendHeader(pretty.Row{"test", "making", "compiling", "running", "reference", "checking"})
	for _, name := range tests {
		m := byTest[name].ms
		row := pretty.Row{short(name)}
		for _, x := range []milliseconds{m.Make, m.Compile, m.Run, m.Reference, m.Check} {
			row = append(row, fmt.Sprintf("%.1f", float64(x)/1e3))
		}
		t.AppendRow(row)
	}
	render(t)

	for _, e := range entries {
		if e.Error != "" {
			fmt.Fprintf(w, "- FAIL %s/%s, seed %d: %s\n", e.Test, e.Case, e.Seed, e.Error)
		}
	}
	return failed
}

func (s *summary) add(e entry) {
	s.cases++
	s.rows += e.Rows
	s.ms.Make += e.MS.Make
	s.ms.Compile += e.MS.Compile
	s.ms.Run += e.MS.Run
	s.ms.Reference += e.MS.Reference
	s.ms.Check += e.MS.Check
	if e.Error != "" {
		s.failed++
		return
	}
	s.max, s.nmse = max(s.max, e.Max), max(s.nmse, e.NMSE)
	if e.Share >= s.worst.Share {
		s.worst = e
	}
}

// short returns a test's name as a column header: "f16/scalar".
func short(test string) string { return test[strings.IndexByte(test, '/')+1:] }

var numbered = regexp.MustCompile(`-[0-9]+$`)

// kindOf returns the table of a case.
func kindOf(name string) string {
	head, _, _ := strings.Cut(name, ".")
	return numbered.ReplaceAllString(head, "")
}

// Journals of several processes, one of them cut short, become one report.
func TestReport(t *testing.T) {
	dir := t.TempDir()
	line := func(test, name, wrong string, share float64) string {
		b, err := json.Marshal(entry{Test: test, Case: name, Seed: 5, Error: wrong, Rows: 10, Max: 0.25, NMSE: 1e-6, Share: share,
			MS: spent{Compile: 1500}})
		require.NoError(t, err)
		return string(b) + "\n"
	}
	a, b, out := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "report.md")
	whole := line("Test/f16/scalar", "varlen.d64", "", 0.5) + line("Test/f16/scalar", "random-7.d64", "", 0.75)
	require.NoError(t, os.WriteFile(a, []byte(whole), 0o644))
	require.NoError(t, writeReport(out, []string{a}))
	require.NoError(t, os.WriteFile(b, []byte(line("Test/bf16/scalar", "varlen.d64", "wrong O", 3)+whole[:20]), 0o644))
	require.EqualError(t, writeReport(out, []string{a, b}), "1 of 3 cases failed")
	text, err := os.ReadFile(out)
	require.NoError(t, err)
	for _, want := range []string{
		"3 cases, 1 failed.", "| f16/scalar | 2 | 0 | 20 | 0.25 | 1e-06 | 75 % | random-7.d64 |",
		"| varlen | 0/1 | 1/1 |", "| random |  | 1/1 |", "| f16/scalar | 0.0 | 3.0 |", "FAIL Test/bf16/scalar/varlen.d64, seed 5: wrong O",
	} {
		require.Contains(t, string(text), want)
	}
	require.NoError(t, os.WriteFile(b, []byte("no journal\n"), 0o644))
	require.ErrorContains(t, writeReport(out, []string{b}), "line 1")
	require.ErrorContains(t, writeReport(out, nil), "no case")
}
