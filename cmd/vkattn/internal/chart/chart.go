// Package chart draws pictures of benchmark rows: speed over length, the steps of the
// ladder, the bandwidth of decode and a roofline.
package chart

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/internal/hostmem"
)

// Ceilings are the highest speeds of a device. 0: not known.
type Ceilings struct {
	TFLOPs float64 // of products from registers
	TBs    float64 // of a copy, bytes read and written

	measuredTFLOPs map[attention.DType]float64 // used if TFLOPs is 0
}

// The names of the ceilings.
const (
	peakName = "peak of cooperative matrices"
	fmaName  = "peak of float32 FMAs"
	copyName = "peak of a copy"
	roofName = "ceilings of the device"
)

// measured takes the ceilings that are not known from rows of suite ceilings, of the devices
// that have other rows.
func (c Ceilings) measured(rows, others []*bench.Row) Ceilings {
	devices := map[string]bool{}
	for _, r := range others {
		devices[r.Device] = true
	}
	out := c
	out.measuredTFLOPs = map[attention.DType]float64{}
	for _, r := range rows {
		switch {
		case !devices[r.Device]:
		case r.Ceiling == bench.CeilingProducts || r.Ceiling == bench.CeilingFMA:
			out.measuredTFLOPs[r.DType] = max(out.measuredTFLOPs[r.DType], r.TFLOPs)
		case r.Ceiling == bench.CeilingCopy && c.TBs == 0:
			out.TBs = max(out.TBs, r.TBs)
		}
	}
	return out
}

// peak is the highest speed of products of a storage type, with its name. A device without
// cooperative matrices of the type multiplies in float32.
func (c Ceilings) peak(dtype attention.DType) (string, float64) {
	switch {
	case c.TFLOPs > 0:
		return peakName, c.TFLOPs
	case dtype != attention.F32 && c.measuredTFLOPs[dtype] > 0:
		return peakName, c.measuredTFLOPs[dtype]
	}
	return fmaName, c.measuredTFLOPs[attention.F32]
}

// Kind is what a figure shows.
type Kind string

// The kinds.
const (
	Speed     Kind = "speed"     // TFLOP/s over sequence length
	Ladder    Kind = "ladder"    // TFLOP/s of each step of the kernel's development
	Bandwidth Kind = "bandwidth" // TB/s of K and V of decode
	Roofline  Kind = "roofline"  // TFLOP/s over flops per byte
)

// Kinds lists them in the order of Figures.
var Kinds = []Kind{Speed, Ladder, Bandwidth, Roofline}

// Figure is a picture of panels with one legend.
type Figure struct {
	Kind   Kind
	Title  string
	Panels []Panel
}

// Panel is one set of axes.
type Panel struct {
	Title  string
	X, Y   string
	LogX   bool // x is a power of 2 in every tick
	LogY   bool
	Top    float64  // of the y axis; 0: as the data needs
	Ticks  []string // names of x = 0, 1, ...: the panel has bars
	Series []Series
}

// Series is one line, one set of bars, or one set of points.
type Series struct {
	Name   string
	X, Y   []float64
	Points bool // no line
	Bare   bool // a line without points
	Level  bool // a horizontal line over the whole panel at Y[0]

	unsteady []bool // of rows: their time may be off
}

// add adds the point of a row.
func (s *Series) add(x, y float64, r *bench.Row) {
	i, found := slices.BinarySearch(s.X, x)
	if found {
		s.Y[i], s.unsteady[i] = y, r.Unsteady != "" // the last run of a problem counts
		return
	}
	s.X, s.Y, s.unsteady = slices.Insert(s.X, i, x), slices.Insert(s.Y, i, y), slices.Insert(s.unsteady, i, r.Unsteady != "")
}

// unsteadyNote says of how many rows in pictures the time may be off, "" if of none is known that
// it may.
func unsteadyNote(figures []Figure) string {
	rows, off := 0, 0
	for _, f := range figures {
		for _, p := range f.Panels {
			for _, s := range p.Series {
				rows += len(s.unsteady)
				for _, u := range s.unsteady {
					if u {
						off++
					}
				}
			}
		}
	}
	if off == 0 {
		return ""
	}
	return fmt.Sprintf("Ringed: %d of %d rows, in which the GPU was throttled or its clock changed.", off, rows)
}

// Least and Most bound the numbers of a picture. Axes of wider ranges have no end of ticks.
const Least, Most = 1e-12, 1e12

// drawable reports whether the numbers of a row can be drawn: a file may have any.
func drawable(r *bench.Row) bool {
	for _, v := range []float64{r.TFLOPs, r.TBs} {
		if v != 0 && !(v >= Least && v <= Most) {
			return false
		}
	}
	return r.Ceiling != "" || r.Ms.Median >= Least && r.Ms.Median <= Most && min(r.B, r.Hq, r.Sq, r.Sk, r.D) > 0 && min(r.Hkv, r.Dv) >= 0
}

// Figures returns the figures that rows give rise to. Rows without a speed are left out, and
// rows with numbers that no device has.
//
// Ceilings that are not known are those that the rows measured.
func Figures(rows []*bench.Row, c Ceilings) []Figure {
	rows = slices.DeleteFunc(slices.Clone(rows), func(r *bench.Row) bool { return r.Status != bench.OK || !drawable(r) })
	timed := slices.DeleteFunc(slices.Clone(rows), func(r *bench.Row) bool { return r.Ceiling != "" })
	c = c.measured(rows, timed)
	var out []Figure
	name := namesOf(timed)
	for _, f := range []Figure{speed(timed, c, name), ladder(timed, name), bandwidth(timed, c, name), roofline(timed, c, name)} {
		if len(f.Panels) > 0 {
			shareTop(f.Panels)
			out = append(out, f)
		}
	}
	return out
}

// namer has the devices of each implementation, to name the series of a row.
type namer map[string]map[string]bool

func namesOf(rows []*bench.Row) namer {
	n := namer{}
	for _, r := range rows {
		if n[r.Who()] == nil {
			n[r.Who()] = map[string]bool{}
		}
		n[r.Who()][r.Device] = true
	}
	return n
}

// device is the device of a row if the rows have its implementation on several, else "".
func (n namer) device(r *bench.Row) string {
	if len(n[r.Who()]) < 2 {
		return ""
	}
	return r.Device
}

// of is the implementation of a row, with its device if that is needed to tell it from others.
func (n namer) of(r *bench.Row) string { return describe(r.Who(), n.device(r)) }

// shareTop gives panels one y axis, so that their heights can be compared. Panels that would
// fill less than a third of it keep their own. A ceiling far above the data makes no axis longer.
func shareTop(list []Panel) {
	tops, highest := make([]float64, len(list)), 0.0
	for i, p := range list {
		for _, s := range p.Series {
			if !s.ceiling() {
				tops[i] = max(tops[i], slices.Max(s.Y))
			}
		}
		for _, s := range p.Series {
			if s.ceiling() && s.Y[0] <= farAbove*tops[i] {
				tops[i] = max(tops[i], s.Y[0])
			}
		}
		highest = max(highest, tops[i])
	}
	for i := range list {
		list[i].Top = tops[i]
		if 3*tops[i] >= highest {
			list[i].Top = highest
		}
	}
}

// farAbove is how many times the data a ceiling may be and still have its line.
const farAbove = 1.6

// ceiling reports whether a series is a ceiling of the device.
func (s *Series) ceiling() bool {
	return s.Level && (s.Name == peakName || s.Name == fmaName || s.Name == copyName)
}

// above reports whether a ceiling is above the panel.
func (p *Panel) above(s *Series) bool { return s.ceiling() && s.Y[0] > p.Top }

// panels are in the order in which their titles appear.
type panels []*Panel

// get is the panel of a title.
func (p *panels) get(title string) *Panel {
	for _, x := range *p {
		if x.Title == title {
			return x
		}
	}
	x := &Panel{Title: title}
	*p = append(*p, x)
	return x
}

func (p *Panel) series(name string) *Series {
	for i := range p.Series {
		if p.Series[i].Name == name {
			return &p.Series[i]
		}
	}
	p.Series = append(p.Series, Series{Name: name})
	return &p.Series[len(p.Series)-1]
}

func (p *Panel) level(name string, y float64) {
	if y > 0 {
		p.Series = append(p.Series, Series{Name: name, Y: []float64{y}, Level: true})
	}
}

// causal describes the mask, and is empty without one.
func causal(r *bench.Row) string {
	switch {
	case r.Causal == attention.CausalNone:
		return ""
	case r.Sq == r.Sk:
		return "causal" // both alignments are the same
	}
	return "causal " + r.Causal.String()
}

// describe joins the parts that are not empty.
func describe(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ", ")
}

func heads(r *bench.Row) string {
	if r.Hkv == r.Hq || r.Hkv == 0 {
		return fmt.Sprintf("%d heads", r.Hq)
	}
	return fmt.Sprintf("%d/%d heads", r.Hq, r.Hkv)
}

func dims(r *bench.Row) string {
	if r.D == r.Dv || r.Dv == 0 {
		return fmt.Sprintf("head dim %d", r.D)
	}
	return fmt.Sprintf("head dim %d/%d", r.D, r.Dv)
}

func pass(r *bench.Row) string {
	if r.Pass == bench.PassForward {
		return ""
	}
	return r.Pass.String()
}

// speed has a panel for each set of problems that differ in length alone, with two lengths
// and more.
func speed(rows []*bench.Row, c Ceilings, name namer) Figure {
	f := Figure{Kind: Speed, Title: "Speed over sequence length"}
	var all panels
	types := map[string]attention.DType{} // of panels
	for _, r := range rows {
		if r.Variant != "" || r.TFLOPs == 0 || r.Sq == 1 {
			continue
		}
		length, rectangle := r.Sq, ""
		if r.Sq != r.Sk {
			length, rectangle = r.Sk, fmt.Sprintf("%d rows", r.Sq)
		}
		p := all.get(describe(dims(r), causal(r), r.DType.String(), pass(r), fmt.Sprintf("batch %d", r.B), heads(r),
			rectangle, r.OptionText))
		p.series(name.of(r)).add(float64(length), r.TFLOPs, r)
		types[p.Title] = r.DType
	}
	for _, p := range all {
		if !slices.ContainsFunc(p.Series, func(s Series) bool { return len(s.X) > 1 }) {
			continue
		}
		p.X, p.Y, p.LogX = "sequence length", "TFLOP/s", true
		p.level(c.peak(types[p.Title]))
		f.Panels = append(f.Panels, *p)
	}
	return f
}

// ladder has a panel for each problem that has variants, with the other implementations of
// the problem as lines.
func ladder(rows []*bench.Row, name namer) Figure {
	f := Figure{Kind: Ladder, Title: "Steps of the kernel's development"}
	several := slices.ContainsFunc(rows, func(r *bench.Row) bool { return r.Variant != "" && name.device(r) != "" })
	title := func(r *bench.Row) string {
		device := ""
		if several {
			device = r.Device
		}
		length := fmt.Sprintf("length %d", r.Sq)
		if r.Sk != r.Sq {
			length = fmt.Sprintf("%d rows, %d keys", r.Sq, r.Sk)
		}
		return describe(dims(r), causal(r), r.DType.String(), pass(r), length, fmt.Sprintf("batch %d", r.B), heads(r), r.OptionText, device)
	}
	var all panels
	steps := map[string]map[string]*bench.Row{}
	for _, r := range rows {
		if r.Variant != "" {
			all.get(title(r))
			if steps[title(r)] == nil {
				steps[title(r)] = map[string]*bench.Row{}
			}
			steps[title(r)][r.Variant] = r
		}
	}
	for _, p := range all {
		of := steps[p.Title]
		p.X, p.Y, p.Ticks = "step", "TFLOP/s", slices.Sorted(maps.Keys(of))
		for i, step := range p.Ticks {
			p.series("vkattn").add(float64(i), of[step].TFLOPs, of[step])
		}
		for _, r := range rows {
			if r.Variant == "" && title(r) == p.Title {
				p.level(r.Who(), r.TFLOPs)
			}
		}
		f.Panels = append(f.Panels, *p)
	}
	return f
}

// mostBars is the number of problems of a panel of bars.
const mostBars = 6

// bandwidth has bars of the problems with one query row.
func bandwidth(rows []*bench.Row, c Ceilings, names namer) Figure {
	f := Figure{Kind: Bandwidth, Title: "Bandwidth of decode"}
	var all panels
	var p *Panel
	for _, r := range rows {
		if r.Sq != 1 || r.TBs == 0 || r.Variant != "" {
			continue
		}
		line := r.Line
		if line == "contiguous" {
			line = ""
		}
		name := fmt.Sprintf("%d × %d\n%s\nd %d", r.B, r.Sk, heads(r), r.D)
		if note := cmp.Or(line, r.OptionText); note != "" {
			name += "\n" + note
		}
		at := -1
		for _, p = range all {
			at = slices.Index(p.Ticks, name)
			if at >= 0 {
				break
			}
		}
		if at < 0 {
			if p == nil || len(p.Ticks) == mostBars { // p is the last
				p = all.get(fmt.Sprintf("%s, %d", r.DType, len(all)+1))
			}
			at, p.Ticks = len(p.Ticks), append(p.Ticks, name)
		}
		p.series(names.of(r)).add(float64(at), r.TBs, r)
	}
	for _, p := range all {
		p.Title, p.X, p.Y = "K and V read per second", "batch × keys", "TB/s"
		p.level(copyName, c.TBs)
		f.Panels = append(f.Panels, *p)
	}
	return f
}

// roofline needs both ceilings. Problems with options read other bytes than their tensors have.
func roofline(rows []*bench.Row, c Ceilings, name namer) Figure {
	f := Figure{Kind: Roofline, Title: "Roofline"}
	if c.TBs == 0 {
		return f
	}
	peak := 0.0 // of the fastest storage type
	p := Panel{Title: "Speed over arithmetic intensity", X: "flops per byte of Q, K, V and O", Y: "TFLOP/s", LogX: true, LogY: true}
	lowest, highest := math.Inf(1), 0.0
	for _, r := range rows {
		if r.Variant != "" || r.TFLOPs == 0 || r.Pass != bench.PassForward || !whole(r) {
			continue
		}
		intensity := r.TFLOPs * r.Ms.Median * 1e9 / float64(tensorBytes(r))
		p.points(name.of(r), intensity, r.TFLOPs, r)
		_, limit := c.peak(r.DType)
		peak = max(peak, limit)
		lowest, highest = min(lowest, intensity), max(highest, intensity)
	}
	if len(p.Series) == 0 || peak == 0 {
		return f
	}
	ridge := peak / c.TBs
	lowest, highest = min(lowest, ridge)/2, max(highest, ridge)*2
	p.Series = append(p.Series, Series{Name: roofName, X: []float64{lowest, ridge, highest},
		Y: []float64{lowest * c.TBs, peak, peak}, Bare: true})
	f.Panels = []Panel{p}
	return f
}

// points adds a point to a series that may have several at one x.
func (p *Panel) points(name string, x, y float64, r *bench.Row) {
	s := p.series(name)
	s.Points, s.X, s.Y, s.unsteady = true, append(s.X, x), append(s.Y, y), append(s.unsteady, r.Unsteady != "")
}

// whole reports whether a row reads all of K and V, in the type of Q.
func whole(r *bench.Row) bool {
	kv := uint64(r.B) * uint64(max(r.Hkv, 1)) * uint64(r.Sk) * uint64(r.D+r.Dv) * uint64(r.DType.Size())
	return r.Options == nil && (r.KVBytes == 0 || r.KVBytes == kv)
}

// tensorBytes counts Q, K, V and O once.
func tensorBytes(r *bench.Row) uint64 {
	dims, size := hostmem.Sum(uint64(r.D), uint64(r.Dv)), uint64(r.DType.Size())
	rows, keys := hostmem.Product(r.B, r.Hq, r.Sq), hostmem.Product(r.B, max(r.Hkv, 1), r.Sk)
	return hostmem.Product(hostmem.Sum(rows, keys), dims, size)
}
