package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	// speedCommand is the command of README that prints its speeds from the committed rows.
	speedCommand = regexp.MustCompile(`(?m)^    vkattn (report --ratios (?:.*\\\n)*.*)$`)
	// claim is a range of speeds in a sentence.
	claim    = regexp.MustCompile(`([\d.]+) to ([\d.]+) times\s+(?:the speed of|as fast as) (FlashAttention-2|cuDNN)`)
	columnOf = map[string]string{"FlashAttention-2": "x flash", "cuDNN": "x cudnn"}
)

// README has the table that its command prints over the committed rows, and its sentences
// have no other numbers.
func TestTheSpeedsOfREADME(t *testing.T) {
	onceOnly(t)
	page := sourceFile(t, "README.md")
	m := speedCommand.FindSubmatch(page)
	require.NotNil(t, m, "README has no command vkattn report --ratios")
	line := strings.ReplaceAll(string(m[1]), "\\\n", " ")
	t.Chdir("../..")
	code, table, stderr := call(wordsOf(line)...)
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, string(page), "\n\n"+table, "README does not have what this prints: vkattn %s", line)

	columns := map[string][]string{}
	rows := strings.Split(strings.TrimSpace(table), "\n")
	cells := func(row string) []string { return strings.Split(strings.Trim(row, "| "), "|") }
	for _, row := range rows[2:] {
		for i, cell := range cells(row) {
			title := strings.TrimSpace(cells(rows[0])[i])
			columns[title] = append(columns[title], strings.TrimSpace(cell))
		}
	}
	claims := claim.FindAllStringSubmatch(string(page), -1)
	require.NotEmpty(t, claims)
	for _, c := range claims {
		found := false
		for _, cell := range columns[columnOf[c[3]]] {
			found = found || strings.HasPrefix(cell, c[1]+" to "+c[2]+",")
		}
		require.True(t, found, "README says %q, and the table has %q", c[0], columns[columnOf[c[3]]])
	}
}

// sourceFile is a file of the repository, which a machine that runs built tests may not have.
func sourceFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", path))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the repository is not here")
	}
	require.NoError(t, err)
	return text
}

// wordsOf are the words of a command line, some of them in quotes.
func wordsOf(line string) (out []string) {
	for _, m := range regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(line, -1) {
		out = append(out, strings.Trim(m, `"`))
	}
	return out
}
