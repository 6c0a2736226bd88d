package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"vkattn/cmd/vkattn/internal/markdown"
	"vkattn/internal/hostmem"
)

// servingTable has a line for each row and each baseline: both times, both largest values and
// the largest difference of the results.
func servingTable(rows []*Row) string {
	type pair struct{ r, ref *Row } // ref is nil without a baseline
	var pairs []pair
	for _, group := range groupBy(rows, func(r *Row) string { return r.Line + r.Problem().String() }) {
		references := filter(group.rows, (*Row).isBaseline)
		if len(references) == 0 {
			references = []*Row{nil}
		}
		for _, r := range filter(group.rows, func(r *Row) bool { return !r.isBaseline() }) {
			for _, ref := range references {
				pairs = append(pairs, pair{r, ref})
			}
		}
	}
	of := func(text func(r, ref *Row) string) func(pair) any { // what only pairs have
		return func(p pair) any {
			if p.ref == nil {
				return markdown.None
			}
			return text(p.r, p.ref)
		}
	}
	result := func(known func(pair) bool, text func(pair) any) func(pair) any {
		return func(p pair) any {
			if p.r.Result == nil || known != nil && !known(p) {
				return markdown.None
			}
			return text(p)
		}
	}
	compared := func(p pair) bool { return p.ref != nil && p.ref.Result != nil }
	differs := func(p pair) bool {
		if !compared(p) {
			return false
		}
		_, ok := p.r.Result.From[p.ref.Name()]
		return ok
	}
	six := func(n Number) string { return strconv.FormatFloat(float64(n), 'g', 6, 64) }
	t := markdown.Of(pairs, []markdown.Column[pair]{
		{Title: "line<", Cell: func(p pair) any { return p.r.Line }},
		{Title: "Q<", Cell: func(p pair) any { return fmt.Sprintf("%d, %d, %d, %d", p.r.B, p.r.Hq, p.r.Sq, p.r.D) }},
		{Title: "K<", Cell: func(p pair) any { return fmt.Sprintf("%d, %d, %d, %d", p.r.B, p.r.Hkv, p.r.Sk, p.r.D) }},
		{Title: "tier<", Cell: func(p pair) any { return p.r.Who() }},
		{Title: "ms", Cell: func(p pair) any { return timeOrStatus(p.r) }},
		{Title: "reference<", Cell: of(func(_, ref *Row) string { return ref.Name() })},
		{Title: "reference ms", Cell: of(func(_, ref *Row) string { return timeOrStatus(ref) })},
		{Title: "speedup", Cell: of(func(r, ref *Row) string { return times(r, ref.Name()) })},
		{Title: "max abs", Cell: result(nil, func(p pair) any { return six(p.r.Result.MaxAbs) })},
		{Title: "reference max abs", Cell: result(compared, func(p pair) any { return six(p.ref.Result.MaxAbs) })},
		{Title: "max difference", Cell: result(differs, func(p pair) any {
			return fmt.Sprintf("%.2e",
				float64(p.r.Result.From[p.ref.Name()]))
		})},
		{Title: "NaN", Cell: result(nil, func(p pair) any { return p.r.Result.NaN })},
		{Title: "NaN ratio", Cell: result(nil, func(p pair) any {
			return Digits(float64(p.r.Result.NaN) / float64(max(1,
				p.r.Result.Elements)))
		})},
		{Title: "sparse ratio", Cell: func(p pair) any { return Digits(p.r.SparseRatio) }},
		{Title: "max error", Cell: func(p pair) any { return checkedError(p.r) }},
	})
	return fmt.Sprintln(t) + notes(rows) + baselines(rows)
}

// baselines describes the baselines among rows.
func baselines(rows []*Row) (text string) {
	for _, f := range Baselines {
		if slices.ContainsFunc(rows, func(r *Row) bool { return r.Baseline == f.Baseline }) {
			text += fmt.Sprintf("%s: %s.\n", f.Baseline, f.About)
		}
	}
	if text == "" {
		return ""
	}
	return "\n" + text
}

// decodeTable has a line for each row: the bytes of K and V over the time, as a share of a
// copy's, and the speed relative to the same shape without options.
func decodeTable(rows []*Row, info *RunInfo) string {
	t := markdown.Of(rows, slices.Concat([]mdColumn{{Title: "line<", Cell: func(r *Row) any { return r.Line }}},
		shapeColumns[:6], []mdColumn{
			{Title: "tier<", Cell: func(r *Row) any { return r.Who() }},
			{Title: "splits", Cell: splitsText},
			{Title: "us", Cell: func(r *Row) any {
				if r.Status != OK {
					return string(r.Status)
				}
				return Digits(r.Ms.Median * 1e3)
			}},
			{Title: "K+V", Cell: func(r *Row) any { return hostmem.Bytes(r.KVBytes) }},
			{Title: "TB/s", Cell: markdown.If((*Row).ok, func(r *Row) any { return Digits(r.TBs) })},
			{Title: "of copy", Cell: markdown.If((*Row).ok, func(r *Row) any { return ofCopy(r, rows) })},
		}, versusColumns("x ", info, ratio), []mdColumn{
			{Title: "x whole", Cell: func(r *Row) any { return whole(r, rows) }},
			errorColumn,
			{Title: "options<", Cell: func(r *Row) any { return r.OptionText }},
		}))
	return fmt.Sprintln(t) + notes(rows) + comparisons(rows) + baselines(rows)
}

// ofCopy is the row's bandwidth as a share of the bandwidth of the fastest copy of as many
// bytes in the run. Which copy is fastest depends on the driver.
func ofCopy(r *Row, rows []*Row) string {
	most := 0.0
	for _, o := range rows {
		if o.Status == OK && IsCopy(o.Name()) && o.KVBytes == r.KVBytes {
			most = max(most, o.TBs)
		}
	}
	if most == 0 || IsCopy(r.Name()) {
		return markdown.None
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
func whole(r *Row, rows []*Row) string {
	if r.Status != OK || r.Peer || r.Baseline != "" || r.Problem().Plain() {
		return markdown.None
	}
	want := r.Problem()
	for _, o := range rows {
		x := o.Problem()
		if o.Status == OK && o.Tier == r.Tier && o.Kernel == r.Kernel && o.Baseline == "" && x.Plain() && !x.LSE && x.Shape == want.Shape &&
			o.D == r.D && o.Dv == r.Dv && o.DType == r.DType && o.Causal == r.Causal && x.Config.FixedSplit == want.Config.FixedSplit {
			return strconv.FormatFloat(o.Ms.Median/r.Ms.Median, 'f', 3, 64)
		}
	}
	return markdown.None
}
