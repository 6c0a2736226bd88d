package main

import (
	"encoding/json"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/monitor"
)

func TestResultsNameBuildAndMachine(t *testing.T) {
	stdout, _ := succeeds(t, tiny("--device", "cpu", "-o", "json")...)
	var doc struct{ Run bench.RunInfo }
	require.NoError(t, json.Unmarshal([]byte(stdout), &doc))
	require.Equal(t, runtime.Version(), doc.Run.Go)
	require.Contains(t, doc.Run.OS, runtime.GOARCH)
	require.NotEmpty(t, doc.Run.CPU)
}

func TestRowsNameTheirModules(t *testing.T) {
	driver(t)
	stdout, _ := succeeds(t, tiny("--tier", "scalar", "-o", "json")...)
	rows := documentRows[bench.Row](t, stdout)
	require.NotEmpty(t, rows[0].SPIRV)
	for _, hash := range rows[0].SPIRV {
		require.Len(t, hash, 64)
	}
}

// Without an NVIDIA GPU the file has its header, and the command says why.
func TestMonitorWithoutClocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "clocks.csv")
	_, stderr := succeeds(t, tiny("--device", "cpu", "--monitor", path)...)
	require.Contains(t, stderr, "no clocks of this device can be read")
	text := readFile(t, path)
	require.Equal(t, monitor.CSVHeader, string(text))
	refused(t, exitInput, "--monitor", tiny("--device", "cpu", "--monitor", filepath.Join(t.TempDir(), "none", "clocks.csv"))...)
}
