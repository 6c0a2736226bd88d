// Package markdown prints tables. A Table prints each row when it is known, in columns whose widths follow from
// the rows that are planned.
package markdown

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
)

// Width is the most characters of a line of a Table that is not wide.
const Width = 100

// None is a cell without a value.
const None = "-"

// Column is a column of a table of rows of type R.
type Column[R any] struct {
	Title string // aligned right, or left if it ends in "<", which is not printed
	Cell  func(R) any
	// Room is the least width. A column with room has results, which are known when the row is. Without room it says
	// what a row is of: planned rows have its cells, and if all have the same it stands above the table.
	Room   int
	Always bool   // the column says who computed a row: it is always in the table
	Wide   bool   // in wide tables alone
	Short  string // the title where the table would be over Width
	Spare  bool   // left out where the table would still be over Width

	title string
	left  bool
	width int
}

// Result is a column of results.
func Result[R any](title string, room int, cell func(R) any) Column[R] {
	return Column[R]{Title: title, Room: room, Cell: cell}
}

// InWide is the column in wide tables alone.
func (c Column[R]) InWide() Column[R] {
	c.Wide = true
	return c
}

// If is a cell of the rows that have it, and None in the others.
func If[R any](has func(R) bool, cell func(R) any) func(R) any {
	return func(r R) any {
		if !has(r) {
			return None
		}
		return cell(r)
	}
}

// Table is a Markdown table. Its cells are padded, so that it is readable as text.
type Table[R any] struct {
	w       io.Writer
	planned []R
	columns []*Column[R]
	above   []string // lines above the table
	begun   bool
}

// New is a table for planned rows. What all of them have stands once above it. A table that is not wide is at most
// Width wide: texts that have no room stand above it and have a number in the table.
func New[R any](w io.Writer, planned []R, wide bool, columns []Column[R]) *Table[R] {
	t := &Table[R]{w: w, planned: planned}
	var same []string
	for _, c := range columns {
		c.title, c.left = strings.CutSuffix(c.Title, "<")
		cells := t.distinct(&c)
		switch {
		case c.Wide && !wide:
			continue
		case c.Room == 0 && !c.Always && len(planned) > 0 && !slices.ContainsFunc(cells, isSet):
			continue
		case c.Room == 0 && !c.Always && len(cells) == 1 && !wide:
			same = append(same, c.title+" "+cells[0])
			continue
		}
		t.size(&c, cells)
		t.columns = append(t.columns, &c)
	}
	if len(same) > 0 {
		t.above = Wrap(same, ", ", Width)
	}
	if !wide && len(planned) > 0 {
		t.fit()
	}
	return t
}

func isSet(cell string) bool { return cell != "" && cell != None }

// distinct are the cells of the planned rows in a column, each once.
func (t *Table[R]) distinct(c *Column[R]) (list []string) {
	seen := map[string]bool{}
	for _, r := range t.planned {
		if x := cellText(c.Cell(r)); !seen[x] {
			seen[x] = true
			list = append(list, x)
		}
	}
	return list
}

func (t *Table[R]) size(c *Column[R], cells []string) {
	c.width = max(c.Room, text.StringWidthWithoutEscSequences(c.title))
	for _, x := range cells {
		c.width = max(c.width, text.StringWidthWithoutEscSequences(x))
	}
}

// over reports whether a line is longer than Width.
func (t *Table[R]) over() bool {
	n := 1
	for _, c := range t.columns {
		n += c.width + 3
	}
	return n > Width
}

// fit makes the table as narrow as Width. Long titles become short. Then the widest columns that say what a row is of
// are joined, one after the other, into a column of numbers, which a list above the table explains. Where that
// does not do, the last spare columns are left out, and then names of who computed a row become numbers.
func (t *Table[R]) fit() {
	t.shorten(2)
	above, all := t.above, t.columns
	moved := map[*Column[R]]bool{}
	for t.over() {
		var widest *Column[R]
		for _, c := range t.columns {
			if isProblem(c) && !moved[c] && c.width > 1 && (widest == nil || c.width > widest.width) {
				widest = c
			}
		}
		if widest == nil {
			break
		}
		moved[widest] = true
		var of, rest []*Column[R]
		for _, c := range all {
			if moved[c] {
				of = append(of, c)
			} else {
				rest = append(rest, c)
			}
		}
		one := &Column[R]{title: "problem", left: true, Cell: words(of), Always: true}
		if len(of) == 1 {
			*one = *of[0]
			one.Always = true
		}
		t.above = slices.Clone(above)
		t.number(one)
		t.columns = append([]*Column[R]{one}, rest...)
	}
	t.shorten(0)
	var out []string
	for i := len(t.columns) - 1; i >= 0 && t.over(); i-- {
		if c := t.columns[i]; c.Spare {
			out = append(out, c.title)
			t.columns = slices.Delete(t.columns, i, i+1)
		}
	}
	if slices.Reverse(out); len(out) > 0 {
		t.above = append(t.above, "in wide tables: "+strings.Join(out, ", "))
	}
	for _, c := range all {
		if t.over() && c.Always && c.width > len("[10]") {
			t.number(c)
		}
	}
}

// shorten makes titles short that make a column wider by more than some characters.
func (t *Table[R]) shorten(over int) {
	var short []string
	for _, c := range t.columns {
		if t.over() && c.Short != "" && c.title != c.Short && c.width > max(c.Room, len(c.Short))+over {
			short = append(short, c.Short+": "+c.title)
			c.title = c.Short
			t.size(c, t.distinct(c))
		}
	}
	if len(short) > 0 {
		t.above = append(t.above, Wrap(short, ", ", Width)...)
	}
}

// isProblem reports whether a column says what a row is of.
func isProblem[R any](c *Column[R]) bool { return c.Room == 0 && !c.Always }

// words are the titles and cells of columns.
func words[R any](columns []*Column[R]) func(R) any {
	return func(r R) any {
		var parts []string
		for _, c := range columns {
			if x := cellText(c.Cell(r)); isSet(x) {
				parts = append(parts, c.title+" "+x)
			}
		}
		return strings.Join(parts, ", ")
	}
}

// number replaces the cells of a column by numbers, and prints the cells above the table.
func (t *Table[R]) number(c *Column[R]) {
	cells, cell := t.distinct(c), c.Cell
	var list, numbers []string
	of := map[string]string{}
	for _, x := range cells {
		if isSet(x) {
			of[x] = fmt.Sprintf("[%d]", len(list)+1)
			list, numbers = append(list, of[x]+" "+x), append(numbers, of[x])
		}
	}
	if len(list) == 0 {
		return
	}
	t.above = append(t.above, c.title+":")
	for _, entry := range list {
		t.above = append(t.above, "- "+strings.Join(Wrap(strings.Fields(entry), " ", Width-2), "\n  "))
	}
	c.Cell = func(r R) any {
		x := cellText(cell(r))
		if n, ok := of[x]; ok {
			return n
		}
		return x
	}
	t.size(c, numbers)
}

// Wrap joins words to lines of at most a width.
func Wrap(words []string, separator string, width int) (lines []string) {
	line := ""
	for i, w := range words {
		if i < len(words)-1 {
			w += separator
		}
		if line != "" && len(line)+len(strings.TrimRight(w, " ")) > width {
			lines, line = append(lines, strings.TrimRight(line, " ")), ""
		}
		line += w
	}
	return append(lines, strings.TrimRight(line, " "))
}

// Paragraph is a text in lines of at most Width, all but the first indented.
func Paragraph(text string) string {
	return strings.Join(Wrap(strings.Fields(text), " ", Width-2), "\n  ")
}

// Row prints a row.
func (t *Table[R]) Row(r R) error {
	cells := make([]string, len(t.columns))
	for i, c := range t.columns {
		cells[i] = cellText(c.Cell(r))
	}
	return t.print(t.line(cells))
}

// Again has the next row print the header again, behind something else that was printed.
func (t *Table[R]) Again() { t.begun = false }

// Close prints a table without rows.
func (t *Table[R]) Close() error { return t.print("") }

func (t *Table[R]) print(line string) error {
	if !t.begun {
		t.begun = true
		line = t.header() + line
	}
	_, err := io.WriteString(t.w, line)
	return err
}

func (t *Table[R]) header() string {
	var titles []string
	rule := "|"
	for _, c := range t.columns {
		titles = append(titles, c.title)
		if dashes := strings.Repeat("-", c.width); c.left {
			rule += ":" + dashes + " |"
		} else {
			rule += " " + dashes + ":|"
		}
	}
	above := strings.Join(t.above, "\n")
	if above != "" {
		above += "\n\n"
	}
	return above + t.line(titles) + rule + "\n"
}

func (t *Table[R]) line(cells []string) string {
	line := "|"
	for i, c := range t.columns {
		align := text.AlignRight
		if c.left {
			align = text.AlignLeft
		}
		line += " " + align.Apply(cells[i], c.width) + " |"
	}
	return line + "\n"
}

var escape = strings.NewReplacer("|", `\|`, "\n", " ")

func cellText(cell any) string { return escape.Replace(fmt.Sprint(cell)) }

// Of is a table of rows that are all known, without a newline at the end.
func Of[R any](rows []R, wide bool, columns []Column[R]) string {
	var out strings.Builder
	t := New(&out, rows, wide, columns)
	_ = t.Close() // strings.Builder takes everything
	for _, r := range rows {
		_ = t.Row(r)
	}
	return strings.TrimSuffix(out.String(), "\n")
}
