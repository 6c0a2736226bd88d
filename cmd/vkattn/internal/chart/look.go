package chart

import (
	"image/color"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// style is the look of a series.
type style struct {
	label string
	color color.RGBA
	ours  bool             // solid lines; the others are dashed
	shape draw.GlyphDrawer // of points
}

func rgb(n uint32) color.RGBA {
	return color.RGBA{R: uint8(n >> 16), G: uint8(n >> 8), B: uint8(n), A: 0xff}
}

// The colors of data. A reader who does not tell red from green, or blue from yellow, tells each from the others. All
// stand out from a light and a dark page.
var (
	red, green, orange, purple = rgb(0xcd1c0e), rgb(0x00765f), rgb(0xfa8600), rgb(0x834eb1)
	violet, sky, sand, gray    = rgb(0xbf44ff), rgb(0x78aaf4), rgb(0xb1a892), rgb(0x7b87a8)
)

// Shapes of points tell series of one color apart.
var dot, box, pyramid = draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}

// known are the implementations that have the same look in every picture.
var known = map[string]style{
	"cuda fa3":   {"vkattn CUDA fa3", green, true, dot},
	"cuda fa2":   {"vkattn CUDA fa2", orange, true, dot},
	"cuda":       {"vkattn CUDA", green, true, dot},
	"cubin":      {"vkattn cubin", purple, true, dot},
	"coopmat2":   {"vkattn coopmat2", red, true, dot},
	"coopmat":    {"vkattn coopmat", sand, true, dot},
	"scalar":     {"vkattn scalar", green, true, box},
	"cpu":        {"vkattn cpu", gray, true, box},
	"vkattn":     {"vkattn", red, true, dot},
	"cudnn":      {"cuDNN", violet, false, dot},
	"flash":      {"FlashAttention-2", sky, false, dot},
	"efficient":  {"PyTorch efficient", orange, false, box},
	"torch-copy": {"copy (PyTorch)", gray, false, dot},
	"copy":       {"copy (Vulkan)", sand, false, box},
	peakName:     {"coopmat peak", ink, false, dot},
	fmaName:      {"FMA peak", ink, false, dot},
	copyName:     {copyName, ink, false, dot},
	roofName:     {roofName, ink, true, dot},
}

// others are the colors of the rest, in order.
var others = []color.RGBA{purple, green, orange, violet, red, sky, gray, sand}

// styles gives every series of a figure its look.
func styles(f Figure) (names []string, of map[string]style) {
	of = map[string]style{}
	next := 0
	for _, p := range f.Panels {
		for _, s := range p.Series {
			if _, found := of[s.Name]; found || p.above(&s) {
				continue
			}
			names = append(names, s.Name)
			look, found := known[s.Name]
			if !found {
				look = style{label: s.Name, color: others[next%len(others)], shape: pyramid}
				next++
			}
			of[s.Name] = look
		}
	}
	return names, of
}

func (s style) line() draw.LineStyle {
	l := draw.LineStyle{Color: s.color, Width: 1.8}
	if !s.ours {
		l.Dashes = []vg.Length{5, 3}
	}
	return l
}
