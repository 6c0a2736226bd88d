package chart

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
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
		c.FillPolygon(color.White, []vg.Point{{X: c.Min.X, Y: c.Min.Y}, {X: c.Max.X, Y: c.Min.Y}, {X: c.Max.X, Y: c.Max.Y}, {X: c.Min.X, Y: c.Max.Y}})
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

func (s style) line() draw.LineStyle {
	l := draw.LineStyle{Color: s.color, Width: 1.8}
	if !s.ours {
		l.Dashes = []vg.Length{5, 3}
	}
	return l
}

// plot draws one panel.
func (p *Panel) plot(look map[string]style) (*plot.Plot, error) {
	d := plot.New()
	d.BackgroundColor = nil
	d.Title.Text, d.Title.TextStyle = p.Title, textStyle(10.5, draw.XCenter, draw.YTop)
	d.Title.Padding = 4
	for _, axis := range []*plot.Axis{&d.X, &d.Y} {
		axis.Color, axis.Tick.Color = rule, rule
		axis.Label.TextStyle = textStyle(9.5, draw.XCenter, draw.YTop)
		axis.Tick.Label = textStyle(9, draw.XCenter, draw.YTop)
		axis.Padding = 0
	}
	d.Y.Tick.Label = textStyle(9, draw.XRight, draw.YCenter)
	d.Y.Label.TextStyle = textStyle(9.5, draw.XCenter, draw.YBottom)
	d.X.Label.Text, d.Y.Label.Text = p.X, p.Y
	d.Y.Label.Padding, d.X.Label.Padding = 4, -4
	d.Y.Tick.Marker = plot.TickerFunc(steps)
	lines := plotter.NewGrid()
	lines.Vertical.Color = nil
	lines.Horizontal.Color = rule
	lines.Horizontal.Width = 0.6
	d.Add(lines)

	x, y := func(v float64) float64 { return v }, func(v float64) float64 { return v }
	if p.LogX {
		x = math.Log2
	}
	if p.LogY {
		y = math.Log10
	}
	bars := 0
	for _, s := range p.Series {
		if len(p.Ticks) > 0 && !s.Level {
			bars++
		}
	}
	low, high := math.Inf(1), math.Inf(-1)
	bottom, top := math.Inf(1), 0.0
	var above words
	for _, s := range p.Series {
		if p.above(&s) {
			above = append(above, fmt.Sprintf("above: %s, %.4g %s", known[s.Name].label, s.Y[0], p.Y))
			continue
		}
		for _, v := range s.X {
			low, high = min(low, x(v)), max(high, x(v))
		}
		for _, v := range s.Y {
			bottom, top = min(bottom, y(v)), max(top, y(v))
		}
	}
	if len(p.Ticks) > 0 {
		low, high = -0.6, float64(len(p.Ticks))-0.4
	}
	bar := 0
	for _, s := range p.Series {
		style := look[s.Name]
		switch {
		case p.above(&s):
		case s.Level:
			l, err := plotter.NewLine(plotter.XYs{{X: low, Y: y(s.Y[0])}, {X: high, Y: y(s.Y[0])}})
			if err != nil {
				return nil, err
			}
			l.LineStyle = style.line()
			d.Add(l)
		case len(p.Ticks) > 0:
			wide := min(0.8/float64(bars), 0.4)
			d.Add(&barSet{s, style.color, (float64(bar) - float64(bars)/2) * wide, wide})
			bar++
		default:
			points := make(plotter.XYs, len(s.X))
			for i := range s.X {
				points[i] = plotter.XY{X: x(s.X[i]), Y: y(s.Y[i])}
			}
			if !s.Points {
				l, err := plotter.NewLine(points)
				if err != nil {
					return nil, err
				}
				l.LineStyle = style.line()
				d.Add(l)
			}
			if s.Bare {
				break
			}
			g, err := plotter.NewScatter(points)
			if err != nil {
				return nil, err
			}
			g.GlyphStyle = draw.GlyphStyle{Color: style.color, Radius: 2.4, Shape: style.shape}
			d.Add(g, &rings{points, s.unsteady})
		}
	}
	d.X.Min, d.X.Max, d.Y.Min, d.Y.Max = low, high, 0, max(top, p.Top)*1.06
	if len(above) > 0 {
		d.Y.Max *= 1.1
		d.Add(above)
	}
	if p.LogY {
		d.Y.Min, d.Y.Max = math.Floor(bottom), math.Ceil(top)
		d.Y.Tick.Marker = powers(10)
	}
	switch {
	case len(p.Ticks) > 0:
		var ticks plot.ConstantTicks
		for i, name := range p.Ticks {
			ticks = append(ticks, plot.Tick{Value: float64(i), Label: name})
		}
		d.X.Tick.Marker = ticks
		d.X.Tick.Length = 0
		if strings.Contains(p.Ticks[0], "\n") {
			d.X.Tick.Label.Font.Size = 7.5
		}
	case p.LogX:
		d.X.Tick.Marker = powers(2)
	}
	return d, nil
}

// steps puts about five ticks at round numbers.
func steps(low, high float64) (ticks []plot.Tick) {
	unit := math.Pow(10, math.Floor(math.Log10((high-low)/4)))
	step := unit
	for _, n := range []float64{2, 5, 10} {
		if (high-low)/step > 6 {
			step = n * unit
		}
	}
	for n := math.Ceil(low / step); n*step <= high; n++ {
		ticks = append(ticks, plot.Tick{Value: n * step, Label: strconv.FormatFloat(n*step, 'g', 6, 64)})
	}
	return ticks
}

// powers puts a tick at every whole number n of an axis and names it by its value, a power of a base.
func powers(base float64) plot.Ticker {
	return plot.TickerFunc(func(low, high float64) (ticks []plot.Tick) {
		every := max(1, int(math.Ceil((high-low)/8)))
		for n := int(math.Ceil(low - 1e-9)); float64(n) <= high+1e-9; n++ {
			if n%every != 0 {
				continue
			}
			v := math.Pow(base, float64(n))
			label := fmt.Sprintf("%g", v)
			if v >= 1024 && v == math.Trunc(v) && int(v)%1024 == 0 {
				label = fmt.Sprintf("%gk", v/1024)
			}
			ticks = append(ticks, plot.Tick{Value: float64(n), Label: label})
		}
		return ticks
	})
}

// barSet draws a bar at each x of a series, shifted and wide in units of x.
type barSet struct {
	Series
	color       color.RGBA
	shift, wide float64
}

// Plot implements plot.Plotter.
func (b *barSet) Plot(c draw.Canvas, d *plot.Plot) {
	x, y := d.Transforms(&c)
	for i, at := range b.X {
		left, right := x(at+b.shift), x(at+b.shift+b.wide*0.92)
		c.FillPolygon(b.color, []vg.Point{{X: left, Y: y(0)}, {X: right, Y: y(0)}, {X: right, Y: y(b.Y[i])}, {X: left, Y: y(b.Y[i])}})
		if b.unsteady[i] {
			drawRing(c, vg.Point{X: (left + right) / 2, Y: y(b.Y[i])})
		}
	}
}

// rings are drawn around the points of rows whose time may be off.
type rings struct {
	points   plotter.XYs
	unsteady []bool
}

// Plot implements plot.Plotter.
func (r *rings) Plot(c draw.Canvas, d *plot.Plot) {
	x, y := d.Transforms(&c)
	for i, off := range r.unsteady {
		if off {
			drawRing(c, vg.Point{X: x(r.points[i].X), Y: y(r.points[i].Y)})
		}
	}
}

func drawRing(c draw.Canvas, at vg.Point) {
	const radius = 4.5
	c.SetLineStyle(draw.LineStyle{Color: ink, Width: 1.1})
	var p vg.Path
	p.Move(vg.Point{X: at.X + radius, Y: at.Y})
	p.Arc(at, radius, 0, 2*math.Pi)
	p.Close()
	c.Stroke(p)
}

// words are lines of text at the top of a panel.
type words []string

// Plot implements plot.Plotter.
func (w words) Plot(c draw.Canvas, _ *plot.Plot) {
	c.FillText(textStyle(9, draw.XRight, draw.YTop), vg.Point{X: c.Max.X, Y: c.Max.Y}, strings.Join(w, "\n"))
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
