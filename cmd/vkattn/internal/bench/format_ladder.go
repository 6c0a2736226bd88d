package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/markdown"
)

// ladder prints a table for each shape with a line for each kernel: the peers, then the
// variants with their speed as a share of each peer's.
func (p *mdPrinter) ladder(info *RunInfo) error {
	several := len(tiersOf(p.rows)) > 1
	for i, group := range groupBy(p.rows, ladderTitle) {
		columns := []string{"causal<", "kernel<", "time_ms"}
		for _, other := range info.others() {
			columns = append(columns, "perf_of_"+other)
		}
		m := markdown.New(columns...)
		for _, cell := range groupBy(group.rows, func(r *Row) string { return r.Causal.String() }) {
			slices.SortStableFunc(cell.rows, func(a, b *Row) int { return rank(a) - rank(b) })
			for _, r := range cell.rows {
				row := []any{r.Causal, kernelLabel(r, several), timeOrStatus(r)}
				for _, other := range info.others() {
					row = append(row, percent(r, other))
				}
				m.Row(row...)
			}
		}
		gap := ""
		if i > 0 {
			gap = "\n"
		}
		tiers := strings.Join(tiersOf(group.rows), " and ")
		if _, err := fmt.Fprintf(p.w, "%s%s, %s on %s\n\n", gap, group.title, tiers, group.rows[0].Device); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(p.w, m); err != nil {
			return err
		}
	}
	if err := p.notes(); err != nil {
		return err
	}
	return p.comparisons()
}

// ladderSuite prints the ladder, and a table of speeds for each head dim.
func (p *mdPrinter) ladderSuite(info *RunInfo) error {
	if ladder := linesOf(p.rows, lineLadder); len(ladder) > 0 {
		if err := (&mdPrinter{w: p.w, rows: ladder}).ladder(info); err != nil {
			return err
		}
	}
	rest := &mdPrinter{w: p.w, rows: linesOf(p.rows, lineSpeed)}
	for _, group := range groupBy(rest.rows, func(r *Row) string {
		return fmt.Sprintf("batch %d, %d heads, head_dim %d, %v", r.B, r.Hq, r.D, r.DType)
	}) {
		columns := []string{"n_ctx", "causal<", "kernel<", "time_ms", "tflops"}
		for _, other := range info.others() {
			columns = append(columns, "perf_of_"+other)
		}
		m := markdown.New(columns...)
		slices.SortStableFunc(group.rows, func(a, b *Row) int { return a.Sq - b.Sq })
		for _, r := range group.rows {
			speed := "-"
			if r.Status == OK {
				speed = Digits(r.TFLOPs)
			}
			row := []any{r.Sk, r.Causal, r.Who(), timeOrStatus(r), speed}
			for _, other := range info.others() {
				row = append(row, percent(r, other))
			}
			m.Row(row...)
		}
		if _, err := fmt.Fprintf(p.w, "\n%s\n\n%s\n", group.title, m); err != nil {
			return err
		}
	}
	if err := rest.notes(); err != nil {
		return err
	}
	return rest.comparisons()
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
		label = fmt.Sprintf("%s (%s)", r.Variant, attention.VariantName(v))
	}
	if tier || label == "" {
		label = r.Tier + " " + label
	}
	return label
}

func timeOrStatus(r *Row) string {
	if r.Status == OK {
		return strconv.FormatFloat(r.Ms.Median, 'f', 3, 64)
	}
	return string(r.Status)
}

func percent(r *Row, other string) string {
	x, ok := r.Versus[other]
	if !ok || r.Status != OK {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*x)
}

// ablations prints a line for each problem. Each kernel and each ablation has its own
// columns, so that the speed of an ablation is not taken for a result.
func (p *mdPrinter) ablations(*RunInfo) error {
	several := len(tiersOf(p.rows)) > 1
	label := func(r *Row) string {
		var l string
		switch {
		case r.Peer:
			return r.Tier
		case r.Ablation != "":
			l = "ABLATION no " + r.Ablation
		default:
			l = "baseline"
		}
		if r.Variant != "" {
			l = r.Variant + " " + l
		}
		if several {
			l = r.Tier + " " + l
		}
		return l
	}
	m := markdown.New("causal<", "dtype<", "bs", "seqlen_q", "seqlen_kv", "heads", "kv_heads", "headdim")
	options := slices.ContainsFunc(p.rows, func(r *Row) bool { return r.OptionText != "" })
	if options {
		m.Column("options<")
	}
	var labels []string
	for _, r := range p.rows {
		if l := label(r); !slices.Contains(labels, l) {
			labels = append(labels, l)
			m.Column(l + " TFLOP/s")
			m.Column(l + " ms")
		}
	}
	for _, line := range groupBy(p.rows, func(r *Row) string { return r.Problem().String() }) {
		r := line.rows[0]
		dim := strconv.Itoa(r.D)
		if r.Dv != r.D {
			dim += "/" + strconv.Itoa(r.Dv)
		}
		cells := []any{r.Causal, r.DType, r.B, r.Sq, r.Sk, r.Hq, r.Hkv, dim}
		if options {
			cells = append(cells, r.OptionText)
		}
		for _, l := range labels {
			speed, ms := "-", "-"
			for _, r := range line.rows {
				switch {
				case label(r) != l:
				case r.Status == OK:
					speed, ms = Digits(r.TFLOPs), Digits(r.Ms.Median)
				case r.Status == Ablated:
					speed, ms = Digits(r.AblationTFLOPs), Digits(r.Ms.Median)
				default:
					speed = string(r.Status)
				}
			}
			cells = append(cells, speed, ms)
		}
		m.Row(cells...)
	}
	if _, err := fmt.Fprintln(p.w, m); err != nil {
		return err
	}
	if _, err := fmt.Fprint(p.w, "\nAn ABLATION leaves out a part of the work to show what the part costs. Its output is wrong by\n"+
		"design and not verified, and its TFLOP/s count the whole problem: it is not a result.\n"); err != nil {
		return err
	}
	return p.notes()
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

// titled is a group of rows with the same title.
type titled struct {
	title string
	rows  []*Row
}

// groupBy groups rows by title, in the order of first occurrence.
func groupBy(rows []*Row, title func(*Row) string) []*titled {
	var out []*titled
	at := map[string]*titled{}
	for _, r := range rows {
		t := title(r)
		g := at[t]
		if g == nil {
			g = &titled{title: t}
			at[t] = g
			out = append(out, g)
		}
		g.rows = append(g.rows, r)
	}
	return out
}
