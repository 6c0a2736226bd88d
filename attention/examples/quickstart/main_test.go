package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/testdevice"
)

// The program computes the right thing on whatever driver is under test, and on the CPU
// where there is none.
func TestQuickstartRuns(t *testing.T) {
	driver := os.Getenv("VKATTN_DRIVER")
	if testdevice.Null() {
		t.Skip("a null device computes nothing")
	}
	if driver != "" && driver != "none" {
		options.Vulkan.Device = "0" // Open leaves drivers of the CPU out
	}
	out := stdout(t, main)
	switch driver {
	case "none":
		require.Contains(t, out, "tier cpu")
	case "":
		require.Contains(t, out, "tier ")
	default:
		require.NotContains(t, out, "tier cpu")
	}
	cpu, err := attention.Open(attention.Options{CPU: true})
	require.NoError(t, err)
	o, _, err := attention.Reference(attention.Config{DType: attention.F16, HeadDim: 64, Causal: attention.BottomRight},
		attention.Args{Shape: attention.Shape{B: 1, Hq: 8, Hkv: 2, Sq: 100, Sk: 300},
			Q: random(cpu, 1, 8, 100, 64), K: random(cpu, 1, 2, 300, 64), V: random(cpu, 1, 2, 300, 64), O: random(cpu, 1, 8, 100, 64)})
	require.NoError(t, err)
	var got []float64
	for _, word := range strings.Fields(strings.Trim(out[strings.LastIndex(out, "["):], "[]\n")) {
		x, err := strconv.ParseFloat(word, 64)
		require.NoError(t, err)
		got = append(got, x)
	}
	require.InDeltaSlice(t, o[:4], got, 1e-3)
}

// docs/library.md shows the program whole.
func TestLibraryPageShowsTheProgram(t *testing.T) {
	program, err := os.ReadFile("main.go")
	require.NoError(t, err)
	page, err := os.ReadFile("../../../docs/library.md")
	require.NoError(t, err)
	shown := strings.Contains(string(page), "\n```go\n"+string(program)+"```\n")
	require.True(t, shown, "the program of docs/library.md is not attention/examples/quickstart/main.go")
}

// The lines that README shows are lines of the program, in its order.
func TestREADMEShowsLinesOfTheProgram(t *testing.T) {
	program, err := os.ReadFile("main.go")
	require.NoError(t, err)
	readme, err := os.ReadFile("../../../README.md")
	require.NoError(t, err)
	_, block, found := strings.Cut(string(readme), "\n```go\n")
	require.True(t, found, "README shows no program")
	block, _, _ = strings.Cut(block, "```\n")
	code := func(line string) string {
		line, _, _ = strings.Cut(line, "//")
		return strings.TrimSpace(line)
	}
	rest := strings.Split(string(program), "\n")
	for line := range strings.Lines(block) {
		at := slices.IndexFunc(rest, func(l string) bool { return code(l) == code(line) })
		require.GreaterOrEqual(t, at, 0, "the program does not have, in this order: %s", line)
		rest = rest[at+1:]
	}
}

// Another module imports this one as README says. The module cache has all it takes,
// as this test was built from it.
func TestAnotherModuleImportsThisOne(t *testing.T) {
	if driver := os.Getenv("VKATTN_DRIVER"); driver != "" && driver != "none" {
		t.Skip("the same without a Vulkan driver")
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command here")
	}
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	program, err := os.ReadFile("main.go")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), program, 0o644))
	for _, args := range [][]string{
		{"mod", "init", "example.com/user"},
		{"mod", "edit", "-require=vkattn@v0.0.0", "-replace=vkattn=" + root},
		{"build", "-mod=mod", "-o", "user", "."},
	} {
		c := exec.Command("go", args...)
		c.Dir = dir
		c.Env = append(os.Environ(), "GOPROXY=off", "GOSUMDB=off", "GOFLAGS=", "GOWORK=off")
		out, err := c.CombinedOutput()
		require.NoError(t, err, "go %s: %s", strings.Join(args, " "), out)
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	require.Contains(t, string(readme), "    go mod edit -require=vkattn@v0.0.0 -replace=vkattn=PATH\n")
	out, err := exec.Command(filepath.Join(dir, "user")).Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "tier ")
}

// stdout is what f prints.
func stdout(t *testing.T, f func()) string {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "out")
	require.NoError(t, err)
	defer file.Close()
	was := os.Stdout
	defer func() { os.Stdout = was }()
	os.Stdout = file
	f()
	out, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	return string(out)
}
