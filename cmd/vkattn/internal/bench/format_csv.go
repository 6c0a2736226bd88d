package bench

import (
	"encoding/csv"
	"io"
	"slices"
	"strconv"
	"strings"
)

// csvColumns is the header of a CSV file.
var csvColumns = []string{"device", "driver", "version", "seed", "tier", "tile", "batch", "heads", "heads_kv", "seqlen_q", "seqlen_k", "headdim", "headdim_v",
	"causal", "dtype", "status", "reason", "ms_min", "ms_median", "ms_max", "samples", "tflops", "max_error", "nmse", "checked_rows", "memory_bytes",
	"peer", "variant", "ablation", "ablation_tflops", "timer", "sets", "samples_ms", "sm_mhz", "memory_mhz", "power_watts", "celsius",
	"line", "baseline", "options", "splits", "kv_bytes", "tb_per_s", "sparse_ratio", "nan", "max_abs", "pass", "layers", "checked_keys",
	"ms_mean", "ms_median_low", "ms_median_high", "tflops_mean", "tflops_peak",
	"input_bytes", "output_bytes", "workspace_bytes", "plain_bytes", "unsteady", "ceiling", "bytes", "flops", "lse"}

// csvPrinter adds a column "x NAME" for each peer and baseline of the run.
type csvPrinter struct {
	w      *csv.Writer
	info   *RunInfo
	header bool
}

func newCSVPrinter(w io.Writer, info *RunInfo) *csvPrinter {
	return &csvPrinter{w: csv.NewWriter(w), info: info}
}

func (p *csvPrinter) begin() error {
	if p.header {
		return nil
	}
	p.header = true
	columns := slices.Clone(csvColumns)
	for _, other := range p.info.others() {
		columns = append(columns, "x "+other)
	}
	return p.w.Write(columns)
}

func (p *csvPrinter) Row(r *Row) error {
	if err := p.begin(); err != nil {
		return err
	}
	record := csvRecord(r, p.info)
	for _, other := range p.info.others() {
		x, ok := r.Versus[other]
		record = append(record, number(x, ok && r.Status == OK))
	}
	if err := p.w.Write(record); err != nil {
		return err
	}
	p.w.Flush()
	return p.w.Error()
}

// number prints a number, or nothing if it is not known.
func number(v float64, known bool) string {
	if !known {
		return ""
	}
	return strconv.FormatFloat(v, 'g', 9, 64)
}

// lseText says whether a forward pass returned LSE. It is empty for other rows.
func lseText(r *Row) string {
	if r.Pass != PassForward {
		return ""
	}
	return attentionText(r, strconv.FormatBool(r.LSE))
}

// bytesField prints a size, or nothing if it is not known.
func bytesField(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// csvRecord has a field for each of csvColumns.
func csvRecord(r *Row, info *RunInfo) []string {
	timed, ablated, compared := r.Status == OK, r.Status == Ablated, r.Checked.Rows > 0
	record := []string{r.Device, info.Device.Driver, info.Version, strconv.FormatUint(info.Seed, 10), r.Name(), r.Tile}
	for _, n := range []int{r.B, r.Hq, r.Hkv, r.Sq, r.Sk, r.D, r.Dv} {
		record = append(record, attentionText(r, strconv.Itoa(n)))
	}
	record = append(record, attentionText(r, r.Causal.String()), r.DTypeText(), string(r.Status), r.Reason,
		number(r.Ms.Min, timed || ablated), number(r.Ms.Median, timed || ablated), number(r.Ms.Max, timed || ablated), strconv.Itoa(len(r.Samples)),
		number(r.TFLOPs, timed), number(float64(r.Checked.MaxError), compared), number(float64(r.Checked.NMSE), compared),
		strconv.Itoa(r.Checked.Rows), strconv.FormatUint(r.Memory, 10),
		strconv.FormatBool(r.Peer), r.Variant, r.Ablation, number(r.AblationTFLOPs, ablated), r.Timer, strconv.Itoa(r.Sets))
	var samples []string
	if timed || ablated {
		for _, ms := range r.Samples {
			samples = append(samples, number(ms, true))
		}
	}
	record = append(record, strings.Join(samples, " "))
	var clock Clock
	if r.Clock != nil {
		clock = *r.Clock
	}
	for _, v := range []float64{float64(clock.SMMHz), float64(clock.MemoryMHz), clock.PowerWatts, float64(clock.Celsius)} {
		record = append(record, number(v, r.Clock != nil))
	}
	var result Result
	if r.Result != nil {
		result = *r.Result
	}
	record = append(record, r.Line, string(r.Baseline), r.OptionText, number(float64(r.Splits), r.Splits > 0), number(float64(r.KVBytes), r.KVBytes > 0),
		number(r.TBs, r.TBs > 0), number(r.SparseRatio, r.SparseRatio > 0), number(float64(result.NaN), r.Result != nil), number(float64(result.MaxAbs), r.Result != nil),
		attentionText(r, r.Pass.String()), number(float64(r.Layers), r.Layers > 0), number(float64(r.Checked.Keys), r.Checked.Keys > 0),
		number(r.Ms.Mean, timed || ablated), number(r.Ms.Low, (timed || ablated) && r.Ms.High > 0), number(r.Ms.High, (timed || ablated) && r.Ms.High > 0),
		number(r.MeanTFLOPs, timed && r.MeanTFLOPs > 0), number(r.PeakTFLOPs, timed && r.PeakTFLOPs > 0),
		bytesField(r.InputBytes), bytesField(r.OutputBytes), bytesField(r.WorkspaceBytes), bytesField(r.PlainBytes), r.Unsteady,
		string(r.Ceiling), bytesField(r.Bytes), number(r.Flops, r.Flops > 0), lseText(r))
	return record
}

func (p *csvPrinter) Close(*RunInfo) error {
	err := p.begin()
	p.w.Flush()
	if err == nil {
		err = p.w.Error()
	}
	return err
}
