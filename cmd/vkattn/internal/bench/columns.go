package bench

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// record is a row and its run.
type record struct {
	*Row
	run *RunInfo
}

// column is a column of CSV and of SQL: its name, the rows that have it, and its value, whose type is the column's.
type column struct {
	name string
	has  func(*Row) bool // nil: those in which it is not zero
	of   func(record) any
}

// columns lists them in their order. New ones come last, so that older files keep their places.
var columns = []column{
	{"device", nil, func(x record) any { return x.Device }},
	{"driver", nil, func(x record) any { return x.run.Device.Driver }},
	{"version", nil, func(x record) any { return x.run.Version }},
	{"seed", all, func(x record) any { return x.run.Seed }},
	{"tier", nil, func(x record) any { return x.Name() }},
	{"tile", nil, func(x record) any { return x.Tile }},
	{"batch", (*Row).attends, func(x record) any { return x.B }},
	{"heads", (*Row).attends, func(x record) any { return x.Hq }},
	{"heads_kv", (*Row).attends, func(x record) any { return x.Hkv }},
	{"seqlen_q", (*Row).attends, func(x record) any { return x.Sq }},
	{"seqlen_k", (*Row).attends, func(x record) any { return x.Sk }},
	{"headdim", (*Row).attends, func(x record) any { return x.D }},
	{"headdim_v", (*Row).attends, func(x record) any { return x.Dv }},
	{"causal", (*Row).attends, func(x record) any { return x.Causal.String() }},
	{"dtype", nil, func(x record) any { return x.DTypeText() }},
	{"status", nil, func(x record) any { return string(x.Status) }},
	{"reason", nil, func(x record) any { return x.Reason }},
	{"ms_min", (*Row).timed, func(x record) any { return x.Ms.Min }},
	{"ms_median", (*Row).timed, func(x record) any { return x.Ms.Median }},
	{"ms_max", (*Row).timed, func(x record) any { return x.Ms.Max }},
	{"samples", all, func(x record) any { return len(x.Samples) }},
	{"tflops", (*Row).ok, func(x record) any { return x.TFLOPs }},
	{"max_error", (*Row).compared, func(x record) any { return x.Checked.MaxError }},
	{"nmse", (*Row).compared, func(x record) any { return x.Checked.NMSE }},
	{"checked_rows", all, func(x record) any { return x.Checked.Rows }},
	{"memory_bytes", all, func(x record) any { return x.Memory }},
	{"peer", all, func(x record) any { return x.Peer }},
	{"variant", nil, func(x record) any { return x.Variant }},
	{"ablation", nil, func(x record) any { return x.Ablation }},
	{"ablation_tflops", (*Row).ablated, func(x record) any { return x.AblationTFLOPs }},
	{"timer", nil, func(x record) any { return x.Timer }},
	{"sets", all, func(x record) any { return x.Sets }},
	{"samples_ms", (*Row).timed, func(x record) any { return samplesText(x.Samples) }},
	{"sm_mhz", (*Row).hasClock, func(x record) any { return x.Clock.SMMHz }},
	{"memory_mhz", (*Row).hasClock, func(x record) any { return x.Clock.MemoryMHz }},
	{"power_watts", (*Row).hasClock, func(x record) any { return x.Clock.PowerWatts }},
	{"celsius", (*Row).hasClock, func(x record) any { return x.Clock.Celsius }},
	{"line", nil, func(x record) any { return x.Line }},
	{"baseline", nil, func(x record) any { return string(x.Baseline) }},
	{"options", nil, func(x record) any { return x.OptionText }},
	{"splits", nil, func(x record) any { return x.Splits }},
	{"kv_bytes", nil, func(x record) any { return float64(x.KVBytes) }},
	{"tb_per_s", nil, func(x record) any { return x.TBs }},
	{"sparse_ratio", nil, func(x record) any { return x.SparseRatio }},
	{"nan", (*Row).hasResult, func(x record) any { return x.Result.NaN }},
	{"max_abs", (*Row).hasResult, func(x record) any { return x.Result.MaxAbs }},
	{"pass", (*Row).attends, func(x record) any { return x.Pass.String() }},
	{"layers", nil, func(x record) any { return x.Layers }},
	{"checked_keys", nil, func(x record) any { return x.Checked.Keys }},
	{"ms_mean", (*Row).timed, func(x record) any { return x.Ms.Mean }},
	{"ms_median_low", (*Row).hasInterval, func(x record) any { return x.Ms.Low }},
	{"ms_median_high", (*Row).hasInterval, func(x record) any { return x.Ms.High }},
	{"tflops_mean", (*Row).hasMean, func(x record) any { return x.MeanTFLOPs }},
	{"tflops_peak", (*Row).hasMean, func(x record) any { return x.PeakTFLOPs }},
	{"input_bytes", nil, func(x record) any { return x.InputBytes }},
	{"output_bytes", nil, func(x record) any { return x.OutputBytes }},
	{"workspace_bytes", nil, func(x record) any { return x.WorkspaceBytes }},
	{"plain_bytes", nil, func(x record) any { return x.PlainBytes }},
	{"unsteady", nil, func(x record) any { return x.Unsteady }},
	{"ceiling", nil, func(x record) any { return string(x.Ceiling) }},
	{"bytes", nil, func(x record) any { return x.Bytes }},
	{"flops", nil, func(x record) any { return x.Flops }},
	{"lse", func(r *Row) bool { return r.attends() && r.Pass == PassForward }, func(x record) any { return x.LSE }},
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

// cell is empty if the value is not known.
func (c column) cell(r *Row, info *RunInfo) string {
	if c.has != nil && !c.has(r) {
		return ""
	}
	switch v := c.of(record{r, info}).(type) {
	case float64, Number:
		if f := reflect.ValueOf(v).Float(); f != 0 || c.has != nil {
			return decimal(f)
		}
	default:
		if c.has != nil || !reflect.ValueOf(v).IsZero() {
			return fmt.Sprint(v)
		}
	}
	return ""
}

// sql is the type of the column in SQL.
func (c column) sql() string {
	if c.name == "seed" {
		return "NUMERIC(20)" // all 64 bits
	}
	switch c.of(record{&Row{Clock: &Clock{}, Result: &Result{}}, &RunInfo{}}).(type) {
	case string:
		return sqlText
	case bool:
		return "BOOLEAN"
	}
	return "DOUBLE PRECISION"
}

const sqlText = "TEXT"

// decimal prints nine significant digits at most.
func decimal(v float64) string { return strconv.FormatFloat(v, 'g', 9, 64) }

func all(*Row) bool              { return true }
func (r *Row) attends() bool     { return r.Ceiling == "" }
func (r *Row) ok() bool          { return r.Status == OK }
func (r *Row) ablated() bool     { return r.Status == Ablated }
func (r *Row) timed() bool       { return r.ok() || r.ablated() }
func (r *Row) hasInterval() bool { return r.timed() && r.Ms.High > 0 }
func (r *Row) compared() bool    { return r.Checked.Rows > 0 }
func (r *Row) hasMean() bool     { return r.ok() && r.MeanTFLOPs > 0 }
func (r *Row) hasClock() bool    { return r.Clock != nil }
func (r *Row) hasResult() bool   { return r.Result != nil }

// samplesText lists the times of all runs.
func samplesText(samples []float64) string {
	var list []string
	for _, ms := range samples {
		list = append(list, decimal(ms))
	}
	return strings.Join(list, " ")
}
