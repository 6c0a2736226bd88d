package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// Every command has examples, and the flags of the examples exist.
func TestExamplesParse(t *testing.T) {
	root := (&app{}).root()
	for _, c := range root.Commands() {
		if c.Name() == "completion" || c.Name() == "help" || c.IsAdditionalHelpTopicCommand() { // cobra's own, and pages
			continue
		}
		require.Contains(t, c.Example, "vkattn "+c.Name())
		for _, line := range strings.Split(c.Example, "\n") {
			_, line, ok := strings.Cut(line, "vkattn ")
			require.True(t, ok, line)
			line, _, _ = strings.Cut(line, " #")
			line = strings.ReplaceAll(line, `"python3 scripts/peer_torch.py flash"`, "python3")
			words := strings.Fields(line)
			fresh, _, err := (&app{}).root().Find(words)
			require.NoError(t, err)
			require.NoError(t, fresh.ParseFlags(words[1:]), line)
		}
	}
}

func TestTheShellCompletes(t *testing.T) {
	complete := func(args ...string) []string {
		stdout, _ := succeeds(t, append([]string{cobra.ShellCompNoDescRequestCmd}, args...)...)
		lines := strings.Split(strings.TrimSpace(stdout), "\n")
		return lines[:len(lines)-1] // the last is a directive
	}
	require.Equal(t, []string{"bench"}, complete("ben"))
	require.Contains(t, complete("bench", "--max"), "--max-noise")
	require.Equal(t, []string{"llama3-8b", "llama3-70b"}, complete("bench", "--preset", "llama"))
	require.Equal(t, []string{"gpt3,llama3-8b"}, complete("bench", "--preset", "gpt3,llama3-8"))
	require.NotContains(t, complete("bench", "--tier", "cpu,"), "cpu,cpu")
	require.Equal(t, []string{"md", "csv", "json", "jsonl", "sql", "gobench"}, complete("bench", "-o", ""))
	require.Equal(t, []string{"md", "json"}, complete("compare", "-o", ""))
	require.Equal(t, []string{"false", "true"}, complete("bench", "--lse="))
	require.Equal(t, []string{"false,true"}, complete("profile", "--lse=false,"))
	require.Empty(t, complete("run", "--lse", ""), "the shell completes its file")
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		stdout, _ := succeeds(t, "completion", shell)
		require.Contains(t, stdout, "vkattn")
	}
}

func TestMistypedWordsGetAHint(t *testing.T) {
	refused(t, exitInput, "unknown flag: --prest, did you mean --preset?", "bench", "--prest", "gpt3")
	refused(t, exitInput, `unknown command "bnech" for "vkattn", did you mean bench?`, "bnech")
}
