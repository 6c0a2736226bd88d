// Command plot draws docs/img/forward.svg from raw rows of one benchmark run. Run it in the root of the
// repository:
//
//	go run ./docs/img/plot
//
// It writes SVG itself, with the standard library alone: a plotting module would add a dozen dependencies to
// go.mod for one picture of lines.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"path/filepath"
)

// Input and output, relative to the root of the repository.
const (
	rawFile = "docs/results/2026-11-20-h200/cuda-race-suite.jsonl.gz"
	svgFile = "docs/img/forward.svg"
)

// A row is what the picture needs of one row of "vkattn bench --save rows.jsonl".
type row struct {
	Tier    string  `json:"tier"`
	Kernel  string  `json:"kernel"`
	SeqlenQ int     `json:"seqlen_q"`
	HeadDim int     `json:"headdim"`
	Causal  string  `json:"causal"`
	Status  string  `json:"status"`
	TFLOPS  float64 `json:"tflops"`
}

// name is the implementation that computed the row.
func (r row) name() string {
	if r.Kernel != "" {
		return r.Tier + " " + r.Kernel
	}
	return r.Tier
}

// A series is one line of each panel.
type series struct {
	name   string // as row.name
	label  string
	color  string
	dash   string // stroke-dasharray; empty: solid
	legend int    // x in the legend
}

// Ours are solid, the others dashed.
var lines = []series{
	{"cuda fa3", "vkattn, CUDA (fa3)", "#0b6e4f", "", 0},
	{"cudnn", "cuDNN", "#8a5fbf", "6 4", 430},
	{"coopmat2", "vkattn, Vulkan (coopmat2)", "#d1495b", "", 190},
	{"flash", "FlashAttention-2", "#3a6ea5", "6 4", 540},
}

// A panel is one set of axes.
type panel struct {
	headDim int
	causal  string
	title   string
}

var panels = []panel{
	{64, "none", "head dim 64"},
	{64, "top-left", "head dim 64, causal"},
	{128, "none", "head dim 128"},
	{128, "top-left", "head dim 128, causal"},
}

// Sizes in pixels. The y axis ends at maxTFLOPS.
const (
	width, height           = 860, 610
	panelWidth, panelHeight = 350, 200
	left, top               = 60, 62
	gapX, gapY              = 60, 60
	maxTFLOPS, stepTFLOPS   = 800, 200
)

func main() {
	raw, err := os.Open(rawFile)
	if err != nil {
		log.Fatal(err)
	}
	defer raw.Close()
	rows, err := read(raw)
	if err != nil {
		log.Fatalf("%s: %v", rawFile, err)
	}
	picture, err := draw(rows)
	if err != nil {
		log.Fatalf("%s: %v", rawFile, err)
	}
	if err := os.WriteFile(svgFile, picture, 0o644); err != nil {
		log.Fatal(err)
	}
}

// read decodes gzipped rows, one JSON object each.
func read(r io.Reader) ([]row, error) {
	plain, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	var rows []row
	for d := json.NewDecoder(plain); ; {
		var one row
		switch err := d.Decode(&one); {
		case errors.Is(err, io.EOF):
			return rows, nil
		case err != nil:
			return nil, err
		case one.Status == "ok":
			rows = append(rows, one)
		}
	}
}

// draw returns the picture as SVG. Every panel must have every line: a missing row is an error.
func draw(rows []row) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">`+"\n", width, height)
	fmt.Fprintf(&b, `<title>Forward attention on an NVIDIA H200, TFLOP/s over sequence length</title>`+"\n")
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, height)
	text(&b, left, 22, "start", "Forward, f16, NVIDIA H200: TFLOP/s over sequence length (batch 16, 8 heads)")
	for i, p := range panels {
		x := float64(left + i%2*(panelWidth+gapX))
		y := float64(top + i/2*(panelHeight+gapY))
		if err := p.draw(&b, x, y, rows); err != nil {
			return nil, err
		}
	}
	for _, s := range lines {
		x := float64(left + s.legend)
		fmt.Fprintf(&b, `<path d="M%g %dh26" stroke="%s" stroke-width="2.5"%s/>`+"\n", x, height-16, s.color, s.dashes())
		text(&b, x+32, height-12, "start", s.label)
	}
	text(&b, left, height-40, "start", "Raw rows: "+filepath.Base(rawFile)+". Within a panel all implementations took turns in one process.")
	b.WriteString("</svg>\n")
	return b.Bytes(), nil
}

// draw draws the panel with its upper left corner at x, y.
func (p panel) draw(b *bytes.Buffer, x, y float64, rows []row) error {
	points := make(map[string]map[int]float64)
	first, last := math.MaxInt, 0
	for _, r := range rows {
		if r.HeadDim != p.headDim || r.Causal != p.causal {
			continue
		}
		if points[r.name()] == nil {
			points[r.name()] = make(map[int]float64)
		}
		points[r.name()][r.SeqlenQ] = r.TFLOPS
		first, last = min(first, r.SeqlenQ), max(last, r.SeqlenQ)
	}
	if last <= first {
		return fmt.Errorf("%s: no rows", p.title)
	}
	across := func(length int) float64 {
		return x + panelWidth*math.Log2(float64(length)/float64(first))/math.Log2(float64(last)/float64(first))
	}
	up := func(tflops float64) float64 { return y + panelHeight*(1-tflops/maxTFLOPS) }
	text(b, x, y-8, "start", p.title)
	for v := 0; v <= maxTFLOPS; v += stepTFLOPS {
		fmt.Fprintf(b, `<path d="M%g %gh%d" stroke="#dddddd"/>`+"\n", x, up(float64(v)), panelWidth)
		text(b, x-6, up(float64(v))+4, "end", fmt.Sprint(v))
	}
	for length := first; length <= last; length *= 2 {
		text(b, across(length), y+panelHeight+18, "middle", fmt.Sprint(length))
	}
	for _, s := range lines {
		var path bytes.Buffer
		for length := first; length <= last; length *= 2 {
			tflops, ok := points[s.name][length]
			if !ok || tflops > maxTFLOPS {
				return fmt.Errorf("%s: %s at length %d: no row, or over the axis", p.title, s.name, length)
			}
			fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(path.Len(), 1)], across(length), up(tflops))
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", across(length), up(tflops), s.color)
		}
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="2.5"%s/>`+"\n", path.String(), s.color, s.dashes())
	}
	return nil
}

func (s series) dashes() string {
	if s.dash == "" {
		return ""
	}
	return fmt.Sprintf(` stroke-dasharray="%s"`, s.dash)
}

// text writes one line of text. None of the texts holds a character that XML reserves.
func text(b *bytes.Buffer, x, y float64, anchor, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="#222222">%s</text>`+"\n", x, y, anchor, s)
}
