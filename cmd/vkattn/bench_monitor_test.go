package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/monitor"
)

func TestResultsNameBuildAndMachine(t *testing.T) {
	code, stdout, stderr := call(tiny("--device", "cpu", "-o", "json")...)
	require.Equal(t, exitOK, code, stderr)
	var doc struct{ Run bench.RunInfo }
	require.NoError(t, json.Unmarshal([]byte(stdout), &doc))
	require.Equal(t, runtime.Version(), doc.Run.Go)
	require.Contains(t, doc.Run.OS, runtime.GOARCH)
	require.NotEmpty(t, doc.Run.CPU)
}

func TestRowsNameTheirModules(t *testing.T) {
	driver(t)
	code, stdout, stderr := call(tiny("--tier", "scalar", "-o", "json")...)
	require.Equal(t, exitOK, code, stderr)
	var doc struct{ Rows []bench.Row }
	require.NoError(t, json.Unmarshal([]byte(stdout), &doc))
	require.NotEmpty(t, doc.Rows[0].SPIRV)
	for _, hash := range doc.Rows[0].SPIRV {
		require.Len(t, hash, 64)
	}
}

// Without an NVIDIA GPU the file has its header, and the command says why.
func TestMonitorWithoutClocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "clocks.csv")
	code, _, stderr := call(tiny("--device", "cpu", "--monitor", path)...)
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stderr, "no clocks of this device can be read")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, monitor.CSVHeader, string(text))
	refused(t, exitInput, "--monitor", tiny("--device", "cpu", "--monitor", filepath.Join(t.TempDir(), "none", "clocks.csv"))...)
}
