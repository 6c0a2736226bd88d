package bench

import (
	"fmt"
	"slices"
	"strings"
)

// notesAlone: notes shared by more rows than this are printed once.
const notesAlone = 3

// notes prints the note of each row without a speed and of each row whose clock was not
// steady. A note that many rows share is printed once.
func (p *mdPrinter) notes() error {
	var lines []string
	for _, g := range groupBy(p.rows, (*Row).Note) {
		switch {
		case g.title == "":
		case len(g.rows) > notesAlone:
			var who []string
			for _, r := range g.rows {
				if !slices.Contains(who, r.Who()) {
					who = append(who, r.Who())
				}
			}
			lines = append(lines, fmt.Sprintf("%d rows (%s): %s\n", len(g.rows), strings.Join(who, ", "), g.title))
		default:
			for _, r := range g.rows {
				lines = append(lines, fmt.Sprintf("%s, %v: %s\n", r.Who(), r.Problem(), g.title))
			}
		}
	}
	if len(lines) == 0 {
		return nil
	}
	_, err := fmt.Fprint(p.w, "\n"+strings.Join(lines, ""))
	return err
}
