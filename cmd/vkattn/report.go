package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/chart"
	"vkattn/cmd/vkattn/internal/report"
	"vkattn/cmd/vkattn/internal/results"
	"vkattn/internal/atomicfile"
)

// reportFlags are the flags of `vkattn report`.
type reportFlags struct {
	output, title, caption string
	plots                  []string
	kinds, series          []string
	columns                int
	ratios                 bool
	ceilingFlags
}

// ceilingFlags are the ceilings of the device in pictures.
type ceilingFlags struct{ tflops, tbs float64 }

func (c *ceilingFlags) add(f *pflag.FlagSet) {
	f.Float64Var(&c.tflops, "peak-tflops", 0,
		"`TFLOP/s` of the device's matrix products, a line in pictures of speed; with --peak-tbs also a roofline")
	f.Float64Var(&c.tbs, "peak-tbs", 0, "`TB/s` of a copy on the device, a line in pictures of decode")
}

func (c *ceilingFlags) check() error {
	if err := checkPeak("peak-tflops", c.tflops); err != nil {
		return err
	}
	return checkPeak("peak-tbs", c.tbs)
}

// given are the ceilings of the command line.
func (c *ceilingFlags) given() chart.Ceilings { return chart.Ceilings{TFLOPs: c.tflops, TBs: c.tbs} }

// checkPeak refuses a speed that no device has. 0 means that it is not given.
func checkPeak(flag string, v float64) error {
	if v != 0 && !(v >= chart.Least && v <= chart.Most) { // NaN too
		return badInputf("--%s %v: want a positive number up to %g", flag, v, chart.Most)
	}
	return nil
}

func (a *app) reportCommand() *cobra.Command {
	var o reportFlags
	c := &cobra.Command{
		Use:   "report FILE|DIRECTORY...",
		Short: "make one page, or pictures, of saved results",
		Long: `Makes an HTML page of the rows that bench --save wrote in the formats json and jsonl,
compressed with gzip or not. From a directory it reads every such file.

The page has pictures, tables, which a click on a column sorts, and the environment of
every run. It is one file, needs no network and follows the reader's light or dark theme.

The command prints the names of the files that it wrote.

--ratios prints a table instead: the speed of each implementation over that of each peer,
as a range and a geometric mean, with the lengths and the number of cells that they cover,
and in how many of them the GPU was throttled or its clock changed.

--plot writes pictures instead, as SVG or PNG: speed over length, the steps of the
ladder, the bandwidth of decode and, with the ceilings of the device, a roofline. Ceilings
are rows of bench --suite ceilings or bench --plot for the same device in any of the files,
unless --peak-tflops and --peak-tbs give them.

Exit codes: 0 written, 1 an output cannot be written, 2 bad flags or files.`,
		Example: `  vkattn bench --suite forward --save forward.jsonl
  vkattn report forward.jsonl -o report.html
  vkattn report forward.jsonl --plot forward.svg --kind speed`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, paths []string) error {
			if err := o.conflict(c.Flags().Changed); err != nil {
				return err
			}
			if (o.ratios || len(o.plots) > 0) && !c.Flags().Changed("output") {
				o.output = ""
			}
			return a.writeReport(c.Context(), &o, paths)
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVarP(&o.output, "output", "o", "report.html", "`file` of the page; -: standard output")
	f.StringVar(&o.title, "title", "", "title of the page")
	f.StringArrayVar(&o.plots, "plot", nil, plotUsage+"; without -o no page is written")
	f.BoolVar(&o.ratios, "ratios", false, "print the ratios of speed to each peer; without -o no page is written")
	f.StringSliceVar(&o.kinds, "kind", nil, "`list` of pictures of --plot: speed, ladder, bandwidth, roofline (default: all)")
	f.StringSliceVar(&o.series, "series", nil, "`list` of implementations in pictures of --plot and lines of --ratios (default: all)")
	f.IntVar(&o.columns, "columns", plotColumns, "panels in a row of a picture of --plot")
	f.StringVar(&o.caption, "caption", "", "last line of pictures of --plot")
	o.ceilingFlags.add(f)
	return c
}

// conflict refuses flags that would have no effect.
func (o *reportFlags) conflict(changed func(string) bool) error {
	if o.ratios {
		return needs(changed, "kind columns caption", "plot")
	}
	return needs(changed, "kind series columns caption", "plot")
}

func (a *app) writeReport(ctx context.Context, o *reportFlags, paths []string) error {
	if len(paths) == 0 {
		return badInputf("report: name files or directories with results of bench --save")
	}
	if err := o.ceilingFlags.check(); err != nil {
		return err
	}
	if o.columns < 1 || o.columns > 8 {
		return badInputf("--columns %d: want 1 to 8", o.columns)
	}
	for _, k := range o.kinds {
		if !slices.Contains(chart.Kinds, chart.Kind(k)) {
			return badInputf("--kind %q: want speed, ladder, bandwidth or roofline", k)
		}
	}
	if err := checkPlots(o.plots); err != nil {
		return err
	}
	files, err := results.Load(paths)
	if err != nil {
		return badInput(err)
	}
	a.saySkipped(files...)
	if err := o.checkPaths(files); err != nil {
		return err
	}
	if o.ratios {
		if err := a.printRatios(files, o.series); err != nil {
			return err
		}
	}
	var set atomicfile.Set
	defer a.flushed(&set)()
	if len(o.plots) > 0 {
		var rows []*bench.Row
		for i := range files {
			rows = append(rows, files[i].Bench()...)
		}
		figures := slices.DeleteFunc(chart.Figures(rows, o.given()), func(f chart.Figure) bool {
			return len(o.kinds) > 0 && !slices.Contains(o.kinds, string(f.Kind))
		})
		all := figures
		figures = chart.Only(all, o.series)
		if len(figures) == 0 && len(all) > 0 {
			return badInputf("--series %s: the pictures have %s", strings.Join(o.series, ","), strings.Join(chart.Names(all), ", "))
		}
		if len(figures) == 0 {
			return badInputf("--plot: the rows give rise to no such picture; speed over length needs two lengths, a roofline both ceilings")
		}
		plots, err := openPlots(&set, o.plots)
		if err != nil {
			return err
		}
		if err := drawPlots(plots, figures, o.columns, o.caption); err != nil {
			return err
		}
	}
	page := report.Options{Title: o.title, Ceilings: o.given()}
	switch o.output {
	case "":
	case "-":
		if err := report.Write(a.stdout, files, page); err != nil {
			return err
		}
	default:
		w, err := addOutput(&set, "-o", o.output)
		if err != nil {
			return err
		}
		if err := report.Write(w, files, page); err != nil {
			return err
		}
	}
	if err := set.Commit(ctx); err != nil {
		return err
	}
	for _, path := range append(o.plots, o.output) {
		if path != "" && path != "-" {
			fmt.Fprintf(a.stderr, "wrote %s\n", path)
		}
	}
	return nil
}

// printRatios prints the ratios of the rows to peers. A run is named as its file.
func (a *app) printRatios(files []results.File, series []string) error {
	var runs []bench.RatioRun
	for i := range files {
		name, _, _ := strings.Cut(filepath.Base(files[i].Path), ".")
		if slices.ContainsFunc(runs, func(r bench.RatioRun) bool { return r.Name == name }) {
			name = files[i].Path
		}
		runs = append(runs, bench.RatioRun{Name: name, Rows: files[i].Bench()})
	}
	table, err := bench.Ratios(runs, series)
	if err != nil {
		return badInputf("--ratios: %w", err)
	}
	_, err = fmt.Fprintln(a.stdout, table)
	return err
}

// checkPaths refuses outputs that would overwrite an input.
func (o *reportFlags) checkPaths(files []results.File) error {
	for i, path := range append([]string{o.output}, o.plots...) {
		flag := "--plot"
		if i == 0 {
			flag = "-o"
		}
		if path == "" || path == "-" {
			continue
		}
		place, err := atomicfile.Resolve(path)
		if err != nil {
			return badInputf("%s %s: %w", flag, path, err)
		}
		for i := range files {
			if overwrites(place, files[i].Path) {
				return badInputf("%s %s is the same file as %s", flag, path, files[i].Path)
			}
		}
	}
	return nil
}

const (
	plotUsage   = "write pictures of the rows to `file`, named .svg or .png (repeatable)"
	plotColumns = 2
)

// checkPlots refuses files of --plot with a name of no known format.
func checkPlots(paths []string) error {
	for _, path := range paths {
		if ext := strings.ToLower(filepath.Ext(path)); ext != ".svg" && ext != ".png" {
			return badInputf("--plot %s: the name ends in none of .svg, .png", path)
		}
	}
	return nil
}

// openPlots opens the files of --plot, which bench does before it measures.
func openPlots(set *atomicfile.Set, paths []string) (files []*flagFile, err error) {
	for _, path := range paths {
		f, err := addOutput(set, "--plot", path)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// drawPlots draws the picture into each file, in the format of its name.
func drawPlots(files []*flagFile, figures []chart.Figure, columns int, caption string) error {
	for _, f := range files {
		draw := chart.SVG
		if strings.EqualFold(filepath.Ext(f.path), ".png") {
			draw = chart.PNG
		}
		if err := draw(f, figures, columns, caption); err != nil {
			return err
		}
	}
	return nil
}

// plotPrinter draws pictures of the rows when all are measured.
type plotPrinter struct {
	files    []*flagFile
	ceilings chart.Ceilings
	rows     []*bench.Row
	stderr   io.Writer
}

func (p *plotPrinter) Row(r *bench.Row) error {
	p.rows = append(p.rows, r)
	return nil
}

func (p *plotPrinter) Close(info *bench.RunInfo) error {
	figures := chart.Figures(p.rows, p.ceilings)
	if len(figures) == 0 {
		fmt.Fprintln(p.stderr, "vkattn: --plot: the picture is empty: speed over length needs two lengths, a roofline both ceilings")
	}
	return drawPlots(p.files, figures, plotColumns,
		fmt.Sprintf("%s, %s %s, %s", info.Device.Name, info.Program, info.Version, info.Started.Format("2006-01-02")))
}
