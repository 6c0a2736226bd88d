package tensors

import (
	"fmt"
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
func tableMemory(a *problem.Args, name string) *problem.Table {
	for i := range a.Tables {
		if a.Tables[i].Name == name {
			return &a.Tables[i]
		}
	}
	return nil
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
