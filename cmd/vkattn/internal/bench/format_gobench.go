package bench

import (
	"fmt"
	"io"

	"golang.org/x/perf/benchfmt"
)

// gobenchPrinter prints the format of Go benchmarks, which benchstat reads: a line for
// each run of each row, so that benchstat has all samples. A row without a speed is a
// comment.
type gobenchPrinter struct {
	to     io.Writer
	w      *benchfmt.Writer
	info   *RunInfo
	header bool
	copies bool // the unit GB/s was declared
}

func newGobenchPrinter(w io.Writer, info *RunInfo) *gobenchPrinter {
	return &gobenchPrinter{to: w, w: benchfmt.NewWriter(w), info: info}
}

func (p *gobenchPrinter) begin() error {
	if p.header {
		return nil
	}
	p.header = true
	_, err := fmt.Fprintln(p.to, "Unit TFLOP/s better=higher")
	return err
}

func (p *gobenchPrinter) Row(r *Row) error {
	if err := p.begin(); err != nil {
		return err
	}
	if r.Status != OK {
		_, err := fmt.Fprintf(p.to, "# %s: %s\n", r.Key(), r.Note())
		return err
	}
	if r.Bytes > 0 && !p.copies {
		p.copies = true
		if _, err := fmt.Fprintln(p.to, "Unit GB/s better=higher"); err != nil {
			return err
		}
	}
	res := &benchfmt.Result{Iters: 1, Name: benchfmt.Name("Attention" + r.Key().String())}
	for _, c := range []Field{{"pkg", p.info.Program}, {"version", p.info.Version}, {"cpu", p.info.CPU}, {"device", r.Device}, {"driver", p.info.Device.Driver}} {
		if c.Value != "" {
			res.SetConfig(c.Name, c.Value)
		}
	}
	for i := range res.Config {
		res.Config[i].File = true
	}
	for _, ms := range r.Samples {
		res.Values = []benchfmt.Value{{Value: ms * 1e-3, Unit: "sec/op", OrigValue: ms * 1e6, OrigUnit: "ns/op"}}
		if r.TFLOPs > 0 && ms > 0 {
			res.Values = append(res.Values, benchfmt.Value{Value: r.TFLOPs * r.Ms.Median / ms, Unit: "TFLOP/s"})
		}
		if r.Bytes > 0 && ms > 0 {
			res.Values = append(res.Values, benchfmt.Value{Value: float64(r.Bytes) / ms / 1e6, Unit: "GB/s"})
		}
		if err := p.w.Write(res); err != nil {
			return err
		}
	}
	return nil
}

func (p *gobenchPrinter) Close(*RunInfo) error { return p.begin() }
