package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/markdown"
	"vkattn/internal/problem"
)

// ladderTables has a table for each shape with a line for each kernel: the peers, then the
// variants with their speed as a share of each peer's.
func ladderTables(rows []*Row, info *RunInfo) string {
	several := len(tiersOf(rows)) > 1
	var texts []string
	for _, group := range groupBy(rows, ladderTitle) {
		var lines []*Row
		for _, cell := range groupBy(group.rows, func(r *Row) string { return r.Causal.String() }) {
			slices.SortStableFunc(cell.rows, func(a, b *Row) int { return rank(a) - rank(b) })
			lines = append(lines, cell.rows...)
		}
		t := markdown.Of(lines, append([]mdColumn{causalColumn,
			{Title: "kernel<", Cell: func(r *Row) any { return kernelLabel(r, several) }},
			{Title: "time_ms", Cell: func(r *Row) any { return timeOrStatus(r) }},
		}, versusColumns("perf_of_", info, percent)...))
		texts = append(texts, fmt.Sprintf("%s, %s on %s\n\n%v\n", group.title, strings.Join(tiersOf(group.rows), " and "),
			group.rows[0].Device, t))
	}
	return strings.Join(texts, "\n") + notes(rows) + comparisons(rows)
}

// ladderSuite has the ladder, and a table of speeds for each head dim.
func ladderSuite(rows []*Row, info *RunInfo) (text string) {
	if ladder := linesOf(rows, lineLadder); len(ladder) > 0 {
		text = ladderTables(ladder, info)
	}
	rest := linesOf(rows, lineSpeed)
	for _, group := range groupBy(rest, func(r *Row) string {
		return fmt.Sprintf("batch %d, %d heads, head_dim %d, %v", r.B, r.Hq, r.D, r.DType)
	}) {
		slices.SortStableFunc(group.rows, func(a, b *Row) int { return a.Sq - b.Sq })
		t := markdown.Of(group.rows, append([]mdColumn{
			{Title: "n_ctx", Cell: func(r *Row) any { return r.Sk }},
			causalColumn,
			{Title: "kernel<", Cell: func(r *Row) any { return r.Who() }},
			{Title: "time_ms", Cell: func(r *Row) any { return timeOrStatus(r) }},
			{Title: "tflops", Cell: markdown.If((*Row).ok, func(r *Row) any { return Digits(r.TFLOPs) })},
		}, versusColumns("perf_of_", info, percent)...))
		text += fmt.Sprintf("\n%s\n\n%s\n", group.title, t)
	}
	return text + notes(rest) + comparisons(rest)
}

// ladderTitle is the title of a table: the problem without its mask, which has a column.
func ladderTitle(r *Row) string {
	p := r.Problem()
	p.Config.Causal = attention.CausalNone
	return p.String()
}

// rank sorts peers first.
func rank(r *Row) int {
	if r.Peer {
		return 0
	}
	return 1
}

// kernelLabel names a kernel, such as "v3 (unmasked and masked tiles in separate loops)".
func kernelLabel(r *Row, tier bool) string {
	if r.Peer {
		return r.Tier
	}
	label := r.Variant
	if v, err := ParseVariant(r.Variant); err == nil {
		label = fmt.Sprintf("%s (%s)", r.Variant, problem.VariantName(v))
	}
	if tier || label == "" {
		label = r.Tier + " " + label
	}
	return label
}

// ablationTable has a line for each problem. Each kernel and each ablation has its own
// columns, so that the speed of an ablation is not taken for a result.
func ablationTable(rows []*Row) string {
	several := len(tiersOf(rows)) > 1
	label := func(r *Row) string {
		l := "baseline"
		switch {
		case r.Peer:
			return r.Tier
		case r.Ablation != "":
			l = "ABLATION no " + r.Ablation
		}
		if r.Variant != "" {
			l = r.Variant + " " + l
		}
		if several {
			l = r.Tier + " " + l
		}
		return l
	}
	type column = markdown.Column[*titled]
	of := func(text func(r *Row) any) func(*titled) any { return func(g *titled) any { return text(g.rows[0]) } }
	columns := []column{
		{Title: "causal<", Cell: of(func(r *Row) any { return r.Causal })},
		{Title: "dtype<", Cell: of(func(r *Row) any { return r.DType })},
		{Title: "bs", Cell: of(func(r *Row) any { return r.B })},
		{Title: "seqlen_q", Cell: of(func(r *Row) any { return r.Sq })},
		{Title: "seqlen_kv", Cell: of(func(r *Row) any { return r.Sk })},
		{Title: "heads", Cell: of(func(r *Row) any { return r.Hq })},
		{Title: "kv_heads", Cell: of(func(r *Row) any { return r.Hkv })},
		{Title: "headdim", Cell: of(func(r *Row) any {
			if r.Dv != r.D {
				return fmt.Sprintf("%d/%d", r.D, r.Dv)
			}
			return strconv.Itoa(r.D)
		})},
		{Title: "options<", Optional: true, Cell: of(func(r *Row) any { return r.OptionText })},
	}
	for _, kernel := range groupBy(rows, label) {
		last := func(text func(*Row) string) func(*titled) any {
			return func(g *titled) any {
				out := markdown.None
				for _, r := range g.rows {
					if label(r) == kernel.title {
						out = text(r)
					}
				}
				return out
			}
		}
		columns = append(columns, column{Title: kernel.title + " TFLOP/s", Cell: last(func(r *Row) string {
			if !r.timed() {
				return string(r.Status)
			}
			return Digits(r.TFLOPs + r.AblationTFLOPs)
		})}, column{Title: kernel.title + " ms", Cell: last(func(r *Row) string {
			if !r.timed() {
				return markdown.None
			}
			return Digits(r.Ms.Median)
		})})
	}
	t := markdown.Of(groupBy(rows, func(r *Row) string { return r.Problem().String() }), columns)
	return fmt.Sprintln(t) + "\nAn ABLATION leaves out a part of the work to show what the part costs. Its output is " +
		"wrong by\n" +
		"design and not verified, and its TFLOP/s count the whole problem: it is not a result.\n" + notes(rows)
}

// tiersOf lists the tiers of rows without peers.
func tiersOf(rows []*Row) []string {
	var out []string
	for _, r := range rows {
		if !r.Peer && !slices.Contains(out, r.Tier) {
			out = append(out, r.Tier)
		}
	}
	return out
}
