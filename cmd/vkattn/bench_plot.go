package main

import (
	"fmt"
	"io"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/chart"
	"vkattn/cmd/vkattn/internal/outfile"
)

// openPlots opens the files of --plot before anything is measured, and returns a printer
// that draws the rows when all are measured.
func (a *app) openPlots(set *outfile.Set, paths []string, c chart.Ceilings) (bench.Printer[*bench.Row], error) {
	p := &plotPrinter{paths: paths, ceilings: c, stderr: a.stderr}
	for _, path := range paths {
		w, err := set.Add(path)
		if err != nil {
			return nil, badInputf("--plot %s: %w", path, err)
		}
		p.files = append(p.files, w)
	}
	return p, nil
}

// plotPrinter draws pictures of the rows.
type plotPrinter struct {
	paths    []string
	files    []io.Writer
	ceilings chart.Ceilings
	rows     []*bench.Row
	stderr   io.Writer
}

func (p *plotPrinter) Row(r *bench.Row) error {
	if len(p.paths) > 0 {
		p.rows = append(p.rows, r)
	}
	return nil
}

func (p *plotPrinter) Close(info *bench.RunInfo) error {
	if len(p.paths) == 0 {
		return nil
	}
	figures := chart.Figures(p.rows, p.ceilings)
	if len(figures) == 0 {
		fmt.Fprintln(p.stderr, "vkattn: --plot: the picture is empty: speed over length needs two lengths, a roofline both ceilings")
	}
	caption := fmt.Sprintf("%s, %s %s, %s", info.Device.Name, info.Program, info.Version, info.Started.Format("2006-01-02"))
	for i, path := range p.paths {
		if err := drawPlot(p.files[i], path, figures, plotColumns, caption); err != nil {
			return fmt.Errorf("--plot %s: %w", path, err)
		}
	}
	return nil
}
