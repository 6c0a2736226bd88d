package host

import (
	"sync"

	"vkattn/attention/score"
	"vkattn/internal/half"
	"vkattn/internal/problem"
	"vkattn/internal/simd"
	"vkattn/internal/tensors"
)

// Gradients of the tables of a score modifier on the CPU tier. A task sums in float64 what its slots add to the entries of the
// heads of its group, and adds that to the sums of the call when all tasks in front of it in the list have done so: the order of
// every sum is fixed.

// tableSums are the gradients of a call's tables.
type tableSums struct {
	list   []tableOfCall
	mu     sync.Mutex
	passed sync.Cond
	next   int64 // the task whose sums are added next
}

type tableOfCall struct {
	score.TableGradient
	table, heads, entries int
	sums                  []float64 // [heads][entries]
}

func (s *tableSums) open(c *cpuBackward) {
	s.passed.L = &s.mu
	for i, wanted := range c.want.Tables {
		if wanted {
			t := tableOfCall{TableGradient: tensors.TableGradient(c.Cfg, i), table: i}
			t.heads, t.entries = t.Sizes(tensors.TableDims(c.Cfg, c.Args, i))
			t.sums = make([]float64, t.heads*t.entries)
			s.list = append(s.list, t)
		}
	}
}

// store writes the gradients.
func (s *tableSums) store(c *cpuBackward) {
	for i := range s.list {
		out := tensors.TableOutput(c.Cfg, c.args, s.list[i].table)
		narrow := make([]float32, len(s.list[i].sums))
		for n, x := range s.list[i].sums {
			narrow[n] = float32(x)
		}
		half.EncodeF32(out.Host[out.Offset*int64(problem.F32.Size()):], narrow)
	}
}

// tablePlace is a place where the modifier reads a table, and what the slots of a tile have there.
type tablePlace struct {
	table, read  int // the first of tableSums.list
	entry, slope *score.Evaluator
	entries      []int32   // [BackwardRows][BackwardKeys]
	slopes       []float32 // likewise
}

// openTables prepares a worker for the gradients of tables.
func (w *cpuBackwardWorker) openTables() {
	const slots = simd.BackwardRows * simd.BackwardKeys
	for i := range w.c.tables.list {
		t := &w.c.tables.list[i]
		entry, slope := score.NewEvaluator(t.Entry, score.Float32), score.NewEvaluator(t.Slope, score.Float32)
		for read := range t.Places {
			w.places = append(w.places, tablePlace{i, read, entry, slope, make([]int32, slots), make([]float32, slots)})
		}
		w.tableSums = append(w.tableSums, make([]float64, w.c.Args.Group()*t.entries))
	}
	if len(w.places) > 0 {
		w.Changes, w.Used = make([]float32, slots), make([]bool, slots)
	}
}

// readPlaces evaluates all places for the slots of a row, the first of which is slot `at` of the tile.
func (w *cpuBackwardWorker) readPlaces(s *score.Slots, at int) {
	for i := range w.places {
		p := &w.places[i]
		s.Read = p.read
		p.entry.Eval(w.results, s)
		for n, x := range w.results {
			p.entries[at+n] = int32(x)
		}
		p.slope.Eval(w.results, s)
		for n, x := range w.results {
			p.slopes[at+n] = float32(x)
		}
	}
}

// sumPlaces adds the slots of a tile to the sums of the task.
func (w *cpuBackwardWorker) sumPlaces(u *backwardUnit, first int) {
	for i := range w.places {
		p := &w.places[i]
		sums, entries := w.tableSums[p.table], w.c.tables.list[p.table].entries
		w.eachRow(u, first, func(r, head, _ int) {
			of := sums[(head-u.kv*w.c.Args.Group())*entries:][:entries]
			for n := range w.keys {
				if at := r*simd.BackwardKeys + n; w.Used[at] { // else the derivative may be NaN
					of[p.entries[at]] += float64(w.Changes[at]) * float64(p.slopes[at])
				}
			}
		})
	}
}

// addTables adds the sums of a task to those of the call, behind those of all tasks in front of it.
func (w *cpuBackwardWorker) addTables(u *backwardUnit, task int64) {
	s := &w.c.tables
	if len(s.list) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.next != task {
		s.passed.Wait()
	}
	for i := range s.list {
		t := &s.list[i]
		for g := range w.c.Args.Group() {
			to := t.sums[min(u.kv*w.c.Args.Group()+g, t.heads-1)*t.entries:][:t.entries]
			for e, x := range w.tableSums[i][g*t.entries:][:t.entries] {
				to[e] += x
			}
		}
		clear(w.tableSums[i])
	}
	s.next++
	s.passed.Broadcast()
}
