// Package report writes rows of benchmarks as one HTML page that needs no network: pictures,
// sortable tables and the environment of every run.
package report

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/chart"
	"vkattn/cmd/vkattn/internal/results"
)

//go:embed page.html
var text string

var page = template.Must(template.New("page").Parse(text))

// Options of a page.
type Options struct {
	Title    string
	Ceilings chart.Ceilings
}

type document struct {
	Title    string
	Rows     int
	Sections []section
}

type section struct {
	ID, Title   string
	Count       int
	Environment []environment
	Figures     []figure
	Notes       string
	Same        string // columns that all rows have the same value in
	Columns     []column
	Table       []line
}

// figure is a picture that is as wide as 2, 3 or all 6 columns of the page.
type figure struct {
	SVG  template.HTML
	Wide int
}

type environment struct {
	Name   string
	Fields []field
}

type field struct{ Name, Value string }

type line struct {
	Bad   bool
	Cells []cell
}

type cell struct {
	Text, Class, Sort string
}

// Write writes the page, with a section for each file.
func Write(w io.Writer, files []results.File, o Options) error {
	doc := document{Title: cmp.Or(o.Title, "vkattn benchmarks")}
	names := titles(files)
	var measured []*bench.Row // ceilings of any file
	for i := range files {
		for _, r := range files[i].Bench() {
			if r.Ceiling != "" {
				measured = append(measured, r)
			}
		}
	}
	for i := range files {
		s, err := newSection(&files[i], names[i], o.Ceilings, measured)
		if err != nil {
			return fmt.Errorf("%s: %w", files[i].Path, err)
		}
		s.ID = "file-" + strconv.Itoa(i+1)
		doc.Rows += s.Count
		doc.Sections = append(doc.Sections, s)
	}
	return page.Execute(w, doc)
}

// titles are the paths of the files without the folders that all of them have.
func titles(files []results.File) []string {
	var out []string
	for _, f := range files {
		out = append(out, filepath.ToSlash(filepath.Clean(f.Path)))
	}
	if len(out) == 1 {
		return []string{filepath.Base(out[0])}
	}
	for {
		first, _, found := strings.Cut(out[0], "/")
		for _, name := range out {
			found = found && strings.HasPrefix(name, first+"/")
		}
		if !found {
			return out
		}
		for i := range out {
			out[i] = out[i][len(first)+1:]
		}
	}
}

func newSection(f *results.File, title string, ceilings chart.Ceilings, measured []*bench.Row) (section, error) {
	s := section{Title: title, Count: len(f.Rows), Environment: environments(f.Rows)}
	var panels []chart.Figure
	for _, f := range chart.Figures(append(f.Bench(), measured...), ceilings) {
		for _, p := range f.Panels {
			panels = append(panels, chart.Figure{Kind: f.Kind, Title: f.Title, Panels: []chart.Panel{p}})
		}
	}
	for i, wide := range widths(len(panels)) {
		svg, err := chart.Inline(panels[i], map[int]float64{2: 1, 3: 1.25, 6: 1.8}[wide]) // a phone shows all equally wide
		if err != nil {
			return s, err
		}
		s.Figures = append(s.Figures, figure{template.HTML(svg), wide}) // chart escapes its texts
	}
	unsteady := 0
	for _, r := range f.Rows {
		if r.Unsteady != "" {
			unsteady++
		}
	}
	if unsteady > 0 {
		s.Notes = fmt.Sprintf("%d of %d rows were measured while the GPU was throttled, its clock changed or its timestamps were unusable; the column “clocks” says why.", unsteady, len(f.Rows))
	}
	s.Columns, s.Same = columns(f.Rows)
	for i := range f.Rows {
		r := &f.Rows[i]
		l := line{Bad: r.Status != bench.OK && r.Status != bench.Ablated}
		for _, c := range s.Columns {
			l.Cells = append(l.Cells, c.cell(r))
		}
		s.Table = append(s.Table, l)
	}
	return s, nil
}

// widths divides pictures into rows of up to three that differ by one at most, and fill the page's 6 columns.
func widths(n int) (list []int) {
	for rows := (n + 2) / 3; rows > 0; rows-- {
		of := (n - len(list) + rows - 1) / rows
		list = append(list, slices.Repeat([]int{6 / of}, of)...)
	}
	return list
}

// environments lists what is known of each run.
func environments(rows []results.Row) (out []environment) {
	type key struct {
		device, commit, started string
	}
	var seen []key
	for _, r := range rows {
		run := r.Run
		started := ""
		if !run.Started.IsZero() {
			started = run.Started.Format("2006-01-02 15:04:05 MST")
		}
		k := key{cmp.Or(run.Device.Name, r.Device), run.Commit, started}
		if slices.Contains(seen, k) {
			continue
		}
		seen = append(seen, k)
		commit := run.Commit
		if run.Modified {
			commit += " with changes"
		}
		var peers []string
		for _, p := range run.Peers {
			peers = append(peers, fmt.Sprintf("%s (%s)", p.Name, p.Program))
		}
		e := environment{Name: strings.TrimSpace(k.device + " " + started)}
		for _, f := range []field{
			{"device", k.device},
			{"type", run.Device.Type},
			{"UUID", run.Device.UUID},
			{"driver", strings.TrimSpace(run.Device.Driver + " " + run.Device.Version)},
			{"Vulkan", run.Device.API},
			{"CPU", strings.Trim(run.CPUModel+", "+run.CPU, ", ")},
			{"system", run.OS},
			{"version", strings.TrimSpace(run.Program + " " + run.Version)},
			{"commit", commit},
			{"Go", run.Go},
			{"suite", run.Suite},
			{"peers", strings.Join(peers, ", ")},
			{"seed", strconv.FormatUint(run.Seed, 10)},
			{"stopped", run.Stopped},
		} {
			if f.Value != "" {
				e.Fields = append(e.Fields, f)
			}
		}
		out = append(out, e)
	}
	return out
}

// column is a column of a table: of numbers if it has a format, else of texts.
type column struct {
	Name, Format string
	of           func(*results.Row) string // empty: the row has none
}

func (c column) cell(r *results.Row) cell {
	text := c.of(r)
	switch {
	case c.Format == "" && c.Name == "clocks" && text != "":
		return cell{Text: text, Class: "warn"}
	case c.Format == "":
		return cell{Text: text}
	case text == "":
		return cell{Class: "number"}
	}
	v, _ := strconv.ParseFloat(text, 64)
	out := cell{Text: fmt.Sprintf(c.Format, v), Class: "number", Sort: strconv.FormatFloat(v, 'g', -1, 64)}
	if math.IsNaN(v) || math.IsInf(v, 0) { // a wrong result: behind all others
		out.Sort = "Infinity"
	}
	return out
}

// csv is a column of CSV.
func csv(name, format, of string) column {
	return column{name, format, func(r *results.Row) string { return bench.Cell(of, &r.Row, &r.Run) }}
}

// number is a column of numbers, of which 0 stands for none.
func number(name, format string, of func(*results.Row) float64) column {
	return column{name, format, func(r *results.Row) string {
		if v := of(r); v != 0 {
			return strconv.FormatFloat(v, 'g', -1, 64)
		}
		return ""
	}}
}

// columns lists the columns that have a value in any row. Those before the times that have the same in all rows of many
// are a text instead.
func columns(rows []results.Row) (out []column, same string) {
	all := []column{
		csv("device", "", "device"),
		csv("line", "", "line"),
		csv("B", "%.0f", "batch"), csv("Hq", "%.0f", "heads"), csv("Hkv", "%.0f", "heads_kv"),
		csv("Sq", "%.0f", "seqlen_q"), csv("Sk", "%.0f", "seqlen_k"),
		csv("D", "%.0f", "headdim"), csv("Dv", "%.0f", "headdim_v"),
		csv("causal", "", "causal"), csv("dtype", "", "dtype"), csv("pass", "", "pass"),
		{"options", "", func(r *results.Row) string {
			if r.OptionText == "" && r.Options != nil {
				return r.Options.String()
			}
			return r.OptionText
		}},
		{"implementation", "", func(r *results.Row) string { return r.Who() }},
		csv("ms median", "%.5g", "ms_median"),
		number("TFLOP/s", "%.4g", func(r *results.Row) float64 { return r.TFLOPs + r.AblationTFLOPs }),
		csv("TB/s", "%.3f", "tb_per_s"),
	}
	others := map[string]bool{}
	for _, r := range rows {
		for name := range r.Versus {
			others[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(others)) {
		all = append(all, number("× "+name, "%.3f", func(r *results.Row) float64 { return r.Versus[name] }))
	}
	all = append(all, csv("tile", "", "tile"), csv("ms min", "%.5g", "ms_min"), csv("ms max", "%.5g", "ms_max"),
		csv("max error", "%.1e", "max_error"),
		number("memory, MiB", "%.1f", func(r *results.Row) float64 { return float64(r.Memory) / (1 << 20) }),
		csv("SM MHz", "%.0f", "sm_mhz"), csv("W", "%.0f", "power_watts"), csv("clocks", "", "unsteady"),
		column{"note", "", func(r *results.Row) string { return r.Note() }},
	)
	problem := true // the column says what a row is of
	var words []string
	for _, c := range all {
		first := c.cell(&rows[0]).Text
		any, differs := false, false
		for i := range rows {
			t := c.cell(&rows[i]).Text
			any, differs = any || t != "", differs || t != first
		}
		problem = problem && c.Name != "implementation"
		switch {
		case any && !differs && problem && len(rows) > 1:
			words = append(words, c.Name+" "+first)
		case any:
			out = append(out, c)
		}
	}
	return out, strings.Join(words, ", ")
}
