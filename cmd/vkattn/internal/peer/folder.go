package peer

import (
	"os"
	"path/filepath"
	"regexp"
)

// absolute matches an absolute path in a text, behind a character that can stand before one.
var absolute = regexp.MustCompile(`(^|[\s'"=:(])(/[^\s'":;,()]+)`)

// WithoutFolders replaces the absolute paths of a text, for results that other people read: a
// file below the working folder by its path from there, any other by its name.
func WithoutFolders(text string) string {
	here, err := os.Getwd()
	if err != nil {
		here = ""
	}
	return withoutFolders(text, here)
}

func withoutFolders(text, here string) string {
	return absolute.ReplaceAllStringFunc(text, func(match string) string {
		at := len(match) - len(absolute.FindStringSubmatch(match)[2])
		path := filepath.Clean(match[at:])
		if here != "" {
			if rel, err := filepath.Rel(here, path); err == nil && filepath.IsLocal(rel) && rel != "." {
				return match[:at] + rel
			}
		}
		return match[:at] + filepath.Base(path)
	})
}
