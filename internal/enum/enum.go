// Package enum prints and parses the values of enumerations.
package enum

import (
	"fmt"
	"strings"

	"vkattn/internal/errs"
)

// Name is the printed form of an enumeration's value: its name, or the type
// and number when the value is none of the named ones.
func Name(kind string, names []string, v uint8) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%s(%d)", kind, v)
}

// Parse finds s among names, without regard to case.
func Parse[T ~uint8](kind string, names []string, s string) (T, error) {
	for i, n := range names {
		if strings.EqualFold(n, s) {
			return T(i), nil
		}
	}
	return 0, errs.Invalid("unknown %s %q, want %s", kind, s, strings.Join(names, ", "))
}

// Set sets a value to what parse reads from s; after an error it stays.
func Set[T any](to *T, s string, parse func(string) (T, error)) error {
	v, err := parse(s)
	if err == nil {
		*to = v
	}
	return err
}
