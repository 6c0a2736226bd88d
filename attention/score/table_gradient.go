package score

import "fmt"

// MaxTableEntries is the most entries for a head that a table with a gradient has.
const MaxTableEntries = 4096

// read is which of the places of a table Entry and Slope of a TableGradient are of.
var read = number("read", TypeInt)

// A TableGradient is what the gradient of a float table takes from an expression that reads it at some places. Each slot adds
// to the entry of each place the gradient of its score times Slope. Entry and Slope are of place [Slots].Read, from 0 on.
type TableGradient struct {
	Places int // that e has the table at, where its derivative is not 0 everywhere
	// PerHead says that each place has Head as its first index. A head then has entries of its own, those of the other axes,
	// and Entry counts from the first of them. Otherwise all heads share the entries.
	PerHead     bool
	Entry       Expr // int: the number of an entry, with the indices moved into their axes
	Slope       Expr // float: the derivative of e with respect to it
	firstFailed error
}

// Err is why a gradient cannot be computed: an expression that is too large. The zero TableGradient has an error too.
func (g TableGradient) Err() error {
	if g.firstFailed != nil {
		return g.firstFailed
	}
	return g.Entry.Err()
}

// TableGradient is how the gradient of a table follows from that of e. A read in a condition, a comparison, a floor or a sign
// has derivative 0.
func (e Expr) TableGradient(t Table) TableGradient {
	var places, slopes []Expr
	g := TableGradient{PerHead: true}
	e.walk(map[Expr]bool{}, func(x Expr, n *node) {
		if n.op != table || n.name != t.name || n.typ != TypeFloat {
			return
		}
		if slope := e.diffAt(x); slope != zero {
			places, slopes = append(places, x), append(slopes, slope)
			g.PerHead = g.PerHead && n.args[0] == Head
		}
	})
	g.Places, g.PerHead = len(places), g.PerHead && len(places) > 0
	if g.Places == 0 {
		g.Entry, g.Slope = Int(0), zero
		return g
	}
	entries := make([]Expr, len(places))
	for i, x := range places {
		n, first := x.node(), 0
		if g.PerHead {
			first = 1
		}
		entries[i] = of(entry, TypeInt, n.operands()[first:]...).named(n.name, uint32(first))
	}
	g.Entry, g.Slope = onePlace(entries, 0), onePlace(slopes, 0)
	for _, x := range []Expr{g.Entry, g.Slope} {
		if err := x.Of(formula).Err(); err != nil && g.firstFailed == nil {
			g.firstFailed = fmt.Errorf("score: the gradient of table %s has %w", t.name, err)
		}
	}
	return g
}

// onePlace is the one of list that read names, the first of which is number first.
func onePlace(list []Expr, first int) Expr {
	if len(list) == 1 {
		return list[0]
	}
	half := len(list) / 2
	return Select(Lt(read, Int(first+half)), onePlace(list[:half], first), onePlace(list[half:], first+half))
}

// Sizes are how many heads with entries of their own the table has, and how many entries each of them has. dims are the
// sizes of the table's axes.
func (g TableGradient) Sizes(dims [MaxRank]int) (heads, entries int) {
	heads, entries = 1, 1
	for axis, n := range dims {
		switch {
		case n == 0:
		case axis == 0 && g.PerHead:
			heads = n
		default:
			entries *= n
		}
	}
	return heads, entries
}
