package chart

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Sizes in points.
const (
	panelWidth  = 330
	panelHeight = 230
	titleHeight = 26
	lineHeight  = 17
	gap         = 22
	margin      = 10
)

// The colors of everything but data. ForPage replaces them.
var (
	ink  = color.RGBA{R: 0x1f, G: 0x23, B: 0x28, A: 0xff}
	rule = color.RGBA{R: 0xd8, G: 0xde, B: 0xe4, A: 0xff}
)

// grid is the division of a picture.
type grid struct {
	figures       []Figure
	columns       int
	panel         vg.Length // width
	caption       string
	width, height vg.Length
}

// figureHeight is the height of a figure with its title and legend.
func (g *grid) figureHeight(f Figure) vg.Length {
	rows := (len(f.Panels) + g.columns - 1) / g.columns
	return titleHeight + vg.Length(rows)*(panelHeight+gap) + vg.Length(g.legendLines(f))*lineHeight + gap
}

// legendColumns is the number of entries in a line of a legend.
func (g *grid) legendColumns() int { return max(2*g.columns, 1) }

func (g *grid) legendLines(f Figure) int {
	names, _ := styles(f)
	return (len(names) + g.legendColumns() - 1) / g.legendColumns()
}

// newGrid divides a picture with panels that are some times as wide as usual.
func newGrid(figures []Figure, columns int, wide float64, caption string) *grid {
	most := 1
	for _, f := range figures {
		most = max(most, len(f.Panels))
	}
	g := &grid{figures: figures, columns: min(max(columns, 1), most), panel: panelWidth * vg.Length(wide),
		caption: caption}
	g.width = 2*margin + vg.Length(g.columns)*g.panel + vg.Length(g.columns-1)*gap
	g.height = margin
	for _, f := range figures {
		g.height += g.figureHeight(f)
	}
	if note := unsteadyNote(figures); note != "" {
		g.caption = strings.TrimPrefix(caption+"\n"+note, "\n")
	}
	if g.caption == "" {
		g.height -= gap / 2
	} else {
		g.height += vg.Length(1+strings.Count(g.caption, "\n")) * lineHeight
	}
	return g
}

// SVG writes the figures below one another as one picture, with as many panels in a row as
// columns says. The caption is its last line, or a line below it says that times may be off.
func SVG(w io.Writer, figures []Figure, columns int, caption string) error {
	text, err := newGrid(figures, columns, 1, caption).svg(true)
	if err == nil {
		_, err = io.WriteString(w, text)
	}
	return err
}

// svg is the picture as SVG, with fallbacks for its font, which few machines have.
func (g *grid) svg(background bool) (string, error) {
	c := vgsvg.New(g.width, g.height)
	if err := g.draw(draw.New(c), background); err != nil {
		return "", err
	}
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return "", err
	}
	s := strings.ReplaceAll(b.String(), "font-family:Liberation Sans;", "font-family:Liberation Sans,Arial,Helvetica,sans-serif;")
	s = strings.ReplaceAll(s, "font-variant:none;", "font-variant:normal;")
	if before, rest, found := strings.Cut(s, "<!--"); found { // names the program that wrote it
		if _, after, found := strings.Cut(rest, "-->\n"); found {
			s = before + after
		}
	}
	return s, nil
}

// PNG writes the same picture as SVG does, at twice its size.
func PNG(w io.Writer, figures []Figure, columns int, caption string) error {
	g := newGrid(figures, columns, 1, caption)
	c := vgimg.NewWith(vgimg.UseWH(g.width, g.height), vgimg.UseDPI(192))
	if err := g.draw(draw.New(c), true); err != nil {
		return err
	}
	_, err := vgimg.PngCanvas{Canvas: c}.WriteTo(w)
	return err
}

// Inline returns a figure as an SVG element for a page. Text and rules have the colors of the
// page's text (currentColor) and of its variable --rule, and the background is the page's. Panels are below one
// another, some times as wide as in SVG.
func Inline(f Figure, wide float64) (string, error) {
	s, err := newGrid([]Figure{f}, 1, wide, "").svg(false)
	if err != nil {
		return "", err
	}
	s = strings.ReplaceAll(s, hex(ink), "currentColor")
	s = strings.ReplaceAll(s, hex(rule), "var(--rule)")
	return s[strings.Index(s, "<svg"):], nil
}

func hex(c color.RGBA) string { return fmt.Sprintf("#%02X%02X%02X", c.R, c.G, c.B) }

func textStyle(size vg.Length, x draw.XAlignment, y draw.YAlignment) draw.TextStyle {
	f := font.From(plot.DefaultFont, size)
	f.Typeface, f.Variant = "Liberation", "Sans"
	return draw.TextStyle{Color: ink, Font: f, XAlign: x, YAlign: y, Handler: text.Plain{Fonts: font.DefaultCache}}
}

func (g *grid) draw(c draw.Canvas, background bool) error {
	if background {
		c.FillPolygon(color.White, []vg.Point{{X: c.Min.X, Y: c.Min.Y}, {X: c.Max.X, Y: c.Min.Y},
			{X: c.Max.X, Y: c.Max.Y}, {X: c.Min.X, Y: c.Max.Y}})
	}
	top := c.Max.Y - margin
	for _, f := range g.figures {
		c.FillText(textStyle(14, 0, draw.YTop), vg.Point{X: c.Min.X + margin, Y: top}, f.Title)
		names, look := styles(f)
		under := top - titleHeight
		for i, p := range f.Panels {
			x := c.Min.X + margin + vg.Length(i%g.columns)*(g.panel+gap)
			y := under - vg.Length(i/g.columns)*(panelHeight+gap)
			drawn, err := p.plot(look)
			if err != nil {
				return fmt.Errorf("%s: %w", p.Title, err)
			}
			area := vg.Rectangle{Min: vg.Point{X: x, Y: y - panelHeight}, Max: vg.Point{X: x + g.panel, Y: y}}
			drawn.Draw(draw.Canvas{Canvas: c.Canvas, Rectangle: area})
		}
		rows := (len(f.Panels) + g.columns - 1) / g.columns
		under -= vg.Length(rows) * (panelHeight + gap)
		g.legend(c, under, names, look, f)
		top -= g.figureHeight(f)
	}
	if g.caption != "" {
		c.FillText(textStyle(10, 0, draw.YBottom), vg.Point{X: c.Min.X + margin, Y: c.Min.Y + margin/2}, g.caption)
	}
	return nil
}

// legend draws a sample of each series and its label.
func (g *grid) legend(c draw.Canvas, top vg.Length, names []string, look map[string]style, f Figure) {
	bars := len(f.Panels[0].Ticks) > 0
	wide := (g.width - 2*margin) / vg.Length(g.legendColumns())
	for i, name := range names {
		s := look[name]
		x := c.Min.X + margin + vg.Length(i%g.legendColumns())*wide
		y := top - vg.Length(i/g.legendColumns())*lineHeight - lineHeight/2
		kind := f.series(name)
		switch {
		case kind.Points:
			c.DrawGlyph(draw.GlyphStyle{Color: s.color, Radius: 3, Shape: s.shape}, vg.Point{X: x + 12, Y: y})
		case bars && !kind.Level:
			c.FillPolygon(s.color, []vg.Point{{X: x + 6, Y: y - 5}, {X: x + 18, Y: y - 5}, {X: x + 18, Y: y + 5}, {X: x + 6, Y: y + 5}})
		default:
			c.StrokeLine2(s.line(), x, y, x+24, y)
			if !kind.Level && !kind.Bare {
				c.DrawGlyph(draw.GlyphStyle{Color: s.color, Radius: 2.4, Shape: s.shape}, vg.Point{X: x + 12, Y: y})
			}
		}
		c.FillText(textStyle(9.5, 0, draw.YCenter), vg.Point{X: x + 30, Y: y}, s.label)
	}
}

// series returns the first series with a name.
func (f Figure) series(name string) Series {
	for _, p := range f.Panels {
		for _, s := range p.Series {
			if s.Name == name {
				return s
			}
		}
	}
	return Series{}
}

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

// Only keeps the series of the given names, on every device, and panels that have any left.
func Only(figures []Figure, series []string) []Figure {
	if len(series) == 0 {
		return figures
	}
	var out []Figure
	for _, f := range figures {
		var panels []Panel
		for _, p := range f.Panels {
			p.Series = slices.DeleteFunc(slices.Clone(p.Series), func(s Series) bool {
				who, _, _ := strings.Cut(s.Name, ", ")
				return !slices.Contains(series, s.Name) && !slices.Contains(series, who)
			})
			if len(p.Series) > 0 {
				panels = append(panels, p)
			}
		}
		f.Panels = panels
		if len(panels) > 0 {
			out = append(out, f)
		}
	}
	return out
}

// Names lists the implementations that figures show, as Only takes them.
func Names(figures []Figure) (names []string) {
	for _, f := range figures {
		for _, p := range f.Panels {
			for _, s := range p.Series {
				if who, _, _ := strings.Cut(s.Name, ", "); !slices.Contains(names, who) {
					names = append(names, who)
				}
			}
		}
	}
	return names
}
