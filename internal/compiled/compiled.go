// Package compiled has what the builds of the shaders and of the CUDA kernels share: the sources of a module, their hash, and
// folders of committed files.
package compiled

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
)

var includeLine = regexp.MustCompile(`(?m)^\s*#\s*include\s+"([^"]+)"`)

// Sources lists a source file and everything of ours that it includes, sorted, as files of dir.
func Sources(dir fs.FS, source string) ([]string, error) {
	seen := map[string]bool{}
	var visit func(name string) error
	visit = func(name string) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return err
		}
		for _, found := range includeLine.FindAllStringSubmatch(string(text), -1) {
			if err := visit(found[1]); err != nil {
				return err
			}
		}
		return nil
	}
	if err := visit(source); err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(seen)), nil
}

// SourceHash is the SHA-256, in hexadecimal, of a head that says how a source file is compiled, and of its Sources.
func SourceHash(dir fs.FS, source, head string) (string, error) {
	names, err := Sources(dir, source)
	if err != nil {
		return "", err
	}
	all := []byte(head)
	for _, name := range names {
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return "", err
		}
		all = append(fmt.Appendf(all, "%s %d\n", name, len(text)), text...)
	}
	return Hash(all), nil
}

// Hash is the SHA-256 of b in hexadecimal.
func Hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// ReplaceFolder makes the folder hold these files and no others.
func ReplaceFolder(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	old, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range old {
		if _, keep := files[e.Name()]; !keep {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	for name, content := range files {
		if err := WriteFile(filepath.Join(dir, name), content); err != nil {
			return err
		}
	}
	return nil
}

// WriteFile replaces a file whole, and leaves one alone that has this content.
func WriteFile(path string, content []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return nil
	}
	part := path + ".part"
	if err := os.WriteFile(part, content, 0o644); err != nil {
		return err
	}
	return os.Rename(part, path)
}
