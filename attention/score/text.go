package score

import (
	"strconv"
	"strings"
)

// The canonical text of an expression, which Parse reads.

// String is the canonical text of e, which Parse reads: equal expressions have equal texts.
func (e Expr) String() string {
	if !e.Given() {
		return "none"
	}
	n := e.node()
	return n.text()
}

func (n *node) text() string {
	var b strings.Builder
	n.write(&b, 0)
	return b.String()
}

// write writes n, in parentheses within operators that bind more tightly.
func (n *node) write(b *strings.Builder, within int) {
	arg := func(i, within int) {
		m := n.args[i].node()
		m.write(b, within)
	}
	list := func(open, end string) {
		b.WriteString(open)
		for i := range n.operands() {
			if i > 0 {
				b.WriteString(", ")
			}
			arg(i, 0)
		}
		b.WriteString(end)
	}
	level := n.op.level
	if level != 0 && level < within {
		b.WriteByte('(')
		defer b.WriteByte(')')
	}
	switch {
	case n.op == failure:
		b.WriteString("(" + n.name + ")")
	case n.op == constant && n.typ == TypeInt:
		b.WriteString(strconv.Itoa(int(int32(n.bits))))
	case n.op == constant:
		s := strings.TrimPrefix(strings.ToLower(strconv.FormatFloat(n.value(), 'g', -1, 32)), "+")
		if !strings.ContainsAny(s, ".en") {
			s += ".0"
		}
		b.WriteString(s)
	case n.op == variable:
		b.WriteString(n.name)
	case n.op == table || n.op == entry:
		b.WriteString(n.name)
		list("[", "]")
	case level == 0:
		b.WriteString(n.op.text)
		list("(", ")")
	case n.op == choose:
		arg(0, levelOr)
		b.WriteString(" ? ")
		arg(1, levelSelect)
		b.WriteString(" : ")
		arg(2, levelSelect)
	case level == levelUnary:
		b.WriteString(n.op.text)
		arg(0, levelUnary)
	default:
		arg(0, level)
		b.WriteString(" " + n.op.text + " ")
		arg(1, level+1)
	}
}
