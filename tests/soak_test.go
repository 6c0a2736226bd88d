package tests

import (
	crypto "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/vk"
)

// Environment variables of the soak.
const (
	soakSecondsEnv = "VKATTN_SOAK_SECONDS" // how long it takes, in several processes; unset: some seconds, in this one
	soakSeedEnv    = "VKATTN_SOAK_SEED"    // of all compositions; unset: a random one
	soakCaseEnv    = "VKATTN_SOAK_CASE"    // the one case to compute, as failures name it
	soakTargetsEnv = "VKATTN_SOAK_TARGETS" // a regular expression of targets with their KV type, such as coopmat/f16/int8
	soakWorkerEnv  = "VKATTN_SOAK_WORKER"  // of a child process: its number, its seed and when it ends
)

// soakCase names one case.
type soakCase struct {
	cases.Target
	KV   attention.KVType
	Seed uint64 // of its composition
	Draw int
}

func (c soakCase) group() string { return fmt.Sprintf("%v/%v", c.Target, c.KV) }

func (c soakCase) String() string { return fmt.Sprintf("%s/%d/%d", c.group(), c.Seed, c.Draw) }

func (c soakCase) composition() cases.Case {
	return cases.RandomExtreme(c.Seed, c.Draw, c.KV, c.DType)
}

func parseSoakCase(s string) (c soakCase, err error) {
	part := strings.Split(s, "/")
	if len(part) != 5 {
		return c, fmt.Errorf("%q is no case: want tier/type/KV type/seed/draw", s)
	}
	var errs [5]error
	errs[0] = c.Tier.Set(part[0])
	errs[1] = c.DType.Set(part[1])
	errs[2] = c.KV.Set(part[2])
	c.Seed, errs[3] = strconv.ParseUint(part[3], 10, 64)
	c.Draw, errs[4] = strconv.Atoi(part[4])
	return c, errors.Join(errs[:]...)
}

// TestSoak computes random compositions of options, with numbers at the ends of their
// ranges, on every tier in every storage type with every KV type. The formula in float64
// judges them. It computes each case twice, the second time with everything spoiled that
// must not matter; both must give the same bits.
func TestSoak(t *testing.T) {
	switch {
	case os.Getenv(soakWorkerEnv) != "":
		soakWorker(t)
	case os.Getenv(soakCaseEnv) != "":
		soakOne(t)
	case os.Getenv(soakSecondsEnv) != "":
		soakProcesses(t)
	default:
		soakBriefly(t)
	}
}

// soakGroups returns the targets, with their KV types, that the soak covers: without latent attention if small, whose head dims
// are 576 and 512.
func (s *session) soakGroups(t *testing.T, small bool) (groups []soakCase) {
	wanted, err := regexp.Compile(os.Getenv(soakTargetsEnv))
	require.NoError(t, err)
	targets := s.available()
	if s.dev != nil && targets[0].Tier != attention.TierCPU && s.dev.Info().Type != vk.DeviceCPU {
		targets = append(targets, cpuTypes...) // drivers on the CPU have enough to do
	}
	for _, kv := range attention.KVTypes() {
		if small && kv.Latent() {
			continue
		}
		for _, tt := range targets {
			if c := (soakCase{Target: tt, KV: kv}); wanted.MatchString(c.group()) {
				groups = append(groups, c)
			}
		}
	}
	require.NotEmpty(t, groups, "no target fits %s", soakTargetsEnv)
	return groups
}

// soakSeed returns the seed of a run and prints it.
func soakSeed(t *testing.T) uint64 {
	text := os.Getenv(soakSeedEnv)
	if text == "" {
		var b [8]byte
		_, err := crypto.Read(b[:])
		require.NoError(t, err)
		text = strconv.FormatUint(binary.LittleEndian.Uint64(b[:])>>16, 10)
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, soakSeedEnv)
	fmt.Printf("soak: %s=%d\n", soakSeedEnv, seed)
	return seed
}

// briefSeed is the seed of the soak among other tests. It is the same on every run, so that
// only a change of the code makes it fail. The long soak finds new compositions.
func briefSeed(t *testing.T) uint64 {
	if os.Getenv(soakSeedEnv) == "" {
		fmt.Printf("soak: %s=1\n", soakSeedEnv)
		return 1
	}
	return soakSeed(t)
}

// soaker computes random compositions of its groups, until a time or up to a number of them.
type soaker struct {
	*session
	groups []soakCase
	rand   *rand.Rand
	until  time.Time // zero: no limit
	most   int       // compositions; 0: no limit
	draws  int       // of each composition
	small  bool      // head dims that compile quickly: of at most 100 together
	mods   bool      // every composition has modifiers
	record func(soakRecord)

	mu    sync.Mutex
	next  []soakCase
	drawn int
	lost  atomic.Bool // the device is gone
}

// draw returns the next composition, if there is one. The groups take turns, in random order.
func (k *soaker) draw() (c soakCase, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.drawn++; k.over() || len(k.groups) == 0 || k.most > 0 && k.drawn > k.most {
		return c, false
	}
	for {
		if len(k.next) == 0 {
			k.next = append(k.next, k.groups...)
			k.rand.Shuffle(len(k.next), func(i, j int) { k.next[i], k.next[j] = k.next[j], k.next[i] })
		}
		c = k.next[0]
		bits := k.rand.Uint64()
		if c.Seed = bits >> 16; k.mods || bits%4 == 0 {
			c.Seed |= cases.ExtremeMods
		}
		if bits&8 != 0 {
			c.Seed |= cases.ExtremeMask
		}
		if k.mods && c.KV == attention.KVSame && computesGradients(c.Tier) && bits%4 != 0 {
			c.Seed |= soakGradients
		}
		if x := c.composition(); k.small && x.D+x.Dv > 100 {
			continue
		}
		k.next = k.next[1:]
		return c, true
	}
}

// soak computes compositions as long as draw returns some, with that many workers at once: most of the time is the driver's
// compiler, which has one thread a pipeline.
func (k *soaker) soak(workers int) {
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for c, ok := k.draw(); ok; c, ok = k.draw() {
				k.compose(c, 0, k.draws)
			}
		})
	}
	wg.Wait()
}

func (k *soaker) over() bool {
	return k.lost.Load() || !k.until.IsZero() && !time.Now().Before(k.until)
}

// soakBatch is the number of cases in one submission.
const soakBatch = 6

// compose computes draws of one composition.
func (k *soaker) compose(c soakCase, first, draws int) {
	if c.Seed&soakGradients != 0 {
		k.composeGradients(c, first, draws)
		return
	}
	c.Draw = first
	k.record(soakRecord{Event: soakStart, Case: c.String()})
	e := k.newEngine(c.Target)
	for from := first; from < first+draws && (from == first || !k.over()); from += soakBatch {
		var batch []*soakRun
		for i := from; i < min(from+soakBatch, first+draws); i++ {
			one := c
			one.Draw = i
			batch = append(batch, &soakRun{soakCase: one})
		}
		k.run(e, batch)
	}
	end := soakRecord{Event: soakEnd, Case: c.String()}
	if err := e.close(); err != nil {
		end.Error = err.Error()
	}
	k.record(end)
}

// soakRun is a case that is being computed.
type soakRun struct {
	soakCase
	problem *cases.Problem
	jobs    []*job
}

// run computes and judges some cases.
func (k *soaker) run(e *engine, batch []*soakRun) {
	var all []*job
	for _, x := range batch {
		c := x.composition()
		var err error
		if x.problem, err = cases.NewProblem(c, x.DType); err != nil {
			k.done(x, 0, cases.Judgement{}, err)
			continue
		}
		cfg := c.Config(x.Target)
		x.jobs = []*job{
			{Problem: x.problem, cfg: attention.Config(cfg), before: x.problem.Image},
			{Problem: x.problem, cfg: attention.Config(cfg), before: x.problem.Spoiled()},
		}
		all = append(all, x.jobs...)
	}
	err := e.run(all)
	for _, x := range batch {
		if x.jobs == nil {
			continue
		}
		failed := err
		if err != nil && len(batch) > 1 && !errors.Is(err, vk.ErrDeviceLost) {
			failed = e.run(x.jobs)
		}
		var compile milliseconds
		for _, j := range x.jobs {
			compile += inMilliseconds(j.recording)
		}
		var judged cases.Judgement
		if failed == nil {
			judged, failed = x.judge(e)
		}
		k.done(x, compile, judged, failed)
	}
	if errors.Is(err, vk.ErrDeviceLost) {
		k.lost.Store(true)
	}
}

// judge returns the error in the memory that a case wrote. It asks the plan for splits only
// if they may make a difference.
func (x *soakRun) judge(e *engine) (cases.Judgement, error) {
	p := x.problem
	formula := cases.NewFormula(p)
	judged := formula.Judge(x.jobs[0].after)
	if judged.Wrong > 0 && e.dev != nil {
		plan, err := e.plan(x.jobs[0])
		if err != nil {
			return judged, err
		}
		fragments := plan.Tier == attention.TierCoopMat || plan.Tier == attention.TierCoopMat2
		formula.Rounded = fragments && p.KeyType.Scaled()
		if fragments && !p.KeyType.Scaled() && !p.ChangesScores() {
			formula.MaxScore = attention.MaxFastScore
		}
		if formula.Rounded || formula.MaxScore != 0 {
			judged = formula.Judge(x.jobs[0].after)
		}
	}
	for i, j := range x.jobs {
		if err := p.Trespass(j.before, j.after); err != nil {
			return judged, fmt.Errorf("run %d: %w", i+1, err)
		}
	}
	if err := judged.Err(); err != nil {
		return judged, err
	}
	if err := p.Same(x.jobs[0].after, x.jobs[1].after); err != nil {
		return judged, fmt.Errorf("what must not matter was spoiled, and the result changed: %w", err)
	}
	return judged, nil
}

func (k *soaker) done(x *soakRun, compile milliseconds, judged cases.Judgement, err error) {
	r := soakRecord{Event: soakDone, Case: x.String(), Rows: judged.Rows, Unjudged: judged.Unjudged, Share: judged.Share, Compile: compile}
	switch {
	case errors.Is(err, attention.ErrUnsupported):
		r.Refused = err.Error()
	case err != nil:
		r.Error, r.Composition = err.Error(), x.composition().String()
		r.Class = "error"
		var row *cases.RowError
		if errors.As(err, &row) {
			r.Class = row.Class
		}
	}
	k.record(r)
}

// soakOne computes the case that the environment names.
func soakOne(t *testing.T) {
	c, err := parseSoakCase(os.Getenv(soakCaseEnv))
	require.NoError(t, err)
	k := &soaker{session: openTiers(t), record: reportTo(t)}
	if c.Seed&soakGradients != 0 {
		t.Logf("%v: %v", c, soakModified(c.Seed, c.Draw))
	} else {
		t.Logf("%v: %+v", c, c.composition())
	}
	k.compose(c, c.Draw, 1)
}

// reportTo reports failures to a test.
func reportTo(t *testing.T) func(r soakRecord) {
	return func(r soakRecord) {
		switch {
		case r.Error != "":
			t.Errorf("%s", r.failure())
		case r.Event == soakDone:
			t.Logf("%s: %d rows, %.0f %% of what is allowed %s", r.Case, r.Rows, 100*r.Share, r.Refused)
		}
	}
}

// foundBySoaks are cases that a long soak found, of what no other test has: what was wrong.
var foundBySoaks = []string{
	"f16/same/103773531751964/8",   // small head dims: the scratch of a subgroup overlaid the row max of another
	"f16/q4_0/176792376402759/2",   // packed Q, K without lengths, Params in a buffer: NVIDIA's compiler left the last keys out
	"f16/same/279391343286572/17",  // Inf of a key without weight was added only if a masked slot held one too
	"bf16/int8/350712321422/4",     // the weight of a split, 2^-115 of the largest by the scales of V, counts as 0
	"bf16/same/303273070481848/20", // a mask modifier alone, and scores over MaxFastScore: NaN, which the judge did not expect
}

func TestSoakFoundBefore(t *testing.T) {
	s := openTiers(t)
	for _, tt := range s.available() {
		for _, name := range foundBySoaks {
			c, err := parseSoakCase(tt.Tier.String() + "/" + name)
			require.NoError(t, err)
			if c.DType != tt.DType {
				continue
			}
			k := &soaker{session: s, record: reportTo(t)}
			k.compose(c, c.Draw, 1)
		}
	}
}

// soakBriefly is the soak among other tests: a few compositions that compile quickly. With modifiers there are 60.
func soakBriefly(t *testing.T) {
	s := openTiers(t)
	var mu sync.Mutex
	report := reportTo(t)
	seen := map[string]bool{} // compositions that were computed; true: with gradients
	rows, refused := 0, 0
	small := fewPipelines()
	k := &soaker{
		session: s, groups: s.soakGroups(t, small), rand: rand.New(rand.NewPCG(briefSeed(t), 1)), small: small,
		draws: soakBatch, most: 8,
		record: func(r soakRecord) {
			mu.Lock()
			defer mu.Unlock()
			report(r)
			if c, err := parseSoakCase(r.Case); err == nil && r.Event == soakDone {
				c.Draw = 0
				if r.Refused != "" {
					refused++
				} else {
					seen[c.String()] = c.Seed&soakGradients != 0
				}
				rows += r.Rows
			}
		},
	}
	if os.Getenv(soakModsEnv) != "" {
		k.mods, k.most, k.draws = true, 60, 2
	}
	k.soak(runtime.GOMAXPROCS(0))
	gradients := 0
	for _, with := range seen {
		if with {
			gradients++
		}
	}
	t.Logf("%d compositions, %d of them with gradients, %d rows judged, %d calls refused", len(seen), gradients, rows, refused)
}

// soakWorker is a child of soakProcesses.
func soakWorker(t *testing.T) {
	var n, workers int
	var seed uint64
	var until int64
	_, err := fmt.Sscan(os.Getenv(soakWorkerEnv), &n, &workers, &seed, &until)
	require.NoError(t, err)
	s := openTiers(t)
	journal, err := os.OpenFile(os.Getenv(soakJournalEnv), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	require.NoError(t, err)
	small := os.Getenv(soakSmallEnv) != ""
	k := &soaker{
		session: s, groups: s.soakGroups(t, small), rand: rand.New(rand.NewPCG(seed, uint64(n))), small: small,
		mods: os.Getenv(soakModsEnv) != "", draws: 4 * soakBatch, until: time.UnixMilli(until),
		record: func(r soakRecord) {
			r.Process, r.At = n, time.Now().UnixMilli()
			if err := r.writeTo(journal); err != nil {
				panic(err) // the parent reports it
			}
		},
	}
	k.soak(workers)
	require.NoError(t, journal.Close())
	if k.lost.Load() {
		os.Exit(soakLostDevice) // a lost device need not be closed
	}
}

// soakWorkers returns how many compositions each of some processes computes at once.
func soakWorkers(processes int) int {
	return max(2, (runtime.NumCPU()*5/4+processes-1)/processes)
}
