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
	// speedCommand is the command of docs/results/README.md that prints its ratios from the committed rows.
	speedCommand = regexp.MustCompile(`(?m)^    vkattn (report --ratios (?:.*\\\n)*.*)$`)
	speedRange   = regexp.MustCompile(`^([\d.]+) to ([\d.]+)`)
)

// docs/results/README.md has the table that its command prints over the committed rows.
// The ranges of README are those of the table's rows at head dims 64 and 128.
func TestTheSpeedsOfREADME(t *testing.T) {
	onceOnly(t)
	results, readme := sourceFile(t, "docs/results/README.md"), sourceFile(t, "README.md")
	m := speedCommand.FindSubmatch(results)
	require.NotNil(t, m, "docs/results/README.md has no command vkattn report --ratios")
	line := strings.ReplaceAll(string(m[1]), "\\\n", " ")
	t.Chdir("../..")
	table, _ := succeeds(t, wordsOf(line)...)
	require.Contains(t, string(results), "\n\n"+table, "the page does not have what this prints: vkattn %s", line)

	printed := markdownTable(table)
	// columns are those of README behind the tier: the pass and the peer of each.
	columns := [...][2]string{{"fwd", "x flash, mean"}, {"fwd", "x cudnn, mean"}, {"bwd", "x flash, mean"}, {"bwd", "x cudnn, mean"}}
	tiers := 0
	for row := range strings.Lines(string(readme)) {
		cells := cellsOf(row)
		if len(cells) != 2+len(columns) {
			continue
		}
		tier := strings.Trim(cells[0], "`")
		if tier == "cuda" {
			tier = "cuda fa3"
		}
		for i, c := range columns {
			low, high := "", ""
			for _, r := range printed {
				found := speedRange.FindStringSubmatch(r[c[1]])
				if found == nil || r["tier"] != tier || r["pass"] != c[0] || r["D"] != "64" && r["D"] != "128" {
					continue
				}
				if low == "" || found[1] < low {
					low = found[1]
				}
				high = max(high, found[2])
			}
			if low != "" {
				require.Equal(t, low+" to "+high, cells[2+i], "README, tier %s, pass %s, %s", tier, c[0], c[1])
				tiers++
			}
		}
	}
	require.Equal(t, 10, tiers)
}

// markdownTable has the cells of each row of a table by their titles.
func markdownTable(table string) (rows []map[string]string) {
	_, table, _ = strings.Cut(table, "\n\n") // behind what all rows share
	lines := strings.Split(strings.TrimSpace(table), "\n")
	titles := cellsOf(lines[0])
	for _, line := range lines[2:] {
		row := map[string]string{}
		for i, cell := range cellsOf(line) {
			row[titles[i]] = cell
		}
		rows = append(rows, row)
	}
	return rows
}

func cellsOf(row string) []string {
	cells := strings.Split(strings.Trim(strings.TrimSpace(row), "|"), "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return cells
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
