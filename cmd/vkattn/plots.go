package main

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/chart"
	"vkattn/internal/atomicfile"
)

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
