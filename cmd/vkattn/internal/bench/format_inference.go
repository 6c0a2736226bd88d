package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"vkattn/cmd/vkattn/internal/markdown"
	"vkattn/internal/hostmem"
)

// serving prints a line for each row and each baseline: both times, both largest values and
// the largest difference of the results.
func (p *mdPrinter) serving(*RunInfo) error {
	m := markdown.New("line<", "Q<", "K<", "tier<", "ms", "reference<", "reference ms", "speedup", "max abs", "reference max abs",
		"max difference", "NaN", "NaN ratio", "sparse ratio", "max error")
	var used []Baseline
	for _, group := range groupBy(p.rows, func(r *Row) string { return r.Line + r.Problem().String() }) {
		for _, r := range group.rows {
			if r.isBaseline() {
				continue
			}
			q := fmt.Sprintf("%d, %d, %d, %d", r.B, r.Hq, r.Sq, r.D)
			k := fmt.Sprintf("%d, %d, %d, %d", r.B, r.Hkv, r.Sk, r.D)
			line := []any{r.Line, q, k, r.Who(), timeOrStatus(r)}
			none := true
			for _, ref := range group.rows {
				if !ref.isBaseline() {
					continue
				}
				none = false
				if ref.Baseline != "" && !slices.Contains(used, ref.Baseline) {
					used = append(used, ref.Baseline)
				}
				m.Row(append(slices.Clone(line), append([]any{ref.Name(), timeOrStatus(ref), times(r, ref.Name())}, resultCells(r, ref)...)...)...)
			}
			if none {
				m.Row(append(line, append([]any{"-", "-", "-"}, resultCells(r, nil)...)...)...)
			}
		}
	}
	if _, err := fmt.Fprintln(p.w, m); err != nil {
		return err
	}
	if err := p.notes(); err != nil {
		return err
	}
	return p.baselines(used)
}

// resultCells returns the cells that describe O of a row and of a reference.
func resultCells(r, ref *Row) []any {
	out := []any{"-", "-", "-", "-", "-"}
	if r.Result != nil {
		out[0] = strconv.FormatFloat(float64(r.Result.MaxAbs), 'g', 6, 64)
		out[3] = r.Result.NaN
		out[4] = Digits(float64(r.Result.NaN) / float64(max(1, r.Result.Elements)))
		if ref != nil && ref.Result != nil {
			out[1] = strconv.FormatFloat(float64(ref.Result.MaxAbs), 'g', 6, 64)
			if x, ok := r.Result.From[ref.Name()]; ok {
				out[2] = fmt.Sprintf("%.2e", float64(x))
			}
		}
	}
	return append(out, Digits(r.SparseRatio), checkedError(r))
}

func checkedError(r *Row) string {
	if r.Checked.Rows == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1e", float64(r.Checked.MaxError))
}

// times prints a ratio, such as "12.3x".
func times(r *Row, other string) string {
	x, ok := r.Versus[other]
	if !ok || r.Status != OK {
		return "-"
	}
	return Digits(x) + "x"
}

// baselines describes the baselines of a table.
func (p *mdPrinter) baselines(used []Baseline) error {
	if len(used) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(p.w); err != nil {
		return err
	}
	for _, f := range Baselines {
		if slices.Contains(used, f.Baseline) {
			if _, err := fmt.Fprintf(p.w, "%s: %s.\n", f.Baseline, f.About); err != nil {
				return err
			}
		}
	}
	return nil
}

// decode prints a line for each row: the bytes of K and V over the time, as a share of a
// copy's, and the speed relative to the same shape without options.
func (p *mdPrinter) decode(info *RunInfo) error {
	m := markdown.New("line<", "B", "Hq", "Hkv", "Sq", "Sk", "D", "tier<", "splits", "us", "K+V", "TB/s", "of copy")
	var others []string
	for _, o := range info.others() {
		others = append(others, o)
		m.Column("x " + o)
	}
	m.Column("x whole")
	m.Column("max error")
	m.Column("options<")
	var used []Baseline
	for _, r := range p.rows {
		if r.Baseline != "" && !slices.Contains(used, r.Baseline) {
			used = append(used, r.Baseline)
		}
		line := []any{r.Line, r.B, r.Hq, r.Hkv, r.Sq, r.Sk, r.D, r.Who()}
		splits := splitsText(r)
		if r.Status == OK {
			line = append(line, splits, Digits(r.Ms.Median*1e3), hostmem.Bytes(r.KVBytes), Digits(r.TBs), p.ofCopy(r))
		} else {
			line = append(line, splits, string(r.Status), hostmem.Bytes(r.KVBytes), "-", "-")
		}
		for _, o := range others {
			line = append(line, ratio(r, o))
		}
		m.Row(append(line, p.whole(r), checkedError(r), r.OptionText)...)
	}
	if _, err := fmt.Fprintln(p.w, m); err != nil {
		return err
	}
	if err := p.notes(); err != nil {
		return err
	}
	if err := p.comparisons(); err != nil {
		return err
	}
	return p.baselines(used)
}

// splitsText is the number of splits, "-" without a plan.
func splitsText(r *Row) string {
	if r.Splits == 0 {
		return "-"
	}
	return strconv.Itoa(r.Splits)
}

// ofCopy is the row's bandwidth as a share of the bandwidth of the fastest copy of as many
// bytes in the run. Which copy is fastest depends on the driver.
func (p *mdPrinter) ofCopy(r *Row) string {
	most := 0.0
	for _, o := range p.rows {
		if o.Status == OK && IsCopy(o.Name()) && o.KVBytes == r.KVBytes {
			most = max(most, o.TBs)
		}
	}
	if most == 0 || IsCopy(r.Name()) {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*r.TBs/most)
}

// IsCopy reports whether rows of a name are copies: rows of BaselineCopy, or of a peer
// with such a name.
func IsCopy(name string) bool {
	return name == string(BaselineCopy) || strings.HasPrefix(name, string(BaselineCopy)+".") ||
		strings.HasSuffix(name, "-"+string(BaselineCopy))
}

// whole is the time of the row of the same shape without options over the time of this
// row. The two were timed minutes from one another.
func (p *mdPrinter) whole(r *Row) string {
	if r.Status != OK || r.Peer || r.Baseline != "" || r.Problem().Plain() {
		return "-"
	}
	want := r.Problem()
	for _, o := range p.rows {
		x := o.Problem()
		if o.Status == OK && o.Tier == r.Tier && o.Kernel == r.Kernel && o.Baseline == "" && x.Plain() && !x.LSE && x.Shape == want.Shape &&
			o.D == r.D && o.Dv == r.Dv && o.DType == r.DType && o.Causal == r.Causal && x.Config.FixedSplit == want.Config.FixedSplit {
			return strconv.FormatFloat(o.Ms.Median/r.Ms.Median, 'f', 3, 64)
		}
	}
	return "-"
}
