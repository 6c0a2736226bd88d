package score

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Parse reads an expression. Operators and their precedence are those of C:
//
//	! ~ -   * / %   + -   << >>   < <= > >=   == !=   &   ^   |   &&   ||   ?:
//
// Numbers with a point or an exponent, and inf, are floats. Variables are s b h hkv i j row sq sk. Functions are min max
// clamp abs sign exp log tanh sin cos sqrt floor float. name[e], name[e, e] and name[e, e, e] read a table, whose
// declaration is one of tables. An error names the byte of the text where it is, counted from 1.
func Parse(text string, tables ...Table) (Expr, error) {
	p := parser{text: text, tables: tables}
	e, err := p.expression()
	if err != nil {
		return Expr{}, err
	}
	if p.space(); p.at < len(text) {
		return Expr{}, p.errorf("unexpected %s", p.next())
	}
	return e, nil
}

type parser struct {
	text   string
	at     int
	depth  int
	tables []Table
}

func (p *parser) errorf(format string, args ...any) error { return p.errorAt(p.at, format, args...) }

func (p *parser) errorAt(at int, format string, args ...any) error {
	return fmt.Errorf("score: at %d of %q: %s", at+1, shorten(p.text), fmt.Sprintf(format, args...))
}

func (p *parser) space() {
	for p.at < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.at]) >= 0 {
		p.at++
	}
}

// next is what is at the position, for a message.
func (p *parser) next() string {
	if p.space(); p.at >= len(p.text) {
		return "end"
	}
	r, _ := utf8.DecodeRuneInString(p.text[p.at:])
	return strconv.Quote(string(r))
}

// take moves past a symbol if it is next, and is no start of a longer operator.
func (p *parser) take(symbol string) bool {
	p.space()
	rest, ok := strings.CutPrefix(p.text[p.at:], symbol)
	if !ok || rest != "" && longer[symbol+rest[:1]] {
		return false
	}
	p.at += len(symbol)
	return true
}

var longer = map[string]bool{"<<": true, ">>": true, "<=": true, ">=": true, "==": true, "!=": true, "&&": true, "||": true}

// operators are the binary operators of each level, which groups from the left.
var operators = map[int][]struct {
	text  string
	build func(x, y Expr) Expr
}{
	levelOr:     {{"||", func(x, y Expr) Expr { return exactly(or, TypeBool, x, y) }}},
	levelAnd:    {{"&&", func(x, y Expr) Expr { return exactly(and, TypeBool, x, y) }}},
	levelBitOr:  {{"|", Or}},
	levelXor:    {{"^", Xor}},
	levelBitAnd: {{"&", And}},
	levelEqual:  {{"==", Eq}, {"!=", Ne}},
	levelLess:   {{"<=", Le}, {"<", Lt}, {">=", Ge}, {">", Gt}},
	levelShift:  {{"<<", Shl}, {">>", Shr}},
	levelAdd:    {{"+", Add}, {"-", Sub}},
	levelMul:    {{"*", Mul}, {"/", Div}, {"%", Mod}},
}

// built returns an expression, or its error at the start of its text.
func (p *parser) built(at int, e Expr) (Expr, error) {
	if err := e.Err(); err != nil {
		return e, p.errorAt(at, "%s", strings.TrimPrefix(err.Error(), "score: "))
	}
	return e, nil
}

func (p *parser) expression() (Expr, error) {
	if p.depth++; p.depth > maxDepth {
		return Expr{}, p.errorf("more than %d expressions within each other", maxDepth)
	}
	defer func() { p.depth-- }()
	p.space()
	at := p.at
	e, err := p.binary(levelOr)
	if err != nil || !p.take("?") {
		return e, err
	}
	x, err := p.expression()
	if err != nil {
		return x, err
	}
	if !p.take(":") {
		return e, p.errorf("%s in place of ':'", p.next())
	}
	y, err := p.expression()
	if err != nil {
		return y, err
	}
	return p.built(at, Select(e, x, y))
}

func (p *parser) binary(level int) (Expr, error) {
	if level == levelUnary {
		return p.unary()
	}
	p.space()
	at := p.at
	e, err := p.binary(level + 1)
	for err == nil {
		var build func(x, y Expr) Expr
		for _, o := range operators[level] {
			if p.take(o.text) {
				build = o.build
				break
			}
		}
		if build == nil {
			return e, nil
		}
		var y Expr
		if y, err = p.binary(level + 1); err == nil {
			e, err = p.built(at, build(e, y))
		}
	}
	return e, err
}

func (p *parser) unary() (Expr, error) {
	if p.depth++; p.depth > maxDepth {
		return Expr{}, p.errorf("more than %d expressions within each other", maxDepth)
	}
	defer func() { p.depth-- }()
	p.space()
	at := p.at
	var bools Type
	build := Neg
	switch {
	case p.take("-"):
		if p.digit() {
			return p.number("-")
		}
	case p.take("!"):
		build, bools = Not, TypeBool
	case p.take("~"):
		build, bools = Not, TypeInt
	default:
		return p.primary()
	}
	e, err := p.unary()
	if err != nil {
		return e, err
	}
	if bools != 0 && e.Type() != bools {
		return e, p.errorAt(at, "%s takes a %v, not %v", p.text[at:at+1], bools, e.Type())
	}
	return p.built(at, build(e))
}

func (p *parser) digit() bool {
	p.space()
	rest := p.text[p.at:]
	return rest != "" && (isDigit(rest[0]) || rest[0] == '.' && len(rest) > 1 && isDigit(rest[1]))
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isLetter(c byte) bool { return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

// number reads a number without its sign.
func (p *parser) number(sign string) (Expr, error) {
	start, whole := p.at, true
	for ; p.at < len(p.text); p.at++ {
		c := p.text[p.at]
		exponent := (c == '+' || c == '-') && (p.text[p.at-1] == 'e' || p.text[p.at-1] == 'E') // not at the start
		if !isDigit(c) && c != '.' && !isLetter(c) && !exponent {
			break
		}
		whole = whole && isDigit(c)
	}
	text := sign + p.text[start:p.at]
	if whole {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return Expr{}, p.errorAt(start, "%s is no int32", shorten(text))
		}
		return Int(int(n)), nil
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) || strings.ContainsAny(text, "xXpP_") {
		return Expr{}, p.errorAt(start, "%s is no number", shorten(text))
	}
	if err != nil {
		return Expr{}, p.errorAt(start, "%s is too large", shorten(text))
	}
	return p.built(start, Num(x))
}

func (p *parser) primary() (Expr, error) {
	switch {
	case p.digit():
		return p.number("")
	case p.take("("):
		e, err := p.expression()
		if err == nil && !p.take(")") {
			err = p.errorf("%s in place of ')'", p.next())
		}
		return e, err
	}
	p.space()
	start := p.at
	for p.at < len(p.text) && (isLetter(p.text[p.at]) || p.at > start && isDigit(p.text[p.at])) {
		p.at++
	}
	name := p.text[start:p.at]
	switch {
	case name == "":
		return Expr{}, p.errorf("%s in place of an expression", p.next())
	case p.take("["):
		return p.table(start, name)
	case p.take("("):
		return p.call(start, name)
	case name == "inf":
		return infinity, nil
	}
	if e, ok := variables[name]; ok {
		return e, nil
	}
	return Expr{}, p.errorAt(start, "no variable %q; there are s b h hkv i j row sq sk", shorten(name))
}

// list reads expressions up to the end symbol.
func (p *parser) list(end string, most int) (list []Expr, err error) {
	for {
		e, err := p.expression()
		if err != nil {
			return nil, err
		}
		if list = append(list, e); p.take(end) {
			return list, nil
		}
		if len(list) == most || !p.take(",") {
			return nil, p.errorf("%s in place of %q", p.next(), end)
		}
	}
}

func (p *parser) table(start int, name string) (Expr, error) {
	indices, err := p.list("]", MaxRank)
	if err != nil {
		return Expr{}, err
	}
	for _, t := range p.tables {
		if t.name == name {
			return p.built(start, t.At(indices...))
		}
	}
	return Expr{}, p.errorAt(start, "no table %q", shorten(name))
}

func (p *parser) call(start int, name string) (Expr, error) {
	args, err := p.list(")", 3)
	if err != nil {
		return Expr{}, err
	}
	build, want := functions[name], 1
	switch name {
	case "min", "max":
		want = 2
	case "clamp":
		build, want = func(x ...Expr) Expr { return Clamp(x[0], x[1], x[2]) }, 3
	}
	switch {
	case build == nil:
		return Expr{}, p.errorAt(start, "no function %q", shorten(name))
	case len(args) != want:
		return Expr{}, p.errorAt(start, "%s takes %d arguments, not %d", name, want, len(args))
	}
	return p.built(start, build(args...))
}
