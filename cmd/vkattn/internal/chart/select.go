package chart

import (
	"slices"
	"strings"
)

// Only keeps the series of the given names, on every device, and panels that have any left.
func Only(figures []Figure, series []string) []Figure {
	if len(series) == 0 {
		return figures
	}
	var out []Figure
	for _, f := range figures {
		var panels []Panel
		for _, p := range f.Panels {
			p.Series = slices.DeleteFunc(slices.Clone(p.Series), func(s Series) bool {
				who, _, _ := strings.Cut(s.Name, ", ")
				return !slices.Contains(series, s.Name) && !slices.Contains(series, who)
			})
			if len(p.Series) > 0 {
				panels = append(panels, p)
			}
		}
		f.Panels = panels
		if len(panels) > 0 {
			out = append(out, f)
		}
	}
	return out
}

// Names lists the implementations that figures show, as Only takes them.
func Names(figures []Figure) (names []string) {
	for _, f := range figures {
		for _, p := range f.Panels {
			for _, s := range p.Series {
				if who, _, _ := strings.Cut(s.Name, ", "); !slices.Contains(names, who) {
					names = append(names, who)
				}
			}
		}
	}
	return names
}
