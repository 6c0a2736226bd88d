package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/internal/problem"
)

// completions are the values of flags by name, for the shell. Flags of the same name have
// the same values in every command, except formats and names of files.
func completions() map[string][]string {
	var tiers []string
	for t := attention.TierAuto; t.Valid(); t++ {
		tiers = append(tiers, t.String())
	}
	stored := flagtext.Texts(problem.KVTypes())
	return map[string][]string{
		"preset": flagtext.Texts(bench.Presets), "suite": flagtext.Texts(bench.Suites),
		"against": append(flagtext.Texts(bench.Baselines), "none"), "dtype": flagtext.Texts(attention.DTypes()),
		"tier": append(tiers, "all"), "ablate": flagtext.Texts(problem.Ablations()),
		"causal": {"none", "top-left", "bottom-right"}, "pass": {"fwd", "bwd", "fwdbwd"}, "cuda-kernel": attention.CUDAKernels(),
		"variant": {"v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "all"}, "kv-dtype": stored, "k-dtype": stored, "v-dtype": stored,
		"device": {"auto", "cpu"}, "lse": {"false", "true"},
		"parallel": {"auto", "ring", "ulysses", "allgather", "2d", "decode"}, "split": {"auto", "contiguous", "zigzag", "striped"},
	}
}

// complete registers the values of the flags of a command, also in lists with commas.
func complete(c *cobra.Command) {
	for flag, values := range completions() {
		f := c.Flags().Lookup(flag)
		if f == nil {
			continue
		}
		if kind, _ := pflag.UnquoteUsage(f); kind == "file" { // the shell completes files, such as that of run --lse
			continue
		}
		_ = c.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			return completeList(values, typed), cobra.ShellCompDirectiveNoFileComp
		})
	}
	if usage := c.Flags().Lookup("output"); usage != nil {
		var formats []string
		for _, f := range bench.Formats {
			if slices.Contains(strings.FieldsFunc(usage.Usage, func(r rune) bool { return r == ' ' || r == ',' }), string(f)) {
				formats = append(formats, string(f))
			}
		}
		_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	}
}

// completeList completes the last item of a list with commas. Items that it has are not
// offered again.
func completeList(values []string, typed string) (out []string) {
	items := strings.Split(typed, ",")
	before := strings.Join(items[:len(items)-1], ",")
	if before != "" {
		before += ","
	}
	for _, v := range values {
		if strings.HasPrefix(v, items[len(items)-1]) && !slices.Contains(items[:len(items)-1], v) {
			out = append(out, before+v)
		}
	}
	return out
}

func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIRECTORY",
		Short: "write the manual pages",
		Long: `Writes a manual page of each command, and of each page of vkattn help, into a directory.
"vkattn completion" prints the completion scripts of shells.`,
		Example: `  vkattn man ~/.local/share/man/man1`,
		Args:    wantWords("man takes one directory,", 1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return badInput(err)
			}
			for _, page := range append(c.Root().Commands(), c.Root()) {
				page.DisableAutoGenTag = true
				name := strings.ReplaceAll(page.CommandPath(), " ", "-")
				f, err := os.Create(filepath.Join(args[0], name+".1"))
				if err != nil {
					return badInput(err)
				}
				err = doc.GenMan(page, &doc.GenManHeader{Section: "1", Source: "vkattn " + version, Manual: "vkattn"}, f)
				if closed := f.Close(); err == nil {
					err = closed
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
}
