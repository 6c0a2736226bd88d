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
	"golang.org/x/sys/unix"

	"vkattn/cmd/vkattn/internal/bench"
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
		rows, err := Read(strings.NewReader(text))
		require.NoError(t, err, name)
		require.Len(t, rows, 2, name)
		require.Equal(t, 2.0, rows[0].Ms.Median)
		require.Equal(t, map[string]string{"json": "H200"}[name] == "H200", rows[1].Run.Device.Name == "H200")
	}
}

func TestRowsOfOldFiles(t *testing.T) {
	text := strings.Replace(one, `"batch"`, `"form":"copy","batch"`, 1)
	rows, err := Read(strings.NewReader(text))
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
	_, err = Read(strings.NewReader(strings.Replace(one, `"none"`, `"sideways"`, 1)))
	require.ErrorContains(t, err, "row:")
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
	require.NoError(t, unix.Mkfifo(filepath.Join(real, "d.jsonl"), 0o600))
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
		_, err := Read(strings.NewReader(text))
		require.ErrorContains(t, err, "schema 2, this program reads up to 1", name)
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "a."+name), []byte(text), 0o600))
		_, err = Load([]string{dir})
		require.ErrorIs(t, err, ErrSchema)
	}
}

func TestImpossibleTimesAreRefused(t *testing.T) {
	for _, ms := range []string{"-1", "1e300", "1e-300"} {
		_, err := Read(strings.NewReader(strings.Replace(one, `"ms":`, `"samples":[1,`+ms+`],"ms":`, 1)))
		require.ErrorContains(t, err, "row: a run of "+ms[:2], ms)
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
