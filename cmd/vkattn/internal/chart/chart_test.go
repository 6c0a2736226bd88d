package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/cmd/vkattn/internal/results"
)

func row(tier string, length int, tflops float64) *bench.Row {
	return &bench.Row{Tier: tier, Call: fields.Call{B: 1, Hq: 8, Hkv: 8, Sq: length, Sk: length, D: 64, Dv: 64}, Status: bench.OK, TFLOPs: tflops,
		Ms: bench.Summary{Median: 1}}
}

func decodeRow(tier string, keys int, tbs float64) *bench.Row {
	r := row(tier, 1, 1)
	r.Sk, r.TBs, r.KVBytes = keys, tbs, uint64(8*keys*128*2)
	return r
}

func kinds(figures []Figure) (out []Kind) {
	for _, f := range figures {
		out = append(out, f.Kind)
	}
	return out
}

func TestRowsGiveRiseToTheirFigures(t *testing.T) {
	step := func(v string, tflops float64) *bench.Row {
		r := row("coopmat2", 1024, tflops)
		r.Variant = v
		return r
	}
	failed := row("scalar", 2048, 0)
	failed.Status = bench.Fail
	rows := []*bench.Row{row("coopmat2", 2048, 200), row("coopmat2", 1024, 100), row("flash", 1024, 90), failed,
		step("v1", 10), step("v2", 20), decodeRow("coopmat2", 8192, 3.5), decodeRow("flash", 8192, 3)}
	figures := Figures(rows, Ceilings{})
	require.Equal(t, []Kind{Speed, Ladder, Bandwidth}, kinds(figures))
	speed := figures[0].Panels
	require.Len(t, speed, 1)
	require.Equal(t, "head dim 64, f16, batch 1, 8 heads", speed[0].Title)
	require.Equal(t, []Series{{Name: "coopmat2", X: []float64{1024, 2048}, Y: []float64{100, 200}, unsteady: make([]bool, 2)}, {Name: "flash", X: []float64{1024}, Y: []float64{90}, unsteady: make([]bool, 1)}}, speed[0].Series)
	ladder := figures[1].Panels[0]
	require.Equal(t, []string{"v1", "v2"}, ladder.Ticks)
	require.Equal(t, []Series{{Name: "vkattn", X: []float64{0, 1}, Y: []float64{10, 20}, unsteady: make([]bool, 2)}, {Name: "coopmat2", Y: []float64{100}, Level: true}, {Name: "flash", Y: []float64{90}, Level: true}}, ladder.Series)
	require.Equal(t, []string{"1 × 8192\n8 heads\nd 64"}, figures[2].Panels[0].Ticks)

	figures = Figures(rows, Ceilings{TFLOPs: 600, TBs: 4})
	require.Equal(t, Kinds, kinds(figures))
	require.True(t, figures[0].Panels[0].Series[2].Level)
	require.Len(t, Only(figures, []string{"flash"}), 4)
	require.Empty(t, Only(figures, []string{"nobody"}))
	require.Empty(t, Figures([]*bench.Row{row("coopmat2", 1024, 100)}, Ceilings{}), "one length is no line")
}

// Rows of suite ceilings are lines of the panels of their storage type and device.
func TestMeasuredCeilings(t *testing.T) {
	limit := func(c bench.Ceiling, dtype attention.DType, device string, tflops, tbs float64) *bench.Row {
		return &bench.Row{Device: device, Ceiling: c, Call: fields.Call{DType: dtype}, Status: bench.OK, TFLOPs: tflops, TBs: tbs}
	}
	gpu := row("coopmat2", 1024, 100).Device
	var rows []*bench.Row
	for _, dtype := range []attention.DType{attention.F16, attention.F32, attention.BF16} {
		for _, length := range []int{1024, 2048} {
			r := row("coopmat2", length, 10)
			r.DType, r.Ms.Median = dtype, 1
			rows = append(rows, r)
		}
	}
	unsupported := limit(bench.CeilingProducts, attention.BF16, gpu, 0, 0)
	unsupported.Status = bench.Unsupported
	rows = append(rows, limit(bench.CeilingProducts, attention.F16, gpu, 600, 0), limit(bench.CeilingFMA, attention.F32, gpu, 50, 0), unsupported,
		limit(bench.CeilingCopy, 0, gpu, 0, 4), limit(bench.CeilingCopy, 0, "another", 0, 9), limit(bench.CeilingProducts, attention.F16, "another", 999, 0))
	peaks := func(c Ceilings) (out []string) {
		for _, p := range Figures(rows, c)[0].Panels {
			last := p.Series[len(p.Series)-1]
			require.True(t, last.Level)
			out = append(out, fmt.Sprintf("%s %v", last.Name, last.Y[0]))
		}
		return out
	}
	// A device without cooperative matrices of bf16 multiplies it in float32.
	require.Equal(t, []string{peakName + " 600", fmaName + " 50", fmaName + " 50"}, peaks(Ceilings{}))
	require.Equal(t, []string{peakName + " 7", peakName + " 7", peakName + " 7"}, peaks(Ceilings{TFLOPs: 7}), "what is given counts")
	figures := Figures(rows, Ceilings{})
	require.Equal(t, []Kind{Speed, Roofline}, kinds(figures))
	roof := figures[1].Panels[0].Series
	require.Equal(t, []float64{roof[len(roof)-1].X[0] * 4, 600, 600}, roof[len(roof)-1].Y)
}

// Rows of one implementation on several devices are several lines. --series takes all of them.
func TestDevicesAreNotMixed(t *testing.T) {
	on := func(device string, r *bench.Row) *bench.Row {
		r.Device = device
		return r
	}
	step := row("coopmat2", 512, 9)
	step.Variant = "v1"
	other := *step
	rows := []*bench.Row{on("A", row("coopmat2", 512, 1)), on("A", row("coopmat2", 1024, 2)), on("B", row("coopmat2", 512, 3)), on("B", row("coopmat2", 1024, 4)),
		on("A", row("flash", 512, 5)), on("cpu", row("cpu", 512, 6)), on("A", decodeRow("coopmat2", 64, 1)), on("B", decodeRow("coopmat2", 64, 2)), on("A", step), on("B", &other)}
	figures := Figures(rows, Ceilings{})
	require.Equal(t, []Kind{Speed, Ladder, Bandwidth}, kinds(figures))
	series := map[string][]float64{}
	for _, s := range figures[0].Panels[0].Series {
		series[s.Name] = s.Y
	}
	require.Equal(t, map[string][]float64{"coopmat2, A": {1, 2}, "coopmat2, B": {3, 4}, "flash": {5}, "cpu": {6}}, series)
	require.Len(t, figures[1].Panels, 2, "a ladder of each device")
	require.Len(t, figures[2].Panels[0].Series, 2)
	only := Only(figures, []string{"coopmat2"})
	require.Len(t, only[0].Panels[0].Series, 2)
}

// Problems that differ in more than length have panels of their own.
func TestPanelsDoNotMixProblems(t *testing.T) {
	var rows []*bench.Row
	for _, length := range []int{512, 1024} {
		masked, wide, grouped, b16, packed := row("x", length, 1), row("x", length, 1), row("x", length, 1), row("x", length, 1), row("x", length, 1)
		masked.Causal, wide.D, grouped.Hkv, b16.DType, packed.OptionText = attention.TopLeft, 128, 2, attention.BF16, "alibi"
		rows = append(rows, row("x", length, 1), masked, wide, grouped, b16, packed)
	}
	require.Len(t, Figures(rows, Ceilings{})[0].Panels, 6)
}

// The lines of a ladder are other implementations of its problem: not of another pass, of calls
// with options, or of other lengths of keys.
func TestLinesOfALadderHaveItsProblem(t *testing.T) {
	step, backward, withLSE, longer := row("coopmat2", 1024, 3), row("coopmat2", 1024, 4), row("coopmat2", 1024, 5), row("coopmat2", 1024, 6)
	step.Variant, backward.Pass, withLSE.OptionText, longer.Sk = "v1", bench.PassBackward, "LSE", 2048
	figures := Figures([]*bench.Row{step, row("flash", 1024, 2), backward, withLSE, longer}, Ceilings{})
	require.Equal(t, []Kind{Ladder}, kinds(figures))
	require.Len(t, figures[0].Panels, 1)
	var names []string
	for _, s := range figures[0].Panels[0].Series {
		names = append(names, s.Name)
	}
	require.Equal(t, []string{"vkattn", "flash"}, names)
	require.Equal(t, "head dim 64, f16, length 1024, batch 1, 8 heads", figures[0].Panels[0].Title)
}

func TestManyProblemsOfDecodeHaveSeveralPanels(t *testing.T) {
	var rows []*bench.Row
	for i := range 2*mostBars + 1 {
		rows = append(rows, decodeRow("coopmat2", 1024+i, 1), decodeRow("flash", 1024+i, 1))
	}
	panels := Figures(rows, Ceilings{})[0].Panels
	require.Len(t, panels, 3)
	require.Len(t, panels[2].Ticks, 1)
	require.Len(t, panels[1].Series, 2)
}

func TestPicturesAreValid(t *testing.T) {
	rows := []*bench.Row{row("a <b> & c", 1024, 100), row("a <b> & c", 2048, 200), decodeRow("coopmat2", 8192, 3.5)}
	figures := Figures(rows, Ceilings{TFLOPs: 600, TBs: 4})
	var svg, raster bytes.Buffer
	require.NoError(t, SVG(&svg, figures, 2, `caption < & "`))
	for d := xml.NewDecoder(&svg); ; {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
	require.NoError(t, PNG(&raster, figures, 2, ""))
	picture, err := png.Decode(&raster)
	require.NoError(t, err)
	require.Greater(t, picture.Bounds().Dx(), 800)
	inline, err := Inline(figures[0], 1)
	require.NoError(t, err)
	require.Contains(t, inline, "currentColor")
	require.NotContains(t, inline, "<b>")
	require.NotContains(t, inline, hex(ink))
	require.NoError(t, SVG(io.Discard, nil, 2, "no figures"))
}

// A ceiling far above the data is named in the panel. One that is near has a line, and the axis reaches it.
func TestACeilingDoesNotFlattenTheData(t *testing.T) {
	rows := []*bench.Row{row("cpu", 1024, 0.5), row("cpu", 2048, 1)}
	for _, c := range []struct {
		peak, top float64
		above     bool
	}{{1.5, 1.5, false}, {600, 1, true}} {
		figure := Figures(rows, Ceilings{TFLOPs: c.peak})[0]
		require.Equal(t, c.top, figure.Panels[0].Top)
		svg, err := Inline(figure, 1)
		require.NoError(t, err)
		require.Equal(t, c.above, strings.Contains(svg, ">above: coopmat peak, 600 TFLOP/s<"), svg)
		require.Equal(t, !c.above, strings.Contains(svg, ">coopmat peak<"), "in the legend")
	}
}

// Two series differ in color by 0.1 and more in Oklab, also for readers who lack one kind of cones (Machado and others,
// 2009, severity 1), or in the shape of their points. All stand out from a dark page.
func TestColorsDifferForTheColorBlind(t *testing.T) {
	linear := func(v uint8) float64 { return math.Pow((float64(v)/255+0.055)/1.055, 2.4) } // all are above 0.04
	type vector [3]float64
	times := func(m [3]vector, v vector) (out vector) {
		for i := range m {
			for j := range v {
				out[i] += m[i][j] * v[j]
			}
		}
		return out
	}
	oklab := func(v vector) vector {
		lms := times([3]vector{{0.4122, 0.5363, 0.0514}, {0.2119, 0.6807, 0.1074}, {0.0883, 0.2817, 0.6300}}, v)
		for i := range lms {
			lms[i] = math.Cbrt(max(0, lms[i]))
		}
		return times([3]vector{{0.2105, 0.7936, -0.0041}, {1.9780, -2.4286, 0.4506}, {0.0259, 0.7828, -0.8087}}, lms)
	}
	eyes := [][3]vector{{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
		{{0.1523, 1.0526, -0.2049}, {0.1145, 0.7863, 0.0992}, {-0.0039, -0.0481, 1.0520}},
		{{0.3673, 0.8606, -0.2280}, {0.2801, 0.6725, 0.0474}, {-0.0118, 0.0429, 0.9690}},
		{{1.2555, -0.0767, -0.1788}, {-0.0784, 0.9308, 0.1476}, {0.0047, 0.6914, 0.3039}}}
	for a, x := range known {
		if x.color == ink {
			continue
		}
		u := vector{linear(x.color.R), linear(x.color.G), linear(x.color.B)}
		require.Greater(t, (0.2126*u[0]+0.7152*u[1]+0.0722*u[2]+0.05)/0.06, 3.0, "contrast of %s", a)
		for b, y := range known {
			if y.color == ink || x.color == y.color && x.shape != y.shape || x.label == y.label {
				continue
			}
			if x.color == y.color {
				// Steps of the kernel, or one kernel of tier cuda: a picture has one of the two.
				require.Contains(t, []string{"vkattn", "coopmat2", "cuda", "cuda fa3"}, a, "%s looks like %s", a, b)
				continue
			}
			v := vector{linear(y.color.R), linear(y.color.G), linear(y.color.B)}
			for _, eye := range eyes {
				p, q := oklab(times(eye, u)), oklab(times(eye, v))
				require.Greater(t, math.Sqrt((p[0]-q[0])*(p[0]-q[0])+(p[1]-q[1])*(p[1]-q[1])+(p[2]-q[2])*(p[2]-q[2])), 0.1, "%s and %s", a, b)
			}
		}
	}
}

func TestTicksAreRoundNumbers(t *testing.T) {
	for _, high := range []float64{0.03, 1, 7, 42, 750, 1e6} {
		ticks := steps(0, high)
		require.GreaterOrEqual(t, len(ticks), 3, high)
		require.LessOrEqual(t, len(ticks), 8, high)
		require.Less(t, len(ticks[len(ticks)-1].Label), 7)
	}
}

// A picture says how many of its rows have a time that may be off.
func TestAPictureSaysThatTheClockWasNotSteady(t *testing.T) {
	row := func(length int, tflops float64, unsteady string) *bench.Row {
		r := row("coopmat2", length, tflops)
		r.Unsteady = unsteady
		return r
	}
	draw := func(caption string, rows ...*bench.Row) string {
		figures := slices.DeleteFunc(Figures(rows, Ceilings{}), func(f Figure) bool { return f.Kind != Speed })
		var svg bytes.Buffer
		require.NoError(t, SVG(&svg, figures, 2, caption))
		return svg.String()
	}
	const note = "Ringed: 1 of 2 rows, in which the GPU was throttled or its clock changed."
	rings := func(picture string) int { return strings.Count(picture, "stroke:"+hex(ink)) }
	require.Equal(t, rings(draw("", row(1024, 1, ""), row(2048, 4, "")))+1, rings(draw("", row(1024, 1, ""), row(2048, 4, "power cap"))))
	require.NotContains(t, draw("", row(1024, 1, ""), row(2048, 4, "")), "throttled")
	require.Contains(t, draw("", row(1024, 1, ""), row(2048, 4, "power cap")), note)
	both := draw("Forward.", row(1024, 1, ""), row(2048, 4, "power cap"))
	require.Contains(t, both, ">Forward.<")
	require.Contains(t, both, ">"+note+"<")
	require.NotContains(t, draw("", row(1024, 1, "power cap"), row(1024, 1, ""), row(2048, 4, "")), "throttled", "the last run of a problem counts")
}

// number matches the numbers of a picture, whose last digits depend on the machine.
var number = regexp.MustCompile(`-?\d+(\.\d+)?`)

// The committed pictures show the committed rows. "make pictures" draws them.
func TestPicturesAreUpToDate(t *testing.T) {
	root := filepath.Join("..", "..", "..", "..", "docs")
	for _, p := range []struct {
		picture, rows, caption string
		kind                   Kind
		series                 []string
	}{
		{"forward.svg", "2026-11-27-h200/cuda-forward-race.jsonl.gz", "Forward, f16, NVIDIA H200. Within a panel all took turns in one process, each round in another order.", Speed, nil},
		{"decode.svg", "2026-11-22-h200/decode.jsonl.gz", "Decode, f16, NVIDIA H200.", Bandwidth, []string{"coopmat2", "flash", "cudnn", "torch-copy"}},
		{"ladder.svg", "2026-11-20-h200/ladder.jsonl", "Forward, f16, NVIDIA H200.", Ladder, nil},
	} {
		t.Run(p.picture, func(t *testing.T) {
			files, err := results.Load([]string{filepath.Join(root, "results", p.rows)})
			if errors.Is(err, fs.ErrNotExist) {
				t.Skip("no docs here")
			}
			require.NoError(t, err)
			var figures []Figure
			for _, f := range Figures(files[0].Bench(), Ceilings{}) {
				if f.Kind == p.kind {
					figures = append(figures, f)
				}
			}
			var drawn bytes.Buffer
			require.NoError(t, SVG(&drawn, Only(figures, p.series), 2, p.caption))
			committed, err := os.ReadFile(filepath.Join(root, "img", p.picture))
			require.NoError(t, err)
			const old = "docs/img/%s is old: make pictures"
			require.Equal(t, number.ReplaceAllString(string(committed), "0"), number.ReplaceAllString(drawn.String(), "0"), old, p.picture)
			want := number.FindAllString(drawn.String(), -1)
			for i, text := range number.FindAllString(string(committed), -1) {
				is, err := strconv.ParseFloat(text, 64)
				require.NoError(t, err)
				should, err := strconv.ParseFloat(want[i], 64)
				require.NoError(t, err)
				require.LessOrEqual(t, math.Abs(is-should), 0.02, old, p.picture)
			}
		})
	}
}
