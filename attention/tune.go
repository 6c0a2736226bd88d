package attention

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"vkattn/internal/errs"
	"vkattn/internal/operands"
	"vkattn/internal/plan"
	"vkattn/vk"
)

// TuneOptions for Tune. The zero value tunes without LSE and stores the result.
type TuneOptions struct {
	LSE bool // for calls that ask for LSE, which have their own class
	// Budget bounds the time; 0: 50 s. Candidates for which no time remains are not tried. A
	// tuning exceeds its budget by at most one compilation and one run.
	Budget time.Duration
	// Candidates bounds the number of compiled tiles; 0: 40, or 8 on drivers on the CPU,
	// which compile for seconds.
	Candidates int
	DryRun     bool // prune only: nothing is compiled, timed or stored
	// CompileOnly prunes and compiles, to report the compiler's statistics of each tile.
	// Nothing is timed or stored, so the device need not execute anything.
	CompileOnly bool
	NoStore     bool // time, but neither store nor use the result
	// Progress is called with every step, from several goroutines, one call at a time; nil:
	// not called.
	Progress func(TuneProgress)
}

// TuneProgress is a step of a tuning.
type TuneProgress struct {
	Stage string // "compiling", "checking", "warming up" or "timing, round 2"
	Done  int    // candidates done, of Of
	Of    int
}

// tuneBudget is the Budget of TuneOptions by default. Tests raise it: what a tuning finds depends on it.
var tuneBudget = 50 * time.Second

const (
	tuneCandidatesCPU = 8                      // on a driver on the CPU, in place of TuneCandidates
	tuneWarm          = 500 * time.Millisecond // a cold card measured up to 4x slower
)

// Tune finds the fastest tile for a class of shapes. It times the candidates of the table
// on packed tensors of shape s, or of fewer batches of the same class. This Op and later
// ones use the result, and Tune stores it in the user's cache. If storing fails, the report
// has a note.
//
// Tune needs device memory for tensors of that shape, several times if they are small. It
// needs the device to itself, because other work distorts the times. One tuning runs at a
// time in a process. With vk.Options.Stats, candidates that spill registers are dropped
// before they are timed.
//
// Tune drops a candidate that does not compile or run, or whose result differs from the
// result of the heuristic's tile. The report says why. Canceling ctx ends a tuning between
// two steps, and a lost device ends it at once; nothing is stored then. A device that does not finish
// a run within the budget and half a minute more ends it with an error that matches vk.ErrTimeout. If
// the device's timestamps are no times, Tune times by the wall clock, and a note says so. The CPU tier has
// nothing to tune: the error matches [ErrUnsupported].
func (op *Op) Tune(ctx context.Context, s Shape, o TuneOptions) (TuneReport, error) {
	if err := op.tunes(ctx, "Tune", s); err != nil {
		return TuneReport{}, err
	}
	r := op.typical(s)
	r.LSE = o.LSE
	store := plan.StoreOf(op.dev)
	done, err := store.TakeTurn(ctx)
	if err != nil {
		return TuneReport{}, err
	}
	defer done()
	return op.tune(ctx, store, r, o)
}

// tunes refuses what a method does not tune.
func (op *Op) tunes(ctx context.Context, method string, s Shape) error {
	if err := op.usable(); err != nil {
		return err
	}
	switch {
	case ctx == nil:
		return errs.Invalid("%s: no context", method)
	case op.dev == nil:
		return fmt.Errorf("%w: %v has no tiles to tune", ErrUnsupported, op.home)
	case op.experiment != (Experiment{}) || op.backward.named:
		return fmt.Errorf("%w: a kernel changed for measurement is not tuned", ErrUnsupported)
	case op.cfg.Tier.WithoutSPIRV():
		return fmt.Errorf("%w: tier %v has no tiles to tune", ErrUnsupported, op.cfg.Tier)
	}
	return s.Validate()
}

// tuneOnFirstUse tunes the class of a request unless it is tuned already. If tuning fails,
// for example for lack of memory, the class uses the heuristic's tile and has a note.
func (op *Op) tuneOnFirstUse(r plan.Request) error {
	if op.dev == nil {
		return nil
	}
	store := plan.StoreOf(op.dev)
	known := func() (bool, error) {
		c, err := plan.Make(op.dev, op.cfg, r, nil)
		if err == nil && (c.Tier.WithoutSPIRV() || !c.Variant.Tunes() || c.Conversion.Given()) { // Op.converted tunes the rest
			return true, nil
		}
		return err == nil && store.Known(c.Variant, op.cfg, r), err
	}
	if done, err := known(); done || err != nil {
		return err
	}
	ctx := context.Background()
	release, err := store.TakeTurn(ctx)
	if err != nil {
		return err
	}
	defer release()
	if done, err := known(); done || err != nil { // another goroutine may have tuned it meanwhile
		return err
	}
	report, err := op.tune(ctx, store, r, TuneOptions{})
	switch {
	case err != nil && fatal(ctx, err):
		return err
	case err != nil:
		store.Fail(report.Class, err)
	case report.Source != TileTuned:
		store.Fail(report.Class, errors.New("too slow here"))
	}
	return nil
}

// tuning is one run of Tune for one kernel.
type tuning struct {
	TuneOptions
	dtype    DType
	flops    uint64 // of a timed run
	memory   func(ctx context.Context) (contestants, error)
	deadline time.Time
	list     []*candidate // the candidates to try, the heuristic's first
	report   *TuneReport
}

// contestants runs candidates on the tensors of a tuning.
type contestants interface {
	// timed runs an operation n times and returns the time of each run.
	timed(ctx context.Context, op *Op, n int) ([]time.Duration, error)
	// result runs an operation once and returns some of what it computed.
	result(ctx context.Context, op *Op) ([]float32, error)
	// byWall changes to the wall clock, after an error that matches errNoClock.
	byWall()
	close()
}

// hangTime is how much longer than the budget of a tuning one wait for the device may take.
const hangTime = 30 * time.Second

// bounded are contestants on a device that may hang.
type bounded struct {
	contestants
	limit time.Duration // of one wait
}

func (b *bounded) timed(ctx context.Context, op *Op, n int) (times []time.Duration, err error) {
	err = operands.Within(ctx, b.limit, "", func(ctx context.Context) error {
		times, err = b.contestants.timed(ctx, op, n)
		return err
	})
	return times, err
}

func (b *bounded) result(ctx context.Context, op *Op) (values []float32, err error) {
	err = operands.Within(ctx, b.limit, "", func(ctx context.Context) error {
		values, err = b.contestants.result(ctx, op)
		return err
	})
	return values, err
}

// limits fills in the defaults of the options.
func (op *Op) limits(o *TuneOptions) {
	o.Budget = cmp.Or(o.Budget, tuneBudget)
	most := plan.TuneCandidates
	if op.dev.Info().Type == vk.DeviceCPU {
		most = tuneCandidatesCPU
	}
	o.Candidates = cmp.Or(o.Candidates, most)
}

// tune is Tune for a request. The caller holds the store's turn.
func (op *Op) tune(ctx context.Context, store *plan.Store, r plan.Request, o TuneOptions) (report TuneReport, err error) {
	start := time.Now()
	op.limits(&o)
	cfg := op.cfg
	cfg.Tier = plan.WithTiles(cfg.Tier)
	c, err := plan.Make(op.dev, cfg, r, nil)
	if err != nil {
		return report, err
	}
	if c.Conversion.Given() {
		return op.converted.tune(ctx, store, r.Converted(&cfg), o)
	}
	v := c.Variant
	if !v.Tunes() {
		return report, fmt.Errorf("%w: kernel %s has one tile for a call", ErrUnsupported, c.Kernel)
	}
	class := plan.ClassOf(v, cfg, r.Shape)
	if timed := plan.ShrunkBatch(r.Shape); plan.ClassOf(v, cfg, timed) == class {
		r.Shape = timed
	}
	cfg.Tier, cfg.Tuning, cfg.Access = c.Tier, TuningOff, r.Access
	report = TuneReport{Class: class, Shape: r.Shape, Config: Config(cfg), Tier: c.Tier, Kernel: c.Kernel,
		Heuristic: v.Describe(), Winner: v.Describe(), Source: TileHeuristic}
	t := &tuning{TuneOptions: o, dtype: cfg.DType, flops: plan.Flops(cfg, r.Shape), deadline: start.Add(o.Budget), report: &report,
		memory: func(ctx context.Context) (contestants, error) { return newTuneMemory(ctx, op.dev, cfg, r, 0) }}
	defer t.end(start)
	for _, x := range plan.Prune(op.dev.Caps(), v, r, o.Candidates) {
		if t.tries(forwardTile(x)) {
			t.list = append(t.list, newCandidate(op.dev, cfg, x, r))
		}
	}
	return report, op.contest(ctx, store, t, func() (source string, notes []string) {
		_, source, notes = store.Pick(v, op.cfg, r)
		return source, notes
	})
}

// tries reports whether a tile becomes a candidate. It reports the others.
func (t *tuning) tries(x tuneTile) bool {
	switch {
	case x.Out != "":
		t.report.add(&candidate{tuneTile: x}, TunePruned, x.Out)
	case t.DryRun:
		t.report.add(&candidate{tuneTile: x}, TuneUntried, "")
	default:
		return true
	}
	return false
}

// end releases the candidates and completes the report.
func (t *tuning) end(start time.Time) {
	for _, c := range t.list {
		c.close()
	}
	t.report.order()
	t.report.Seconds = time.Since(start).Seconds()
}

// contest finds the winner among the candidates and keeps it. inUse returns the source of
// the tile of the class, for a tuning that times nothing.
func (op *Op) contest(ctx context.Context, store *plan.Store, t *tuning, inUse func() (source string, notes []string)) error {
	report := t.report
	if t.CompileOnly {
		if err := t.compileOnly(ctx); err != nil {
			return err
		}
	}
	if t.DryRun || t.CompileOnly {
		source, notes := inUse()
		report.Source, report.Notes = cmp.Or(source, TileHeuristic), notes
		return nil
	}
	winner, best, heuristic, err := t.compete(ctx)
	if err != nil {
		return err
	}
	report.Winner, report.Gain = winner.entry.Name, ratio(heuristic, best)
	if t.NoStore {
		return nil
	}
	e := winner.entry
	e.Ms, e.HeuristicMs, e.Shape = best, heuristic, report.Shape.String()
	op.keep(store, report, e)
	return nil
}

// keep makes a result the tile of its class and stores it.
func (op *Op) keep(store *plan.Store, report *TuneReport, e plan.TuningEntry) {
	others, untried := 0, 0
	for _, c := range report.Candidates {
		switch {
		case c.Ms > 0 && !c.Heuristic:
			others++
		case c.Status == TuneUntried:
			untried++
		}
	}
	if others == 0 && untried > 0 {
		report.Notes = append(report.Notes, "not stored: no time was left for another tile than the heuristic's")
		return
	}
	report.Source = TileTuned
	if err := store.Put(report.Class, e); err != nil {
		report.Notes = append(report.Notes, fmt.Sprintf("not stored: %v", err))
	} else {
		report.Stored = store.Path
	}
	op.forget()
}

// compile compiles the candidates within a share of the remaining time.
func (t *tuning) compile(ctx context.Context, share float64) error {
	until := time.Now().Add(time.Duration(float64(time.Until(t.deadline)) * share))
	built := 0
	buildAll(ctx, t.list, func() bool { return time.Now().After(until) }, func() {
		built++
		t.say("compiling", built, len(t.list))
	})
	return ctx.Err()
}

// screen returns the candidates that remain after compiling and reports the others. An
// error of the heuristic's tile, or of the device, is returned.
func (t *tuning) screen(ctx context.Context) (left []*candidate, err error) {
	spill := dropSpills(t.list)
	for i, c := range t.list {
		switch reason := spill[c]; {
		case c.err != nil && (fatal(ctx, c.err) || i == 0):
			return nil, c.err
		case c.err != nil:
			t.report.add(c, TuneFailed, c.err.Error())
		case !c.built:
			t.report.add(c, TuneUntried, "no time was left to compile it")
		case reason != "":
			t.report.add(c, TuneSpills, reason)
		default:
			left = append(left, c)
		}
	}
	return left, nil
}

func (t *tuning) compileOnly(ctx context.Context) error {
	if err := t.compile(ctx, 1); err != nil {
		return err
	}
	left, err := t.screen(ctx)
	for _, c := range left {
		t.report.add(c, TuneUntried, "")
	}
	return err
}

// check runs each candidate once and returns the candidates whose result agrees with the
// result of the first, the heuristic's.
func (t *tuning) check(ctx context.Context, memory contestants, list []*candidate, until time.Time) (good []*candidate, err error) {
	var want []float32
	for i, c := range list {
		if i > 0 && time.Now().After(until) {
			t.report.add(c, TuneUntried, "no time was left to check it")
			continue
		}
		t.say("checking", i+1, len(list))
		got, err := memory.result(ctx, c.op)
		switch {
		case err != nil && (fatal(ctx, err) || i == 0):
			return nil, err
		case err != nil:
			t.report.add(c, TuneFailed, err.Error())
			continue
		case i == 0:
			want = got
		}
		if err := agree(t.dtype, want, got); err != nil && i > 0 {
			t.report.add(c, TuneWrong, err.Error())
			continue
		}
		good = append(good, c)
	}
	return good, nil
}

// compete compiles, checks and times the candidates. It returns the winner, its time and
// the time of the heuristic's tile, in milliseconds.
func (t *tuning) compete(ctx context.Context) (winner *candidate, best, heuristic float64, err error) {
	memory := &bounded{limit: t.Budget + hangTime}
	err = operands.Within(ctx, memory.limit, "", func(ctx context.Context) error {
		memory.contestants, err = t.memory(ctx)
		return err
	})
	if err != nil {
		return nil, 0, 0, err
	}
	defer memory.close()

	checkUntil := time.Now().Add(time.Until(t.deadline) * 8 / 10)
	if err := t.compile(ctx, 0.6); err != nil {
		return nil, 0, 0, err
	}
	runs, err := t.screen(ctx)
	if err == nil {
		runs, err = t.check(ctx, memory, runs, checkUntil)
	}
	if err != nil {
		return nil, 0, 0, err
	}
	all, first, err := t.race(ctx, memory, runs)
	if errors.Is(err, errNoClock) { // all times are of one clock
		memory.byWall()
		t.report.Notes = append(t.report.Notes, "timed by the wall clock: "+errNoClock.Error())
		all, first, err = t.race(ctx, memory, runs)
	}
	if err != nil {
		return nil, 0, 0, err
	}
	for i, c := range runs {
		x := TuneTimed
		reason := ""
		switch {
		case all[i].err != nil:
			x, reason = TuneFailed, all[i].err.Error()
		case all[i].median == 0:
			x, reason = TuneUntried, "no time was left to time it"
		case all[i].final:
			x = TuneFinalist
		}
		row := t.report.add(c, x, reason)
		row.Winner, row.Runs, row.Ms = i == first, all[i].runs, milliseconds(all[i].median)
		row.TFLOPs = ratio(float64(t.flops), row.Ms*1e9)
	}
	return runs[first], milliseconds(all[first].median), milliseconds(all[0].median), nil
}

// race times the candidates. They are in the order of their estimates, so that the likely ones are timed if
// time runs out.
func (t *tuning) race(ctx context.Context, memory contestants, runs []*candidate) (all []runner, winner int, err error) {
	t.say("warming up", 0, len(runs))
	for start := time.Now(); time.Since(start) < min(tuneWarm, t.Budget/4); {
		if _, err := memory.timed(ctx, runs[0].op, 4); err != nil {
			return nil, 0, err
		}
	}
	contest := race{
		run:  func(ctx context.Context, i, n int) ([]time.Duration, error) { return memory.timed(ctx, runs[i].op, n) },
		over: func() bool { return time.Now().After(t.deadline) },
		say:  func(round, left int) { t.say(fmt.Sprintf("timing, round %d", round), len(runs)-left, len(runs)) },
	}
	return contest.hold(ctx, len(runs))
}

func (t *tuning) say(stage string, done, of int) {
	if t.Progress != nil {
		t.Progress(TuneProgress{stage, done, of})
	}
}

// add puts a candidate into the report.
func (r *TuneReport) add(c *candidate, status TuneStatus, reason string) *TuneCandidate {
	r.Candidates = append(r.Candidates, TuneCandidate{
		Tile: c.entry.Name, Status: status, Reason: reason, Heuristic: c.Heuristic,
		SharedBytes: c.Shared, Estimate: c.Registers,
		Registers: c.stats.registers, SpillBytes: c.stats.spills, SpillShared: c.stats.inShared, CompileMs: milliseconds(c.compile),
	})
	return &r.Candidates[len(r.Candidates)-1]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// forget drops the plans, so that the next calls plan with the current tiles. The device
// keeps the pipelines.
func (op *Op) forget() {
	op.mu.Lock()
	defer op.mu.Unlock()
	op.plans.clear()
	op.backward.mu.Lock()
	defer op.backward.mu.Unlock()
	clear(op.backward.plans)
}
