package bench

import (
	"fmt"
	"slices"

	"vkattn/cmd/vkattn/internal/markdown"
)

// ceilings prints a line for each ceiling, and the time of a barrier below.
func (p *mdPrinter) ceilings(rows []*Row) error {
	notes := slices.ContainsFunc(rows, func(r *Row) bool { return r.Note() != "" })
	m := markdown.New("device<", "ceiling<", "dtype<", "tile<", "us min", "us median", "+-", "us max", "TFLOP/s", "GB/s", "description<")
	if notes {
		m.Column("note<")
	}
	for _, r := range rows {
		line := []any{r.Device, r.Ceiling, r.DTypeText(), r.Tile, "-", "-", "-", "-", "-", "-", r.Ceiling.about()}
		if r.Status == OK {
			copy(line[4:], []any{Digits(r.Ms.Min * 1e3), Digits(r.Ms.Median * 1e3), noiseText(r.Ms), Digits(r.Ms.Max * 1e3)})
		}
		if r.Status == OK && r.TFLOPs > 0 {
			line[8] = Digits(r.TFLOPs)
		}
		if r.Status == OK && r.TBs > 0 {
			line[9] = Digits(r.TBs * 1e3)
		}
		if notes {
			line = append(line, r.Note())
		}
		m.Row(line...)
	}
	if _, err := fmt.Fprintln(p.w, m); err != nil {
		return err
	}
	if ms := barrierMs(rows); ms > 0 {
		_, err := fmt.Fprintf(p.w, "\nA barrier takes %s us: the median of barrier less that of dispatch.\n", Digits(ms*1e3))
		return err
	}
	return nil
}

// attentionText is a text that only rows of attention have. It is empty for ceilings.
func attentionText(r *Row, text string) string {
	if r.Ceiling != "" {
		return ""
	}
	return text
}

// DTypeText is the storage type, empty for a ceiling that has none.
func (r *Row) DTypeText() string {
	if r.Ceiling != "" && !r.Ceiling.typed() {
		return ""
	}
	return r.DType.String()
}
