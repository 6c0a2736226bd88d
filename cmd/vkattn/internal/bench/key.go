package bench

import (
	"strconv"
	"strings"
)

// Field is a name and a value of a Key.
type Field struct{ Name, Value string }

// Key says which row of a benchmark a row is: who computed what. Rows of two runs with
// the same Key are compared with one another. Device and suite are not in it.
type Key []Field

// Key is the Key of a row.
func (r *Row) Key() Key {
	if r.Ceiling != "" {
		k := Key{{"ceiling", string(r.Ceiling)}}
		if r.Ceiling.typed() {
			k = append(k, Field{"dtype", r.DType.String()})
		}
		return k
	}
	k := Key{{"tier", r.Name()}}
	add := func(name, value string) {
		if value != "" {
			k = append(k, Field{name, value})
		}
	}
	add("variant", r.Variant)
	add("ablation", r.Ablation)
	add("tiles", r.Tiles)
	add("pass", r.Pass.String())
	for _, n := range []struct {
		name  string
		value int
	}{{"b", r.B}, {"hq", r.Hq}, {"hkv", r.Hkv}, {"sq", r.Sq}, {"sk", r.Sk}, {"d", r.D}, {"dv", r.Dv}} {
		add(n.name, strconv.Itoa(n.value))
	}
	add("causal", r.Causal.String())
	add("options", r.OptionText)
	add("dtype", r.DType.String())
	return k
}

// String is the Key as the name of a Go benchmark: "/tier=coopmat2/pass=fwd/...".
func (k Key) String() string {
	var s strings.Builder
	for _, f := range k {
		s.WriteString("/" + f.Name + "=" + word(f.Value))
	}
	return s.String()
}

// word is a text as part of the name of a Go benchmark, which has no spaces and no
// slashes.
func word(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '_'
		case r == '/':
			return ':'
		case r < ' ' || r == 0x7f:
			return -1
		}
		return r
	}, s)
}
