package attention

import (
	"fmt"
	"strings"
)

// nameOf is the printed form of an enumeration's value: its name, or the type
// and number when the value is none of the named ones.
func nameOf(kind string, names []string, v uint8) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%s(%d)", kind, v)
}

// parseName finds s among names, without regard to case.
func parseName(kind string, names []string, s string) (uint8, error) {
	for i, n := range names {
		if strings.EqualFold(n, s) {
			return uint8(i), nil
		}
	}
	return 0, invalid("unknown %s %q, want %s", kind, s, strings.Join(names, ", "))
}
