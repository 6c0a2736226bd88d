package tensors

import (
	"fmt"
	"slices"
	"sync"

	"vkattn/attention/score"
	"vkattn/internal/arith"
	"vkattn/internal/problem"
)

// Tables of modifiers: those that a Config declares, and the memory that a call has for them.

// declared remembers the tables of modifiers, as every call asks for them.
var declared struct {
	sync.RWMutex
	of map[[2]score.Expr][]score.Table
}

// Tables lists the tables that the modifiers of a valid Config read, by name.
func Tables(cfg *problem.Config) []score.Table {
	if !cfg.ScoreMod.Given() && !cfg.MaskMod.Given() {
		return nil
	}
	key := [2]score.Expr{cfg.ScoreMod, cfg.MaskMod}
	declared.RLock()
	list, known := declared.of[key]
	declared.RUnlock()
	if known {
		return list
	}
	list, _ = score.TablesOf(cfg.ScoreMod, cfg.MaskMod) // Validate has checked them
	declared.Lock()
	defer declared.Unlock()
	if declared.of == nil || len(declared.of) >= 1024 {
		declared.of = map[[2]score.Expr][]score.Table{}
	}
	declared.of[key] = list
	return list
}

// tableMemory is the memory of a table; nil without.
func tableMemory(a *problem.Args, name string) *problem.Table { return findTable(a.Tables, name) }

func findTable(list []problem.Table, name string) *problem.Table {
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	return nil
}

// gradients remembers how the gradients of tables are computed, as every call asks for it.
var gradients struct {
	sync.RWMutex
	of map[gradientKey]score.TableGradient
}

type gradientKey struct {
	scoreMod score.Expr
	table    score.Table
}

// TableGradient is how the gradient of table i of Tables is computed.
func TableGradient(cfg *problem.Config, i int) score.TableGradient {
	key := gradientKey{cfg.ScoreMod, Tables(cfg)[i]}
	gradients.RLock()
	g, known := gradients.of[key]
	gradients.RUnlock()
	if known {
		return g
	}
	if g = (score.TableGradient{}); cfg.ScoreMod.Given() {
		g = cfg.ScoreMod.TableGradient(key.table)
	}
	gradients.Lock()
	defer gradients.Unlock()
	if gradients.of == nil || len(gradients.of) >= 1024 {
		gradients.of = map[gradientKey]score.TableGradient{}
	}
	gradients.of[key] = g
	return g
}

// HasTableGradient reports whether table i of Tables has a gradient: it is one of floats, a score modifier reads it, and it is
// not too large.
func HasTableGradient(cfg *problem.Config, a *problem.Args, i int) bool {
	t := Tables(cfg)[i]
	if !cfg.ScoreMod.Given() || t.Type() != score.TypeFloat {
		return false
	}
	read, _ := score.TablesOf(cfg.ScoreMod)
	g := TableGradient(cfg, i)
	_, entries := g.Sizes(TableDims(cfg, a, i))
	return slices.Contains(read, t) && g.Err() == nil && entries <= score.MaxTableEntries
}

// checkTableGradients checks the names and sizes of DTables.
func checkTableGradients(cfg *problem.Config, a *problem.BackwardArgs) error {
	for i := range a.DTables {
		d := &a.DTables[i]
		field := "DTables[" + d.Name + "]"
		at := slices.IndexFunc(Tables(cfg), func(t score.Table) bool { return t.Name() == d.Name })
		var read []score.Table
		if cfg.ScoreMod.Given() {
			read, _ = score.TablesOf(cfg.ScoreMod)
		}
		switch {
		case at < 0 || Tables(cfg)[at].Type() != score.TypeFloat || !slices.Contains(read, Tables(cfg)[at]):
			return &problem.ShapeError{Field: field, Got: "given", Want: problem.Phrase("a table of floats that ${ScoreMod} reads")}
		case findTable(a.DTables, d.Name) != d:
			return &problem.ShapeError{Field: field, Got: "given twice", Want: "once"}
		}
		dims, g := TableDims(cfg, &a.Args, at), TableGradient(cfg, at)
		if d.Dims != dims && d.Dims != ([score.MaxRank]int{}) {
			return &problem.ShapeError{Field: field + ".Dims", Got: d.Dims, Want: problem.Phrase(fmt.Sprintf("%v, as in ${Tables}, or zero", dims))}
		}
		if err := g.Err(); err != nil {
			return fmt.Errorf("%w: %w", problem.ErrUnsupported, err)
		}
		if _, n := g.Sizes(dims); n > score.MaxTableEntries {
			return fmt.Errorf("%w: gradient of table %s: %d entries for a head, at most %d have one", problem.ErrUnsupported, d.Name, n, score.MaxTableEntries)
		}
	}
	return nil
}

// eachTableGradient visits the outputs of DTables with their places in Tables and their elements.
func eachTableGradient(cfg *problem.Config, a *problem.BackwardArgs, want GradientSet, visit func(i int, field string, t *problem.Tensor, n int)) {
	for i, wanted := range want.Tables {
		if wanted {
			d := findTable(a.DTables, Tables(cfg)[i].Name())
			t := d.Vector.Tensor()
			visit(i, "DTables["+d.Name+"]", &t, TableElements(cfg, &a.Args, i))
		}
	}
}

// TableElements is the number of elements of table i of Tables.
func TableElements(cfg *problem.Config, a *problem.Args, i int) int {
	dims := TableDims(cfg, a, i)
	return int(product(dims[:Tables(cfg)[i].Rank()]...))
}

// TableOutput is the output of the gradient of table i of Tables; nil: none.
func TableOutput(cfg *problem.Config, a *problem.BackwardArgs, i int) *problem.Table {
	return findTable(a.DTables, Tables(cfg)[i].Name())
}

// TableDims are the sizes of the axes of table i of Tables.
func TableDims(cfg *problem.Config, a *problem.Args, i int) [score.MaxRank]int {
	return tableMemory(a, Tables(cfg)[i].Name()).Dims
}

// checkTables checks the names and sizes of tables.
func checkTables(a *problem.Args, cfg *problem.Config) error {
	list := Tables(cfg)
	for i := range a.Tables {
		t := &a.Tables[i]
		field := "Tables[" + t.Name + "]"
		rank := 0
		for _, d := range list {
			if d.Name() == t.Name {
				rank = d.Rank()
			}
		}
		switch {
		case rank == 0:
			return &problem.ShapeError{Field: field, Got: "given", Want: problem.Phrase("a table that ${ScoreMod} or ${MaskMod} reads")}
		case tableMemory(a, t.Name) != t:
			return &problem.ShapeError{Field: field, Got: "given twice", Want: "once"}
		}
		for axis, n := range t.Dims {
			if (axis < rank) != (n != 0) || n < 0 {
				return &problem.ShapeError{Field: field + ".Dims", Got: t.Dims, Want: fmt.Sprintf("%d sizes of at least 1, and 0 behind them", rank)}
			}
		}
		if n, ok := arith.Product(t.Dims[:rank]...); !ok || n > problem.MaxLength {
			return &problem.ShapeError{Field: field + ".Dims", Got: t.Dims, Want: fmt.Sprintf("at most %d elements", problem.MaxLength)}
		}
	}
	for _, d := range list {
		if tableMemory(a, d.Name()) == nil {
			return &problem.ShapeError{Field: "Tables[" + d.Name() + "]", Got: "missing", Want: "the memory of a table that a modifier reads"}
		}
	}
	return nil
}
