package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

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
