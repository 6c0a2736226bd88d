package main

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every command tells the version, which is that of the newest section of the changelog.
func TestVersion(t *testing.T) {
	newest := regexp.MustCompile(`(?m)^## (\S+)`).FindSubmatch(sourceFile(t, "CHANGELOG.md"))
	require.Equal(t, version, string(newest[1]))
	_, line, _ := call("version")
	require.Contains(t, line, "vkattn "+version)
	for _, c := range (&app{}).root().Commands() {
		if c.Name() == "completion" || c.Name() == "help" || c.IsAdditionalHelpTopicCommand() {
			continue
		}
		stdout, _ := succeeds(t, c.Name(), "--version")
		require.Equal(t, line, stdout, c.Name())
	}
	_, stdout, _ := call("--version")
	require.Equal(t, line, stdout)
	var b build
	stdout, _ = succeeds(t, "version", "--json")
	require.NoError(t, json.Unmarshal([]byte(stdout), &b))
	require.Equal(t, version, b.Version)
	require.NotEmpty(t, b.Go)
}

// The manual has a page of every command and topic, with every flag of the command.
func TestManualPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	succeeds(t, "man", dir)
	for name, has := range map[string]string{"vkattn": "vkattn-bench(1)", "vkattn-bench": "--max-noise", "vkattn-run": "--block-table",
		"vkattn-columns": "95 % interval", "vkattn-timing": "--warm-cache"} {
		text := readFile(t, filepath.Join(dir, name+".1"))
		require.Contains(t, strings.ReplaceAll(string(text), `\-`, "-"), has, name)
	}
	refused(t, exitInput, "man takes one directory, not 0", "man")
	refused(t, exitInput, "not a directory", "man", filepath.Join(dir, "vkattn.1", "x"))
}
