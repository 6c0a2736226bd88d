package flagtext

import (
	"strings"

	"github.com/spf13/cobra"
)

// Hint is the end of an error about an unknown name: the names that are close to it, or
// all of them.
func Hint(name string, names []string) string {
	if close := Close(name, names); close != "" {
		return close
	}
	return ", want one of " + strings.Join(names, ", ")
}

// Close is Hint without the list of all names.
func Close(name string, names []string) string {
	// cobra compares names of commands.
	all := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, n := range names {
		all.AddCommand(&cobra.Command{Use: n, Run: func(*cobra.Command, []string) {}})
	}
	if name == "" {
		return ""
	}
	list := all.SuggestionsFor(name)
	if len(list) == 0 {
		return ""
	}
	return ", did you mean " + strings.Join(list, " or ") + "?"
}
