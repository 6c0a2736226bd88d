// Package docs tests what the documents say of the repository: links, paths, sizes.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = ".."

// pages are the Markdown files of the repository, relative to its root.
func pages(t *testing.T) []string {
	t.Helper()
	list := []string{"README.md", "CHANGELOG.md", "CONTRIBUTING.md"}
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) == ".md" {
			list = append(list, filepath.Join("docs", path))
		}
		return err
	}))
	return list
}

func read(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, page))
	require.NoError(t, err)
	return string(text)
}

var (
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	anchor  = regexp.MustCompile(`<a id="([^"]+)">`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	path    = regexp.MustCompile("`((?:attention|bindings|cmd|cudapath|docs|internal|scripts|shaders|tests|vk)/[\\w./-]+)`")
	mention = regexp.MustCompile(`docs/[\w/-]+\.md`)
	section = regexp.MustCompile(`(docs/[\w/-]+\.md)(?:,|,? \()\s*(?:(?://|#|\*) )?(?:entry |sections? )?(\d+)`)
	// numbered is a link to a section of a log whose text has the section's number.
	numbered = regexp.MustCompile(`\[([^\]]*)\]\(([^()\s]*\.md)?#s(\d+)\)`)
)

// anchors are the targets of links into a page: explicit anchors and the anchors of
// headings.
func anchors(text string) (list []string) {
	for _, m := range anchor.FindAllStringSubmatch(text, -1) {
		list = append(list, m[1])
	}
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		slug := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z':
				return r
			}
			return -1
		}, strings.ToLower(m[1]))
		list = append(list, slug)
	}
	return list
}

// Links between pages lead to files and anchors that exist.
func TestLinks(t *testing.T) {
	for _, page := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, page), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			target, id, _ := strings.Cut(m[1], "#")
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(filepath.Join(root, file)); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
				continue
			}
			if id != "" && !slices.Contains(anchors(read(t, file)), id) {
				t.Errorf("%s links to %s, and %s has no such anchor", page, m[1], file)
			}
		}
	}
}

// The map of design.md and the checklists name files that exist.
func TestPaths(t *testing.T) {
	for _, page := range []string{"design", "extending", "install", "library", "parallel", "c", "python"} {
		page = "docs/" + page + ".md"
		for _, m := range path.FindAllStringSubmatch(read(t, page), -1) {
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}

var (
	code = regexp.MustCompile("`([A-Za-z_][\\w.]*)`")
	name = regexp.MustCompile(`[A-Za-z_]\w*`)
	// mixed is a name that no prose has: with an inner capital or an underscore.
	mixed = regexp.MustCompile(`[a-z][A-Z]|\w_\w`)
	// foreign are names of Vulkan, CUDA, NCCL and PyTorch.
	foreign = regexp.MustCompile(`^(?:vk|Vk|VK_|cu[A-Z]|CU|NCCL_)`)
)

// Names in code font are in the code: a renamed function is renamed on the pages that explain it.
func TestNames(t *testing.T) {
	known := map[string]bool{}
	for _, dir := range []string{"attention", "bindings", "cmd", "cudapath", "internal", "scripts", "shaders", "tests", "vk"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !slices.Contains([]string{".go", ".h", ".c", ".cu", ".cc", ".glsl", ".comp", ".sh", ".py"}, filepath.Ext(path)) {
				return err
			}
			text, err := os.ReadFile(path)
			for _, word := range name.FindAllString(string(text), -1) {
				known[word] = true
			}
			return err
		}))
	}
	for _, page := range []string{"design", "extending", "library", "serving", "testing", "several-gpus", "parallel", "c"} {
		page = "docs/" + page + ".md"
		for _, m := range code.FindAllStringSubmatch(read(t, page), -1) {
			word := m[1][strings.LastIndex(m[1], ".")+1:]
			if mixed.MatchString(word) && !foreign.MatchString(word) && !known[word] {
				t.Errorf("%s: %s is not in the code", page, m[1])
			}
		}
	}
}

var (
	firstLines = regexp.MustCompile(`^(?:#version 460\n|#pragma once\n|//go:build .*\n|\n)+`)
	goClauses  = regexp.MustCompile(`^package \w+\n(?:\n|(?s:/\*.*?\*/\n)import "C"\n|(?:// #.*\n)+import "C"\n|import .*"\n|import \(\n(?:\n|\t.*\n)*\)\n)*`)
)

// opensWithComment reports whether a source file begins with a comment. In Go the comment may
// also follow the package clause and the imports; a cgo preamble does not count.
func opensWithComment(text string) bool {
	text = firstLines.ReplaceAllString(text, "")
	text = goClauses.ReplaceAllString(text, "")
	return strings.HasPrefix(text, "// ") || strings.HasPrefix(text, "/* ") || strings.HasPrefix(text, `"""`)
}

// Every row of the map of design.md names files, which open with a comment. No kernel file
// is missing from the map.
func TestMap(t *testing.T) {
	text := read(t, "docs/design.md")
	_, text, _ = strings.Cut(text, `<a id="map"></a>`)
	text, _, _ = strings.Cut(text, "## The path of a call")
	named := map[string]bool{}
	for _, row := range strings.Split(text, "\n") {
		if !strings.HasPrefix(row, "| ") || strings.HasPrefix(row, "| **") || strings.HasPrefix(row, "| concept ") {
			continue
		}
		files := path.FindAllStringSubmatch(row, -1)
		if len(files) == 0 {
			t.Errorf("the map names no file: %s", row)
		}
		for _, m := range files {
			named[m[1]] = true
		}
	}
	require.NotEmpty(t, named)
	for file := range named {
		if !opensWithComment(read(t, file)) {
			t.Errorf("%s does not open with a comment", file)
		}
	}
	for _, pattern := range []string{"*.glsl", "*.comp"} {
		sources, err := filepath.Glob(filepath.Join(root, "shaders", pattern))
		require.NoError(t, err)
		for _, source := range sources {
			file := "shaders/" + filepath.Base(source)
			if !named[file] {
				t.Errorf("the map lacks %s", file)
			}
		}
	}
}

// kernelLogs are the names that comments of CUDA kernels give to three logs. The manifest of the compiled kernels has
// hashes of the sources with their comments, so the comments follow when the kernels are compiled anew.
var kernelLogs = map[string]string{"cuda-log": "cuda-fa2", "cuda-fa3-log": "cuda-fa3", "cuda-bwd-log": "cuda-backward"}

// Comments that refer to a page of docs, or to a section of a log, name one that exists.
func TestSectionsOfTheLogs(t *testing.T) {
	kernels := filepath.Join(root, "cudapath/kernels")
	require.NoError(t, filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch name := d.Name(); {
			case name == "build", name == "results", strings.HasPrefix(name, ".") && name != root:
				return fs.SkipDir
			}
			return nil
		}
		if !slices.Contains([]string{".go", ".glsl", ".comp", ".cu", ".h", ".c", ".cc", ".sh", ".py"}, filepath.Ext(file)) {
			return nil
		}
		text, err := os.ReadFile(file)
		current := func(page string) string {
			name := strings.TrimSuffix(strings.TrimPrefix(page, "docs/"), ".md")
			if log, ok := kernelLogs[name]; ok && filepath.Dir(file) == kernels {
				return "docs/log/" + log + ".md"
			}
			return page
		}
		for _, page := range mention.FindAllString(string(text), -1) {
			if _, err := os.Stat(filepath.Join(root, current(page))); err != nil {
				t.Errorf("%s refers to %s, which is not there", file, page)
			}
		}
		for _, m := range section.FindAllStringSubmatch(string(text), -1) {
			if !slices.Contains(anchors(read(t, current(m[1]))), "s"+m[2]) {
				t.Errorf("%s refers to %s, which is not there", file, m[0])
			}
		}
		return err
	}))
}

// Each numbered section of a log has the anchor that links name, and the number in the text of a
// link is that of its section.
func TestLogs(t *testing.T) {
	logs, err := filepath.Glob("log/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, logs)
	index := read(t, "docs/log/README.md")
	for _, log := range logs {
		if name := filepath.Base(log); name != "README.md" && !strings.Contains(index, "("+name+")") {
			t.Errorf("docs/log/README.md lacks %s", name)
		}
		text := read(t, filepath.Join("docs", log))
		for _, m := range regexp.MustCompile(`(?m)^## (\d+)\b`).FindAllStringSubmatch(text, -1) {
			if !slices.Contains(anchors(text), "s"+m[1]) {
				t.Errorf("section %s of %s has no anchor", m[1], log)
			}
		}
	}
	for _, page := range pages(t) {
		for _, m := range numbered.FindAllStringSubmatch(read(t, page), -1) {
			if numbers := regexp.MustCompile(`\b\d+\b`).FindAllString(m[1], -1); len(numbers) > 0 && !slices.Contains(numbers, m[3]) {
				t.Errorf("%s links %q to section %s of %s", page, m[1], m[3], m[2])
			}
		}
	}
}

// printed is the second line of a table that the command printed.
var printed = regexp.MustCompile(`^\|(?::-+ \|| -+:\|)+$`)

// Tables that the command printed fit a terminal of 100 columns. The dated folders keep what older versions printed.
func TestPrintedTablesAreNarrow(t *testing.T) {
	tables := 0
	for _, page := range pages(t) {
		if strings.HasPrefix(page, "docs/results/20") {
			continue
		}
		inside := false
		lines := strings.Split(read(t, page), "\n")
		for i, line := range lines {
			if printed.MatchString(line) {
				inside = true
				tables++
				require.Len(t, lines[i-1], len(line), "%s: %s", page, lines[i-1])
			}
			inside = inside && strings.HasPrefix(line, "|")
			if inside {
				require.LessOrEqual(t, len(line), 100, "%s: %s", page, line)
			}
		}
	}
	require.GreaterOrEqual(t, tables, 4)
}

// README and the summary of results are pages that are read whole.
func TestREADMEIsShort(t *testing.T) {
	for _, page := range []string{"README.md", "docs/results/README.md"} {
		require.LessOrEqual(t, strings.Count(read(t, page), "\n"), 150, page)
	}
}
