package bench

import (
	"strconv"
	"strings"
)

// column is a column of CSV and of SQL: its name, its type in SQL, and its cell in a row, which is
// empty if it is not known.
type column struct {
	name, sql string
	cell      func(*Row, *RunInfo) string
}

// Types of SQL.
const (
	sqlText    = "TEXT"
	sqlNumber  = "DOUBLE PRECISION"
	sqlBoolean = "BOOLEAN"
	sqlUint64  = "NUMERIC(20)" // all 64 bits
)

// columns lists them in their order. New ones come last, so that older files keep their places.
var columns = []column{
	text("device", func(r *Row) string { return r.Device }),
	{"driver", sqlText, func(_ *Row, i *RunInfo) string { return i.Device.Driver }},
	{"version", sqlText, func(_ *Row, i *RunInfo) string { return i.Version }},
	{"seed", sqlUint64, func(_ *Row, i *RunInfo) string { return strconv.FormatUint(i.Seed, 10) }},
	text("tier", (*Row).Name),
	text("tile", func(r *Row) string { return r.Tile }),
	extent("batch", func(r *Row) int { return r.B }),
	extent("heads", func(r *Row) int { return r.Hq }),
	extent("heads_kv", func(r *Row) int { return r.Hkv }),
	extent("seqlen_q", func(r *Row) int { return r.Sq }),
	extent("seqlen_k", func(r *Row) int { return r.Sk }),
	extent("headdim", func(r *Row) int { return r.D }),
	extent("headdim_v", func(r *Row) int { return r.Dv }),
	text("causal", func(r *Row) string { return attentionText(r, r.Causal.String()) }),
	text("dtype", (*Row).DTypeText),
	text("status", func(r *Row) string { return string(r.Status) }),
	text("reason", func(r *Row) string { return r.Reason }),
	number("ms_min", (*Row).timed, func(r *Row) float64 { return r.Ms.Min }),
	number("ms_median", (*Row).timed, func(r *Row) float64 { return r.Ms.Median }),
	number("ms_max", (*Row).timed, func(r *Row) float64 { return r.Ms.Max }),
	count("samples", func(r *Row) uint64 { return uint64(len(r.Samples)) }),
	number("tflops", (*Row).ok, func(r *Row) float64 { return r.TFLOPs }),
	number("max_error", (*Row).compared, func(r *Row) float64 { return float64(r.Checked.MaxError) }),
	number("nmse", (*Row).compared, func(r *Row) float64 { return float64(r.Checked.NMSE) }),
	count("checked_rows", func(r *Row) uint64 { return uint64(r.Checked.Rows) }),
	count("memory_bytes", func(r *Row) uint64 { return r.Memory }),
	boolean("peer", func(r *Row) string { return strconv.FormatBool(r.Peer) }),
	text("variant", func(r *Row) string { return r.Variant }),
	text("ablation", func(r *Row) string { return r.Ablation }),
	number("ablation_tflops", (*Row).ablated, func(r *Row) float64 { return r.AblationTFLOPs }),
	text("timer", func(r *Row) string { return r.Timer }),
	count("sets", func(r *Row) uint64 { return uint64(r.Sets) }),
	text("samples_ms", samplesText),
	number("sm_mhz", (*Row).hasClock, func(r *Row) float64 { return float64(r.Clock.SMMHz) }),
	number("memory_mhz", (*Row).hasClock, func(r *Row) float64 { return float64(r.Clock.MemoryMHz) }),
	number("power_watts", (*Row).hasClock, func(r *Row) float64 { return r.Clock.PowerWatts }),
	number("celsius", (*Row).hasClock, func(r *Row) float64 { return float64(r.Clock.Celsius) }),
	text("line", func(r *Row) string { return r.Line }),
	text("baseline", func(r *Row) string { return string(r.Baseline) }),
	text("options", func(r *Row) string { return r.OptionText }),
	positive("splits", func(r *Row) float64 { return float64(r.Splits) }),
	positive("kv_bytes", func(r *Row) float64 { return float64(r.KVBytes) }),
	positive("tb_per_s", func(r *Row) float64 { return r.TBs }),
	positive("sparse_ratio", func(r *Row) float64 { return r.SparseRatio }),
	number("nan", (*Row).hasResult, func(r *Row) float64 { return float64(r.Result.NaN) }),
	number("max_abs", (*Row).hasResult, func(r *Row) float64 { return float64(r.Result.MaxAbs) }),
	text("pass", func(r *Row) string { return attentionText(r, r.Pass.String()) }),
	positive("layers", func(r *Row) float64 { return float64(r.Layers) }),
	positive("checked_keys", func(r *Row) float64 { return float64(r.Checked.Keys) }),
	number("ms_mean", (*Row).timed, func(r *Row) float64 { return r.Ms.Mean }),
	number("ms_median_low", (*Row).hasInterval, func(r *Row) float64 { return r.Ms.Low }),
	number("ms_median_high", (*Row).hasInterval, func(r *Row) float64 { return r.Ms.High }),
	number("tflops_mean", func(r *Row) bool { return r.ok() && r.MeanTFLOPs > 0 }, func(r *Row) float64 { return r.MeanTFLOPs }),
	number("tflops_peak", func(r *Row) bool { return r.ok() && r.PeakTFLOPs > 0 }, func(r *Row) float64 { return r.PeakTFLOPs }),
	size("input_bytes", func(r *Row) uint64 { return r.InputBytes }),
	size("output_bytes", func(r *Row) uint64 { return r.OutputBytes }),
	size("workspace_bytes", func(r *Row) uint64 { return r.WorkspaceBytes }),
	size("plain_bytes", func(r *Row) uint64 { return r.PlainBytes }),
	text("unsteady", func(r *Row) string { return r.Unsteady }),
	text("ceiling", func(r *Row) string { return string(r.Ceiling) }),
	size("bytes", func(r *Row) uint64 { return r.Bytes }),
	positive("flops", func(r *Row) float64 { return r.Flops }),
	boolean("lse", lseText),
}

// Cell is the cell of a row in a column of CSV.
func Cell(column string, r *Row, info *RunInfo) string {
	for _, c := range columns {
		if c.name == column {
			return c.cell(r, info)
		}
	}
	return ""
}

func text(name string, of func(*Row) string) column {
	return column{name, sqlText, func(r *Row, _ *RunInfo) string { return of(r) }}
}

func boolean(name string, of func(*Row) string) column {
	return column{name, sqlBoolean, func(r *Row, _ *RunInfo) string { return of(r) }}
}

// count is a column of whole numbers that are always known.
func count(name string, of func(*Row) uint64) column {
	return column{name, sqlNumber, func(r *Row, _ *RunInfo) string { return strconv.FormatUint(of(r), 10) }}
}

// extent is a column of the shape, which ceilings lack.
func extent(name string, of func(*Row) int) column {
	return column{name, sqlNumber, func(r *Row, _ *RunInfo) string { return attentionText(r, strconv.Itoa(of(r))) }}
}

// size is a column of bytes, unknown if 0.
func size(name string, of func(*Row) uint64) column {
	return column{name, sqlNumber, func(r *Row, _ *RunInfo) string {
		if of(r) == 0 {
			return ""
		}
		return strconv.FormatUint(of(r), 10)
	}}
}

// number is a column of numbers of the rows that have them.
func number(name string, known func(*Row) bool, of func(*Row) float64) column {
	return column{name, sqlNumber, func(r *Row, _ *RunInfo) string {
		if !known(r) {
			return ""
		}
		return decimal(of(r))
	}}
}

// positive is a column of numbers, unknown if 0.
func positive(name string, of func(*Row) float64) column {
	return number(name, func(r *Row) bool { return of(r) > 0 }, of)
}

// decimal prints nine significant digits at most.
func decimal(v float64) string { return strconv.FormatFloat(v, 'g', 9, 64) }

func (r *Row) ok() bool          { return r.Status == OK }
func (r *Row) ablated() bool     { return r.Status == Ablated }
func (r *Row) timed() bool       { return r.ok() || r.ablated() }
func (r *Row) hasInterval() bool { return r.timed() && r.Ms.High > 0 }
func (r *Row) compared() bool    { return r.Checked.Rows > 0 }
func (r *Row) hasClock() bool    { return r.Clock != nil }
func (r *Row) hasResult() bool   { return r.Result != nil }

// samplesText lists the times of all runs.
func samplesText(r *Row) string {
	if !r.timed() {
		return ""
	}
	var list []string
	for _, ms := range r.Samples {
		list = append(list, decimal(ms))
	}
	return strings.Join(list, " ")
}

// lseText says whether a forward pass returned LSE. It is empty for other rows.
func lseText(r *Row) string {
	if r.Pass != PassForward {
		return ""
	}
	return attentionText(r, strconv.FormatBool(r.LSE))
}
