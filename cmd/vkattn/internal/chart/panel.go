package chart

import (
	"fmt"
	"image/color"
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// plot draws one panel.
func (p *Panel) plot(look map[string]style) (*plot.Plot, error) {
	d := p.empty()
	r := p.ranges()
	bars, bar := 0, 0
	for _, s := range p.Series {
		if len(p.Ticks) > 0 && !s.Level {
			bars++
		}
	}
	var above words
	for _, s := range p.Series {
		style := look[s.Name]
		switch {
		case p.above(&s):
			above = append(above, fmt.Sprintf("above: %s, %.4g %s", known[s.Name].label, s.Y[0], p.Y))
		case !s.Level && len(p.Ticks) > 0:
			wide := min(0.8/float64(bars), 0.4)
			d.Add(&barSet{s, style.color, (float64(bar) - float64(bars)/2) * wide, wide})
			bar++
		default:
			if err := r.curve(d, s, style); err != nil {
				return nil, err
			}
		}
	}
	d.X.Min, d.X.Max, d.Y.Min, d.Y.Max = r.low, r.high, 0, max(r.top, p.Top)*1.06
	if len(above) > 0 {
		d.Y.Max *= 1.1
		d.Add(above)
	}
	if p.LogY {
		d.Y.Min, d.Y.Max = math.Floor(r.bottom), math.Ceil(r.top)
	}
	return d, nil
}

// empty is a panel with its texts, its grid and the ticks of its axes.
func (p *Panel) empty() *plot.Plot {
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
	if p.LogY {
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
	lines := plotter.NewGrid()
	lines.Vertical.Color = nil
	lines.Horizontal.Color = rule
	lines.Horizontal.Width = 0.6
	d.Add(lines)
	return d
}

// ranges are the axes of a panel: where a value is on them, and their ends.
type ranges struct {
	x, y                   func(float64) float64
	low, high, bottom, top float64
}

func (p *Panel) ranges() ranges {
	same := func(v float64) float64 { return v }
	r := ranges{same, same, math.Inf(1), math.Inf(-1), math.Inf(1), 0}
	if p.LogX {
		r.x = math.Log2
	}
	if p.LogY {
		r.y = math.Log10
	}
	for _, s := range p.Series {
		if p.above(&s) {
			continue
		}
		for _, v := range s.X {
			r.low, r.high = min(r.low, r.x(v)), max(r.high, r.x(v))
		}
		for _, v := range s.Y {
			r.bottom, r.top = min(r.bottom, r.y(v)), max(r.top, r.y(v))
		}
	}
	if len(p.Ticks) > 0 {
		r.low, r.high = -0.6, float64(len(p.Ticks))-0.4
	}
	return r
}

// curve adds a level, or the line and the points of a series.
func (r *ranges) curve(d *plot.Plot, s Series, look style) error {
	points := make(plotter.XYs, len(s.X))
	for i := range s.X {
		points[i] = plotter.XY{X: r.x(s.X[i]), Y: r.y(s.Y[i])}
	}
	if s.Level {
		points = plotter.XYs{{X: r.low, Y: r.y(s.Y[0])}, {X: r.high, Y: r.y(s.Y[0])}}
	}
	if s.Level || !s.Points {
		l, err := plotter.NewLine(points)
		if err != nil {
			return err
		}
		l.LineStyle = look.line()
		d.Add(l)
	}
	if s.Level || s.Bare {
		return nil
	}
	g, err := plotter.NewScatter(points)
	if err != nil {
		return err
	}
	g.GlyphStyle = draw.GlyphStyle{Color: look.color, Radius: 2.4, Shape: look.shape}
	d.Add(g, &rings{points, s.unsteady})
	return nil
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
