package bench

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"math"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/perf/benchfmt"
	"golang.org/x/perf/benchproc"

	"vkattn/attention"
)

// printed are rows in a format.
func printed(t *testing.T, f Format, rows []*Row) string {
	t.Helper()
	var out bytes.Buffer
	info := &RunInfo{Program: "vkattn", Version: "test", CPU: "some CPU: 2 threads", Device: Device{Driver: "Example driver 1.2"}}
	format, wide := strings.CutPrefix(string(f), "wide ")
	info.Planned, info.Wide = planned(rows), wide
	p := NewPrinter(Format(format), &out, info)
	for _, r := range rows {
		require.NoError(t, p.Row(r))
	}
	require.NoError(t, p.Close(info))
	return out.String()
}

// planned are the rows without results.
func planned(rows []*Row) (list []*Row) {
	for _, r := range rows {
		p := *r
		p.Status, p.Reason, p.Ms, p.TFLOPs, p.AblationTFLOPs, p.TBs = "", "", Summary{}, 0, 0, 0
		p.Checked, p.Result, p.Versus, p.Memory, p.Tile = Checked{}, nil, nil, 0, ""
		list = append(list, &p)
	}
	return list
}

// benchstat reads every run of every row, and groups by the fields of the names.
func TestBenchstatReadsGobench(t *testing.T) {
	rows := slices.Concat(exampleRows(), servingRows(), decodeRows(), ceilingRows())
	want, samples := map[string]bool{}, 0
	for _, r := range rows {
		if r.Status == OK {
			want[r.Key().String()] = true
			samples += len(r.Samples)
		}
	}
	var parser, other benchproc.ProjectionParser // a key of one projection is left out of the names of the same parser
	keys, err := parser.Parse(".fullname", nil)
	require.NoError(t, err)
	dtype, err := other.Parse("/dtype", nil)
	require.NoError(t, err)
	reader := benchfmt.NewReader(strings.NewReader(printed(t, "gobench", rows)), "rows.gobench")
	got, read := map[string]bool{}, 0
	for reader.Scan() {
		switch res := reader.Result().(type) {
		case *benchfmt.SyntaxError:
			t.Fatal(res)
		case *benchfmt.Result:
			name := keys.Project(res).StringValues()
			got[strings.TrimPrefix(name, "Attention")] = true
			if !strings.Contains(name, "ceiling=") { // some of which have no type
				require.Equal(t, "f16", dtype.Project(res).StringValues())
			}
			require.Equal(t, "Example GPU", res.GetConfig("device"))
			ns, ok := res.Value("sec/op")
			require.True(t, ok)
			require.Positive(t, ns)
			read++
		}
	}
	require.NoError(t, reader.Err())
	require.Equal(t, want, got)
	require.Equal(t, samples, read)
}

// Names of rows that differ in anything that is computed differ.
func TestKeysOfRowsDiffer(t *testing.T) {
	seen := map[string]string{}
	for _, s := range Suites {
		dtypes := s.DTypes
		if len(dtypes) == 0 {
			dtypes = []attention.DType{attention.F16}
		}
		list := s.Problems(dtypes)
		list, err := Sweep{}.OfSuite(list, s.Passes)
		require.NoError(t, err)
		for _, p := range list {
			key := p.row("d").Key().String()
			p.Line, p.Layers = "", 0
			text := p.String()
			if was, ok := seen[key]; ok {
				require.Equal(t, was, text, key)
			}
			seen[key] = text
		}
	}
}

func TestSQLiteReadsSQL(t *testing.T) {
	script := printed(t, "sql", append(exampleRows(), &Row{Status: Fail, Reason: "it's wrong; DROP TABLE vkattn_bench"}))
	require.Equal(t, 4, strings.Count(script, "INSERT INTO"))
	require.Contains(t, script, "'it''s wrong; DROP TABLE vkattn_bench'")
	require.Contains(t, printed(t, "sql", []*Row{{Status: Fail, Reason: "the largest error is +Inf"}}), "'the largest error is +Inf'")
	python, err := exec.LookPath("python3")
	if err != nil || exec.Command(python, "-c", "import sqlite3").Run() != nil {
		t.Skip("no python3 with sqlite3")
	}
	c := exec.Command(python, "-c", `import sqlite3, sys
db = sqlite3.connect(":memory:")
script = sys.stdin.read()
db.executescript(script + script)
print(db.execute("SELECT count(*), sum(ms_median), typeof(max(tflops)), sum(peer) FROM vkattn_bench").fetchone())`)
	c.Stdin = strings.NewReader(script)
	out, err := c.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "(8, 4.0, 'real', 0)\n", string(out))
}

// Errors of wrong results that are not finite are no small numbers in any format.
func TestErrorsThatAreNotFiniteAreReadBack(t *testing.T) {
	var rows []*Row
	for i, e := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0.25} {
		rows = append(rows, &Row{Status: Fail, Checked: Checked{Rows: 1 + i, MaxError: Number(e), NMSE: Number(e)},
			Result: &Result{MaxAbs: Number(e), From: map[string]Number{"by-mask": Number(e)}}})
	}
	lines := strings.Split(strings.TrimSpace(printed(t, "jsonl", rows)), "\n")
	require.Len(t, lines, len(rows))
	for i, line := range lines {
		var back Row
		require.NoError(t, json.Unmarshal([]byte(line), &back))
		for _, n := range []Number{back.Checked.MaxError, back.Checked.NMSE, back.Result.MaxAbs, back.Result.From["by-mask"]} {
			require.Equal(t, i < 3, math.IsNaN(float64(n)), "%v: %s", n, line)
		}
	}
	require.Equal(t, Number(0.25), rows[3].Checked.MaxError)

	records, err := csv.NewReader(strings.NewReader(printed(t, "csv", rows))).ReadAll()
	require.NoError(t, err)
	at := slices.Index(records[0], "max_error")
	for i, want := range []string{"NaN", "+Inf", "-Inf", "0.25"} {
		require.Equal(t, want, records[1+i][at])
	}
	require.Regexp(t, `(?m)^\|.*\bNaN\b`, printed(t, "wide md", rows))

	python, err := exec.LookPath("python3")
	if err != nil || exec.Command(python, "-c", "import sqlite3").Run() != nil {
		t.Skip("no python3 with sqlite3")
	}
	// A program with a column more, or with the columns in another order, made the table.
	c := exec.Command(python, "-c", `import sqlite3, sys
db = sqlite3.connect(":memory:")
create, insert = sys.stdin.read().split(";\n", 1)
name, columns = create.split("(\n", 1)
db.execute(name + '("newer" TEXT, "max_error" DOUBLE PRECISION, ' + columns.replace('"max_error" DOUBLE PRECISION,', ''))
db.executescript(insert)
print([float(v) for v, in db.execute("SELECT max_error FROM vkattn_bench ORDER BY checked_rows")])`)
	c.Stdin = strings.NewReader(printed(t, "sql", rows))
	out, err := c.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "[nan, inf, -inf, 0.25]\n", string(out))
}
