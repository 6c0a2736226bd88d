package results

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/internal/testfifo"
)

const one = `{"device":"cpu","tier":"cpu","batch":2,"heads":1,"heads_kv":1,"seqlen_q":8,"seqlen_k":8,"headdim":8,"headdim_v":8,"causal":"none","dtype":"f16","status":"ok","ms":{"min":1,"median":2,"max":3},"tflops":4,"run":{"program":"vkattn","version":"devel","device":{"name":"cpu"}}}`

func TestReadTakesEveryFormat(t *testing.T) {
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, err := w.Write([]byte(one + "\n" + one + "\n"))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	document := `{"run":{"program":"vkattn","device":{"name":"H200"}},"rows":[` + one + `,` + one + `]}`
	for name, text := range map[string]string{"jsonl": one + "\n" + one, "gzip": zipped.String(), "json": document} {
		rows, skipped, err := Read(strings.NewReader(text))
		require.NoError(t, err, name)
		require.Empty(t, skipped)
		require.Len(t, rows, 2, name)
		require.Equal(t, 2.0, rows[0].Ms.Median)
		require.Equal(t, map[string]string{"json": "H200"}[name] == "H200", rows[1].Run.Device.Name == "H200")
	}
}

func TestRowsOfOldFiles(t *testing.T) {
	text := strings.Replace(one, `"batch"`, `"form":"copy","batch"`, 1)
	rows, _, err := Read(strings.NewReader(text))
	require.NoError(t, err)
	require.Equal(t, bench.BaselineCopy, rows[0].Baseline)
}

func TestOtherFilesAreRefusedOrSkipped(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a.jsonl": one, "b.jsonl": `{"status":"ok"}`, "c.json": "no JSON", "d.txt": one, "sub/e.json": "[]"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	files, err := Load([]string{dir})
	require.NoError(t, err)
	require.Len(t, files, 1)
	require.Equal(t, "a.jsonl", filepath.Base(files[0].Path))
	for _, name := range []string{"b.jsonl", "sub"} {
		_, err = Load([]string{filepath.Join(dir, name)})
		require.ErrorIs(t, err, ErrNoRows)
	}
	_, err = Load([]string{filepath.Join(dir, "c.json")})
	require.ErrorContains(t, err, "c.json")
	_, err = Load([]string{filepath.Join(dir, "none")})
	require.ErrorIs(t, err, os.ErrNotExist)
	_, _, err = Read(strings.NewReader(strings.Replace(one, `"none"`, `"sideways"`, 1)))
	require.ErrorContains(t, err, "row 1:")
}

// The folder of the latest results is often a link. A named pipe with the name of a result has
// no writer: opening it would wait for one.
func TestFoldersAreFollowedAndPipesAreNot(t *testing.T) {
	dir := t.TempDir()
	real := filepath.Join(dir, "2026")
	require.NoError(t, os.MkdirAll(filepath.Join(real, "sub"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(real, "sub", "a.jsonl"), []byte(one), 0o600))
	require.NoError(t, os.Symlink(filepath.Join("sub", "a.jsonl"), filepath.Join(real, "b.jsonl")))
	require.NoError(t, os.Symlink("missing.jsonl", filepath.Join(real, "c.jsonl")))
	testfifo.Make(t, filepath.Join(real, "d.jsonl"), 0o600)
	link := filepath.Join(dir, "latest")
	require.NoError(t, os.Symlink("2026", link))
	for _, path := range []string{real, link} {
		files, err := Load([]string{path}) // without waiting for the writer of a pipe
		require.NoError(t, err)
		require.Len(t, files, 2)
		require.Equal(t, filepath.Join(path, "b.jsonl"), files[0].Path)
	}
}

// A field of a newer schema may mean something else.
func TestNewerSchemasAreRefused(t *testing.T) {
	newer := fmt.Sprintf(`"run":{"schema":%d,`, bench.SchemaVersion+1)
	for name, text := range map[string]string{
		"jsonl": one + "\n" + strings.Replace(one, `"run":{`, newer, 1),
		"json":  `{` + newer + `"program":"vkattn"},"rows":[` + one + `]}`,
	} {
		_, _, err := Read(strings.NewReader(text))
		require.ErrorContains(t, err, "schema 2, this program reads up to 1", name)
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "a."+name), []byte(text), 0o600))
		_, err = Load([]string{dir})
		require.ErrorIs(t, err, ErrSchema)
	}
}

// Rows with impossible times, of a device whose timestamps are unusable, and rows that are damaged cost
// themselves and not the file.
func TestBadRowsAreLeftOut(t *testing.T) {
	replaced := func(old, with string) string {
		t.Helper()
		require.Contains(t, one, old)
		return strings.Replace(one, old, with, 1)
	}
	bad := map[string][2]string{ // what is said of a row
		"backwards":     {replaced(`"ms":`, `"samples":[1,-9.2e12],"ms":`), "row 2: a run of -9.2e+12 ms"},
		"constant":      {replaced(`"ms":`, `"samples":[0,0],"ms":`), "row 2: a run of 0 ms"},
		"too long":      {replaced(`"ms":`, `"samples":[1,1e300],"ms":`), "row 2: a run of 1e+300 ms"},
		"too short":     {replaced(`"ms":`, `"samples":[1,1e-300],"ms":`), "row 2: a run of 1e-300 ms"},
		"median":        {replaced(`"median":2`, `"median":-2`), "row 2: a median of -2 ms"},
		"no median":     {replaced(`"median":2`, `"median":0`), "row 2: a median of 0 ms"},
		"no such value": {replaced(`"none"`, `"sideways"`), "row 2: "},
		"cut off":       {one[:len(one)/2], "not the JSON"},
		"damaged":       {strings.Replace(one, ":", " ", 3), "not the JSON"},
	}
	for name, c := range bad {
		for format, text := range map[string]string{"jsonl": one + "\n" + c[0] + "\n" + one + "\n", "last": one + "\n" + c[0],
			"json": `{"run":{"program":"vkattn"},"rows":[` + one + `,` + c[0] + `,` + one + `]}`} {
			want := map[string]int{"last": 1}[format]
			if c[1] == "not the JSON" && format == "json" {
				continue // where the document goes on is not known
			}
			if want == 0 {
				want = 2
			}
			rows, skipped, err := Read(strings.NewReader(text))
			require.NoError(t, err, "%s, %s", name, format)
			require.Len(t, rows, want, "%s, %s", name, format)
			require.Len(t, skipped, 1, "%s, %s", name, format)
			require.Contains(t, skipped[0], c[1], "%s, %s", name, format)
		}
		_, _, err := Read(strings.NewReader(c[0]))
		require.Error(t, err, name)
	}
}

// A folder of committed results also has files of other commands.
func TestCommittedResults(t *testing.T) {
	dir := filepath.Join("..", "..", "..", "..", "docs", "results", "2026-11-22-h200")
	if _, err := os.Stat(dir); err != nil {
		t.Skip("no docs here")
	}
	files, err := Load([]string{dir})
	require.NoError(t, err)
	require.Greater(t, len(files), 5)
}
