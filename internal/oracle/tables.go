package oracle

import (
	"math"

	"vkattn/attention/score"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// Gradients of the tables of a score modifier.

// tableGradient is a table with a gradient, and what each query head of each sequence adds to it.
type tableGradient[T number] struct {
	score.TableGradient
	table, heads, entries int
	sums                  []T       // [B, Hq, entries]
	noise                 []float64 // likewise; nil: not asked for
}

// openTables has room for the gradients of tables.
func (c *backward[T]) openTables() {
	for i, wanted := range c.want.Tables {
		if !wanted {
			continue
		}
		t := tableGradient[T]{TableGradient: tensors.TableGradient(c.Cfg, i), table: i}
		t.heads, t.entries = t.Sizes(tensors.TableDims(c.Cfg, c.Args, i))
		t.sums = make([]T, c.Args.B*c.Args.Hq*t.entries)
		c.tables, c.dTables[i] = append(c.tables, t), make([]T, t.heads*t.entries)
	}
}

// sumTables adds what heads and sequences have found, in the order of the sequences.
func (c *backward[T]) sumTables() {
	for i := range c.tables {
		t := &c.tables[i]
		addHeads(c.dTables[t.table], t.sums, c.Args.Hq, t.heads, t.entries)
	}
}

// addHeads adds sums [B, Hq, entries] to those of a table [heads, entries]. The last of its heads is also that of all further
// query heads.
func addHeads[T number](table, sums []T, hq, heads, entries int) {
	for n := 0; n*entries < len(sums); n++ {
		to := table[min(n%hq, heads-1)*entries:][:entries]
		for e, x := range sums[n*entries:][:entries] {
			to[e] += x
		}
	}
}

// ofTables are gradients in the order of Args.Tables.
func ofTables[T number](a *problem.BackwardArgs, cfg *problem.Config, list [score.MaxTables][]T) (all [][]T) {
	for i, t := range tensors.Tables(cfg) {
		for at := range a.Tables {
			if list[i] != nil && a.Tables[at].Name == t.Name() {
				if all == nil {
					all = make([][]T, len(a.Tables))
				}
				all[at] = list[i]
			}
		}
	}
	return all
}

// tablePlace evaluates a place where the modifier reads a table.
type tablePlace struct {
	table, read  int // the first of backward.tables
	entry, slope *score.Evaluator
}

// placeOfRow is what the entries of a row have at a place.
type placeOfRow[T number] struct {
	elements []int
	slopes   []T
}

// openTables prepares the evaluation of all places.
func (w *worker[T]) openTables(tables []tableGradient[T]) {
	options := optionsOf(w.Call)
	for i := range tables {
		entry, slope := score.NewEvaluator(tables[i].Entry.Of(options), nil), score.NewEvaluator(tables[i].Slope.Of(options), nil)
		for read := range tables[i].Places {
			w.places = append(w.places, tablePlace{i, read, entry, slope})
		}
	}
	for i := range w.rows {
		w.rows[i].places = make([]placeOfRow[T], len(w.places))
	}
}

// readPlaces evaluates all places for the slots of a row.
func (w *worker[T]) readPlaces(r *row[T], s *score.Slots) {
	for i, p := range w.places {
		to := &r.places[i]
		s.Read = p.read
		to.elements = to.elements[:0]
		p.entry.Eval(w.results, s)
		for _, x := range w.results {
			to.elements = append(to.elements, int(x))
		}
		to.slopes = w.derivatives(to.slopes[:0], p.slope, s)
	}
}

// addTables adds a row, which has dX, to the gradients of tables.
func (w *backwardWorker[T]) addTables(r *row[T]) {
	c := w.call
	var moved map[[2]int]float64 // elements of tables, by an error of delta of 1
	if c.roundings != nil && len(r.places) > 0 {
		moved = map[[2]int]float64{}
	}
	for i, place := range r.places {
		table := w.places[i].table
		t := &c.tables[table]
		first := (w.b*w.Args.Hq + w.h) * t.entries
		for n, x := range r.dS {
			if r.scores[n] == 0 {
				continue // the derivative may be NaN
			}
			at, slope := place.elements[n], place.slopes[n]
			t.sums[first+at] += x * slope
			if moved == nil {
				continue
			}
			moved[[2]int{table, first + at}] += float64(r.scores[n] * slope)
			if r.noise != nil {
				t.noise[first+at] += r.noise[n] * math.Abs(float64(slope))
			}
		}
	}
	for at, by := range moved {
		e := r.deltaError * by
		c.tables[at[0]].noise[at[1]] += e * e
	}
}
