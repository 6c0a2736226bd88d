package markdown

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWordsAreToTheLeftAndNumbersToTheRight(t *testing.T) {
	cell := func(title string, i int) Column[[]any] {
		return Column[[]any]{Title: title, Always: true, Cell: func(row []any) any { return row[i] }}
	}
	m := Of([][]any{{"a", 1.5, "why"}, {"longer", 10, "a|b"}}, true, []Column[[]any]{cell("name<", 0), cell("ms", 1), cell("note<", 2)})
	require.Equal(t, "| name   |  ms | note |\n"+
		"|:------ | ---:|:---- |\n"+
		"| a      | 1.5 | why  |\n"+
		"| longer |  10 | a\\|b |", m)
}

// sample is a row with a size, an option and a result.
type sample struct {
	size   int
	option string
	by     string
	ms     string
}

func sampleColumns(peers int) []Column[sample] {
	list := []Column[sample]{
		{Title: "B", Cell: func(sample) any { return 7 }},
		{Title: "empty<", Cell: func(sample) any { return "" }},
		{Title: "size", Cell: func(s sample) any { return s.size }},
		{Title: "options<", Cell: func(s sample) any { return s.option }},
		{Title: "tier<", Always: true, Cell: func(s sample) any { return s.by }},
		{Title: "ms", Room: 6, Cell: func(s sample) any { return s.ms }},
		{Title: "more<", Room: 1, Wide: true, Cell: func(sample) any { return "more" }},
	}
	for i := range peers {
		list = append(list, Column[sample]{Title: fmt.Sprintf("x another peer %d", i), Short: fmt.Sprintf("x%d", i), Spare: true, Room: 5,
			Cell: func(sample) any { return "1.000" }})
	}
	return list
}

// Columns and widths follow from planned rows, which have no results. A row is printed when it is known.
func TestRowsAppearAsTheyFinish(t *testing.T) {
	var out strings.Builder
	planned := []sample{{64, "", "cpu", None}, {4096, "", "cpu", None}}
	table := New(&out, planned, false, sampleColumns(0))
	require.Empty(t, out.String())
	require.NoError(t, table.Row(sample{64, "", "cpu", "1.5"}))
	want := "B 7\n\n" +
		"| size | tier |     ms |\n" +
		"| ----:|:---- | ------:|\n" +
		"|   64 | cpu  |    1.5 |\n"
	require.Equal(t, want, out.String())
	require.NoError(t, table.Row(sample{4096, "", "cpu", "1234.5"}))
	require.NoError(t, table.Row(sample{4096, "", "cpu", "12345.67"}), "a longer cell is not cut off")
	require.Equal(t, want+"| 4096 | cpu  | 1234.5 |\n| 4096 | cpu  | 12345.67 |\n", out.String())
	require.Equal(t, "| B | size | tier |     ms | more |\n| -:| ----:|:---- | ------:|:---- |\n| 7 |", Of(planned, true, sampleColumns(0))[:77])
}

func TestATableWithoutRowsHasAHeader(t *testing.T) {
	var out strings.Builder
	require.NoError(t, New(&out, nil, false, sampleColumns(9)).Close())
	require.Contains(t, out.String(), "| B | empty | size |")
}

// What has no room stands above the table: titles, the widest texts, and at last all of them.
func TestTablesFitTheirWidth(t *testing.T) {
	for peers := range 12 {
		for _, length := range []int{0, 10, 80, 300} {
			var rows []sample
			for i := range 12 {
				rows = append(rows, sample{1 << i, strings.Repeat("word ", length/5) + fmt.Sprint(i%3), fmt.Sprint("tier ", i%2), "1.5"})
			}
			text := Of(rows, false, sampleColumns(peers))
			lines := 0
			for line := range strings.Lines(text) {
				require.LessOrEqual(t, len(strings.TrimSuffix(line, "\n")), Width, text)
				if strings.HasPrefix(line, "|") {
					lines++
				}
			}
			require.Equal(t, 2+len(rows), lines)
			require.Equal(t, 12, strings.Count(text, "1.5 |"))
			for i := range peers {
				require.Regexp(t, fmt.Sprintf("x another peer %d|in wide tables: .*x%d\\b", i, i), text)
			}
		}
	}
	rows := []sample{{1, strings.Repeat("a", 90), "cpu", "1"}, {2, strings.Repeat("b", 20), "cpu", "1"}}
	require.Equal(t, "B 7\noptions:\n- [1] "+rows[0].option+"\n- [2] "+rows[1].option+"\n\n"+
		"| options | size | tier |     ms |\n"+
		"|:------- | ----:|:---- | ------:|\n"+
		"| [1]     |    1 | cpu  |      1 |\n"+
		"| [2]     |    2 | cpu  |      1 |", Of(rows, false, sampleColumns(0)))
}
