package cases

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"vkattn/internal/problem"
)

// word is a field of a case by its name: names of cases print it, and tables of cases set it.
type word struct {
	name  string
	field func(c *Case) any // a pointer to it; of a bitmap of blocks, which has several, the case
}

// lastWords end the name of a case.
var lastWords = []word{
	{"scale", func(c *Case) any { return &c.Scale }}, {"", func(c *Case) any { return &c.Layout }}, {"", func(c *Case) any { return &c.Data }},
	{"lse", func(c *Case) any { return &c.LSE }}, {"", func(c *Case) any { return &c.Access }},
}

// allWords are the words of all options, and lastWords.
func allWords() (list []word) {
	for _, o := range options {
		list = append(list, o.words...)
	}
	return append(list, lastWords...)
}

// text is the word in the name of a case; "" where the field is not set.
func (w word) text(c *Case) string {
	switch v := reflect.ValueOf(w.field(c)).Elem(); x := v.Interface().(type) {
	case Case:
		if x.BlockQ == 0 {
			return ""
		}
		return fmt.Sprintf("%s%dx%d-%v", w.name, x.BlockQ, x.BlockK, x.Blocks)
	case bool:
		if x {
			return w.name
		}
		return ""
	default:
		if v.IsZero() {
			return ""
		}
		return w.name + strings.ReplaceAll(fmt.Sprint(x), ",", "_") // of a window
	}
}

// set sets the field if s is its word. "-" and the name of a bool is false.
func (w word) set(c *Case, s string) bool {
	value, found := strings.CutPrefix(strings.TrimPrefix(s, "-"), w.name)
	if !found {
		return false
	}
	var rest string
	switch f := w.field(c).(type) {
	case *bool:
		if value == "" {
			*f = s == w.name
		}
		return value == ""
	case *problem.Window:
		var left, right int
		n, _ := fmt.Sscanf(value, "%d_%d", &left, &right)
		if n == 2 {
			*f = problem.WindowOf(left, right)
		}
		return n == 2
	case *Case:
		n, _ := fmt.Sscanf(value, "%dx%d-%s", &f.BlockQ, &f.BlockK, &rest)
		return n == 3 && f.Blocks.Set(rest) == nil
	case interface{ Set(string) error }:
		return f.Set(value) == nil
	default:
		n, _ := fmt.Sscan(value+" .", f, &rest)
		return n == 2 && rest == "."
	}
}

// sequenceLists are the lists of sequences that have a name in tables.
var sequenceLists = map[string][]Seq{
	"mixed": sequencesOf("1x235+0x17+33x0+65x65+7x129+130x64"),
	"crowd": crowdSeqs, "crowd144": crowd144(crowdSeqs),
	"decodes":   sequencesOf("1x235+4x64+0x5+8x0+7x100+1x1"),
	"server600": server(600, 41, 1500), "server100": server(100, 41, 1500),
	"prefills605": server(605, 37, 900), "prefills100": server(100, 37, 900),
}

// crowdSeqs are packed: most have few rows. Of a group of two 8 rows are 4 queries, and one more is too many.
var crowdSeqs = sequencesOf("1x235+2x100+0x17+150x333+4x64+5x64+1x1+1x0+37x90+3x5+1x129+9x2")

// lines are the cases of a table, one a line. A line begins with the case that its words change: prefill, decode,
// random and the number of a composition, or "+" for the line above it that has no "+". Lines that begin with "wide" are
// in wide tables alone, those with "brief" in the others alone. "name:" names the cases from there on.
func lines(text string, wide bool) (all []Case) {
	var c, last Case
	name := ""
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		said := strings.Fields(line)
		if len(said) > 0 && strings.HasSuffix(said[0], ":") {
			name, said = strings.TrimSuffix(said[0], ":"), said[1:]
		}
		if len(said) == 0 {
			continue
		}
		skip := said[0] == "wide" && !wide || said[0] == "brief" && wide
		if said[0] == "wide" || said[0] == "brief" {
			said = said[1:]
		}
		switch base := said[0]; base {
		case "prefill":
			c = prefill(name)
		case "decode":
			c = decode(name)
		case "+":
			c = last
		default:
			n, err := strconv.Atoi(strings.TrimPrefix(base, "random"))
			if err != nil {
				panic("a line of a table begins with " + base)
			}
			c = RandomOptions(n)
			c.Name = name
		}
		for _, s := range said[1:] {
			if !c.say(s) {
				panic("no case has the word " + s)
			}
		}
		if said[0] != "+" {
			last = c
		}
		if !skip {
			all = append(all, c)
		}
	}
	return all
}

// say changes the field that a word of a table names.
func (c *Case) say(s string) bool {
	if seqs := append(sequencesOf(s), sequenceLists[s]...); seqs != nil {
		c.Seqs = seqs
		return true
	}
	var d, dv int
	if n, _ := fmt.Sscanf(s, "d%dv%d", &d, &dv); n > 0 {
		c.D, c.Dv = d, max(dv, d*(2-n))
		return true
	}
	if n, _ := fmt.Sscanf(s, "H%dk%d", &d, &dv); n > 0 {
		c.Hq, c.Hkv = d, max(dv, d*(2-n))
		return true
	}
	return slices.ContainsFunc(append(allWords(),
		word{"", func(c *Case) any { return &c.Causal }}, word{"align-", func(c *Case) any { return &c.Align }},
		word{"sample", func(c *Case) any { return &c.SampleMax }},
	), func(w word) bool { return w.set(c, s) })
}

// sequencesOf are sequences as names of cases have them, such as 1x235+0x17, or as many of one length as in 2*70x133;
// nil: s is neither.
func sequencesOf(s string) (list []Seq) {
	var count, rows, keys int
	if n, _ := fmt.Sscanf(s, "%d*%dx%d", &count, &rows, &keys); n == 3 {
		return equal(count, rows, keys)
	}
	for i, one := range strings.Split(s, "+") {
		if n, _ := fmt.Sscanf(one, "%dx%d", &rows, &keys); n != 2 {
			return nil
		}
		list = append(list, Seq{i, rows, keys})
	}
	return list
}

// equal are n sequences of one length.
func equal(n, rows, keys int) []Seq {
	var list []Seq
	for i := range n {
		list = append(list, Seq{i, rows, keys})
	}
	return list
}
