package bench

import (
	"fmt"
	"io"
	"slices"
	"strconv"

	"vkattn/cmd/vkattn/internal/markdown"
)

// mdPrinter prints at the end, as it aligns columns. Suite and rows decide the table:
// results, seeds, decode, the ladder of variants or ablations. Ceilings have one of their own.
type mdPrinter struct {
	w    io.Writer
	rows []*Row
}

func (p *mdPrinter) print(info *RunInfo) error {
	isCeiling := func(r *Row) bool { return r.Ceiling != "" }
	var limits []*Row
	for _, r := range p.rows {
		if isCeiling(r) {
			limits = append(limits, r)
		}
	}
	p.rows = slices.DeleteFunc(p.rows, isCeiling)
	var err error
	if len(p.rows) > 0 || len(limits) == 0 {
		err = p.table(info)
	}
	if err == nil && len(limits) > 0 {
		if len(p.rows) > 0 {
			_, err = fmt.Fprintln(p.w)
		}
		if err == nil {
			err = p.ceilings(limits)
		}
	}
	if err == nil && info.Shrunk {
		_, err = fmt.Fprintf(p.w, "\nShapes are cut down for a CPU: one sequence, a 16th of the rows and keys, at most %d heads.\n", smallHeads)
	}
	return err
}

func (p *mdPrinter) table(info *RunInfo) error {
	layout := p.results
	switch info.Suite {
	case "seeds", "seed1":
		layout = p.seeds
	case "decode":
		layout = p.decode
	case "seed0":
		return p.seed0(info)
	case "seed2":
		return p.seed2(info)
	}
	for _, r := range p.rows {
		if r.Ablation != "" {
			layout = p.ablations
			break
		}
		if r.Variant != "" {
			layout = p.ladder
		}
	}
	return layout(info)
}

// results prints a line for each row, and the comparisons with peers below. Columns that the
// others follow from are for wide tables alone.
func (p *mdPrinter) results(info *RunInfo) error {
	named := slices.ContainsFunc(p.rows, func(r *Row) bool { return r.Line != "" })
	wide := info.Wide || info.Suite == "seed4" // the seed's table has these columns
	m := markdown.New()
	if named {
		m.Column("name<")
	}
	m.Columns("device<", "tier<", "tile<", "B", "Hq", "Hkv", "Sq", "Sk", "D", "Dv", "causal<", "dtype<")
	passes, layers := false, false
	for _, r := range p.rows {
		passes, layers = passes || r.Pass != PassForward, layers || r.Layers > 0
	}
	if passes {
		m.Column("pass<")
	}
	m.Column("ms min")
	if wide {
		m.Column("ms mean")
	}
	m.Columns("ms median", "+-", "ms max")
	if layers {
		m.Column("layers")
		m.Column("ms of all layers")
	}
	m.Column("TFLOP/s")
	if wide {
		m.Columns("TFLOP/s mean", "TFLOP/s peak")
	}
	for _, other := range info.others() {
		m.Column("x " + other)
	}
	m.Column("max error")
	m.Column("memory")
	memory := wide && slices.ContainsFunc(p.rows, func(r *Row) bool { return r.PlainBytes > 0 })
	if memory {
		m.Columns("in", "out", "workspace", "plain needs")
	}
	notes, options, splits := false, false, false
	for _, r := range p.rows {
		notes, options, splits = notes || r.Note() != "", options || r.OptionText != "", splits || r.Splits > 1
	}
	if splits {
		m.Column("splits")
	}
	if options {
		m.Column("options<")
	}
	if notes {
		m.Column("note<")
	}
	for _, r := range p.rows {
		var row []any
		if named {
			row = append(row, r.Line)
		}
		row = append(row, r.Device, r.Name(), r.Tile, r.B, r.Hq, r.Hkv, r.Sq, r.Sk, r.D, r.Dv, r.Causal, r.DType)
		if passes {
			row = append(row, r.Pass)
		}
		times, speed := []any{"-", "-", "-", "-"}, "-"
		mean, meanSpeed, peakSpeed := "-", "-", "-"
		if r.Status == OK {
			times, mean = []any{Digits(r.Ms.Min), Digits(r.Ms.Median), noiseText(r.Ms), Digits(r.Ms.Max)}, Digits(r.Ms.Mean)
		}
		switch {
		case r.Status == OK && !IsCopy(r.Name()):
			speed, meanSpeed, peakSpeed = Digits(r.TFLOPs), Digits(r.MeanTFLOPs), Digits(r.PeakTFLOPs)
		case r.Status == Fail, r.Status == OOM:
			speed = string(r.Status)
		}
		if wide {
			times = slices.Insert(times, 1, any(mean))
		}
		row = append(row, times...)
		if layers {
			row = append(row, layersText(r)...)
		}
		row = append(row, speed)
		if wide {
			row = append(row, meanSpeed, peakSpeed)
		}
		for _, other := range info.others() {
			row = append(row, ratio(r, other))
		}
		checked := "-"
		if r.Checked.Rows > 0 {
			checked = fmt.Sprintf("%.1e", r.Checked.MaxError)
		}
		row = append(row, checked, Bytes(r.Memory))
		if memory {
			row = append(row, memoryText(r)...)
		}
		if splits {
			row = append(row, splitsText(r))
		}
		if options {
			row = append(row, r.OptionText)
		}
		if notes {
			row = append(row, r.Note())
		}
		m.Row(row...)
	}
	if _, err := fmt.Fprintln(p.w, m); err != nil {
		return err
	}
	return p.comparisons()
}

// noiseText is the distance of the 95 % interval's ends from the median, such as "0.4%".
func noiseText(s Summary) string {
	if n := s.Noise(); n < 10 {
		return fmt.Sprintf("%.1f%%", 100*n)
	}
	return "-"
}

// memoryText is the memory of a row by use, "-" for peers and baselines.
func memoryText(r *Row) []any {
	if r.PlainBytes == 0 {
		return []any{"-", "-", "-", "-"}
	}
	return []any{Bytes(r.InputBytes), Bytes(r.OutputBytes), Bytes(r.WorkspaceBytes), Bytes(r.PlainBytes)}
}

// layersText is the number of layers of a model and the time of all of them.
func layersText(r *Row) []any {
	switch {
	case r.Layers == 0:
		return []any{"-", "-"}
	case r.Status != OK:
		return []any{r.Layers, "-"}
	}
	return []any{r.Layers, Digits(float64(r.Layers) * r.Ms.Median)}
}

func (p *mdPrinter) comparisons() error {
	list := Compare(p.rows)
	if len(list) > 0 {
		if _, err := fmt.Fprintln(p.w); err != nil {
			return err
		}
	}
	for _, c := range list {
		if _, err := fmt.Fprintln(p.w, c); err != nil {
			return err
		}
	}
	return nil
}

// ratio is a ratio of Row.Versus, "-" if one side was not timed.
func ratio(r *Row, other string) string {
	x, ok := r.Versus[other]
	if !ok || r.Status != OK {
		return "-"
	}
	return strconv.FormatFloat(x, 'f', 3, 64)
}

// Digits prints about four significant digits, without an exponent from 0.01 on.
func Digits(v float64) string {
	switch {
	case v >= 1000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case v >= 0.01 || v == 0:
		return strconv.FormatFloat(v, 'f', 4, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// Bytes prints a size with its binary unit.
func Bytes(n uint64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v := float64(n)
	at := -1
	for v >= 1024 && at < len(units)-1 {
		v /= 1024
		at++
	}
	if v < 10 {
		return fmt.Sprintf("%.1f %ciB", v, units[at])
	}
	return fmt.Sprintf("%.0f %ciB", v, units[at])
}
