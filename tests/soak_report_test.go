package tests

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	pretty "github.com/jedib0t/go-pretty/v6/table"
)

// soakRecord is a line of the soak's journal, written in one piece.
type soakRecord struct {
	Event   string `json:"event"`
	Process int    `json:"process"`
	At      int64  `json:"at"` // milliseconds since 1970
	Case    string `json:"case"`

	// Fields of the event soakDone.
	Rows        int          `json:"rows,omitempty"`
	Unjudged    int          `json:"unjudged,omitempty"` // rows whose scores float32 cannot hold
	Share       float64      `json:"share,omitempty"`    // largest error over the allowed one
	Compile     milliseconds `json:"compile,omitempty"`
	Refused     string       `json:"refused,omitempty"` // why the tier does not compute it
	Error       string       `json:"error,omitempty"`
	Class       string       `json:"class,omitempty"` // the extreme that a wrong row has
	Composition string       `json:"composition,omitempty"`
}

const (
	soakStart  = "start" // of a composition
	soakDone   = "done"  // with one case of it
	soakEnd    = "end"   // of a composition
	soakBroken = "broken"
)

func (r *soakRecord) writeTo(w io.Writer) error {
	line, err := json.Marshal(r)
	if err == nil {
		_, err = w.Write(append(line, '\n'))
	}
	return err
}

// failure describes an error and how to reproduce it.
func (r *soakRecord) failure() string {
	text := fmt.Sprintf("%s: %s", r.Case, r.Error)
	if r.Composition != "" {
		text += "\n    composition " + r.Composition
	}
	return text + fmt.Sprintf("\n    alone: %s=%s and -test.run '^TestSoak$'", soakCaseEnv, r.Case)
}

// compositionOf returns a case's name without its draw.
func compositionOf(name string) string { return name[:max(strings.LastIndexByte(name, '/'), 0)] }

// groupOf returns tier, storage type and KV type of a case.
func groupOf(name string) string {
	name = compositionOf(name)
	return name[:max(strings.LastIndexByte(name, '/'), 0)]
}

// underway lists the unfinished compositions of a process, with the last record of each.
func underway(records []soakRecord, process int) map[string]soakRecord {
	list := map[string]soakRecord{}
	for _, r := range records {
		if r.Process != process {
			continue
		}
		if c := compositionOf(r.Case); r.Event == soakEnd {
			delete(list, c)
		} else if r.Event != soakBroken {
			list[c] = r
		}
	}
	return list
}

// soakSummary sums up the soak on one target with one KV type.
type soakSummary struct {
	compositions, cases, failed, refused int
	rows, unjudged                       int
	worst                                soakRecord
	compile                              milliseconds
}

// describeSoak writes the summary of a soak and returns its failures.
func describeSoak(w io.Writer, records []soakRecord, heading string, unfinished []soakRecord) (failures []soakRecord) {
	groups := map[string]*soakSummary{}
	classes := map[string]map[string]int{} // by class and target
	var all soakSummary
	for _, r := range records {
		g := groupOf(r.Case)
		s := groups[g]
		if s == nil && g != "" {
			s = &soakSummary{}
			groups[g] = s
		}
		if r.Error != "" {
			failures = append(failures, r)
			class := cmp.Or(r.Class, r.Event)
			if classes[class] == nil {
				classes[class] = map[string]int{}
			}
			target, _, _ := strings.Cut(g, "/")
			classes[class][target]++
		}
		if s != nil {
			s.add(r)
			all.add(r)
		}
	}
	fmt.Fprintf(w, "%s\n\n%d cases of %d compositions, %d rows judged, %d failures, %d compositions unfinished at the end.\n\n",
		heading, all.cases, all.compositions, all.rows, len(failures), len(unfinished))
	t := pretty.NewWriter()
	t.AppendHeader(pretty.Row{"tier/type/KV", "compositions", "cases", "failed", "refused", "rows judged", "rows beyond float32",
		"largest error, of what is allowed", "in", "compiling, s"})
	for _, g := range slices.Sorted(maps.Keys(groups)) {
		s := groups[g]
		t.AppendRow(pretty.Row{g, s.compositions, s.cases, s.failed, s.refused, s.rows, s.unjudged,
			fmt.Sprintf("%.0f %%", 100*s.worst.Share), strings.TrimPrefix(s.worst.Case, g+"/"), fmt.Sprintf("%.0f", float64(s.compile)/1e3)})
	}
	fmt.Fprintf(w, "%s\n\n", t.RenderMarkdown())
	if len(unfinished) > 0 {
		fmt.Fprint(w, "Unfinished, with the seconds since their last case:\n\n")
		now := time.Now()
		for _, r := range unfinished {
			fmt.Fprintf(w, "- %s after %s: %.0f\n", r.Case, r.Event, now.Sub(time.UnixMilli(r.At)).Seconds())
		}
		fmt.Fprintln(w)
	}
	if len(failures) == 0 {
		return nil
	}
	fmt.Fprint(w, "Failures by the extreme that the first wrong row has:\n\n")
	t = pretty.NewWriter()
	t.AppendHeader(pretty.Row{"extreme", "tier", "cases"})
	for _, class := range slices.Sorted(maps.Keys(classes)) {
		for _, target := range slices.Sorted(maps.Keys(classes[class])) {
			t.AppendRow(pretty.Row{class, target, classes[class][target]})
		}
	}
	fmt.Fprintf(w, "%s\n\n", t.RenderMarkdown())
	for _, r := range failures {
		fmt.Fprintf(w, "- FAIL %s\n", strings.ReplaceAll(r.failure(), "\n    ", "; "))
	}
	return failures
}

func (s *soakSummary) add(r soakRecord) {
	switch r.Event {
	case soakStart:
		s.compositions++
	case soakDone:
		s.cases++
		s.rows += r.Rows
		s.unjudged += r.Unjudged
		s.compile += r.Compile
		if r.Refused != "" {
			s.refused++
		} else if r.Error == "" && r.Share >= s.worst.Share {
			s.worst = r
		}
	}
	if r.Error != "" {
		s.failed++
	}
}

// readSoak reads a journal. It ignores an incomplete line of a process that died.
func readSoak(name string) (records []soakRecord, err error) {
	text, err := os.ReadFile(name)
	for line := range bytes.Lines(text) {
		var r soakRecord
		if json.Unmarshal(line, &r) == nil {
			records = append(records, r)
		}
	}
	return records, err
}
