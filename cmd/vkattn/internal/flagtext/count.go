package flagtext

import "fmt"

// Count is a number with its noun: "1 row", "2 rows".
func Count[N ~int | ~int64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
