package tests

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/score"
	"vkattn/internal/accuracy"
	"vkattn/internal/cases"
	"vkattn/internal/problem"
	"vkattn/internal/randscore"
	"vkattn/vk"
)

// soakModsEnv makes every composition of a soak one with modifiers of the user. Most of those without quantized K and V
// then have gradients too.
const soakModsEnv = "VKATTN_SOAK_MODIFIERS"

// soakGradients is a bit of a seed: the composition is a forward and a backward call with modifiers.
const soakGradients = 1 << 49

// soakModified is a random call with modifiers and gradients. The seed decides what changes its pipelines, draw its sizes.
func soakModified(seed uint64, draw int) modifiedGradients {
	r := rand.New(rand.NewPCG(seed, 0x30d5))
	one := func(of ...int) int { return of[r.IntN(len(of))] }
	m := modifiedGradients{modified: modified{d: one(8, 24, 32, 40, 64, 64, 80, 128)}, bias: r.IntN(5) == 0}
	tables := []score.Table{modTables[0].Table, modTables[1].Table}
	if r.IntN(5) > 0 {
		m.score = randscore.DrawGentle(r, 3, tables...).String()
	}
	if m.score == "" || r.IntN(2) == 0 {
		m.mask = score.Or(randscore.DrawExact(r, score.TypeBool, 1+r.IntN(3), tables[0]), score.Eq(score.I, score.J)).String()
	}
	e, _ := parseModifier(m.score)
	if read, _ := score.TablesOf(e); m.score != "" && slices.Contains(read, tables[1]) && r.IntN(2) == 0 {
		m.dTables = []string{"bias"}
	}
	packed := r.IntN(4) == 0
	causal, window, softcap, dropout := one(0, 0, 1, 2), one(0, 0, 0, 30), one(0, 0, 0, 5), one(0, 0, 0, 1)
	m.change = func(c *attention.Config, a *attention.Args) {
		c.Causal, c.Softcap, c.Dropout, a.DropoutSeed = attention.Causal(causal), float32(softcap), 0.25*float32(dropout), uint64(draw)
		if window > 0 {
			c.Window = attention.WindowOf(window, window)
			if causal == 0 {
				c.Align = attention.BottomRight
			}
		}
	}
	d := rand.New(rand.NewPCG(seed, 0xd4a3+uint64(draw)))
	group := 1 + d.IntN(3)
	m.shape = attention.Shape{B: 1 + d.IntN(2), Hkv: 1 + d.IntN(2), Sq: 1 + d.IntN(150), Sk: 2 + d.IntN(200)}
	if m.shape.Hq = m.shape.Hkv * group; m.shape.Hq == 1 { // tables of slopes are one less than the heads
		m.shape.Hq, m.shape.Hkv = 2, 2
	}
	if packed {
		m.shape.Sk = max(2, m.shape.Sq)
		m.shape.Sq = m.shape.Sk
		for range m.shape.B {
			m.packed = append(m.packed, d.IntN(m.shape.Sq+1))
		}
		m.packed[0] = m.shape.Sq
	}
	m.name = fmt.Sprintf("D %d, %v, packed %v, causal %d, window %d, softcap %d, dropout %d, bias %v, dTables %v, score %s, mask %s",
		m.d, m.shape, m.packed, causal, window, softcap, dropout, m.bias, m.dTables, m.score, m.mask)
	return m
}

// A few compositions on the CPU tier, which a long soak has on every tier. Their names parse to them.
func TestSoakOfGradients(t *testing.T) {
	if name := driverUnderTest().name; name != "" && name != "none" {
		t.Skip("the same without a Vulkan driver")
	}
	for seed := range uint64(6) {
		c := soakCase{Target: cases.On(attention.TierCPU, attention.DTypes()[seed%3]), Seed: seed | soakGradients}
		again, err := parseSoakCase(c.String())
		require.NoError(t, err)
		rows := 0
		k := &soaker{session: &session{}, record: func(r soakRecord) {
			reportTo(t)(r)
			rows += r.Rows
		}}
		k.compose(again, 0, 2)
		require.Positive(t, rows)
	}
}

// composeGradients computes draws of a composition with gradients, each twice, and judges O, LSE and the gradients.
func (k *soaker) composeGradients(c soakCase, first, draws int) {
	c.Draw = first
	k.record(soakRecord{Event: soakStart, Case: c.String()})
	e := k.newEngine(c.Target)
	for c.Draw = first; c.Draw < first+draws && (c.Draw == first || !k.over()); c.Draw++ {
		m := soakModified(c.Seed, c.Draw)
		rows, err := k.gradients(e, c, m)
		r := soakRecord{Event: soakDone, Case: c.String(), Rows: rows}
		switch {
		case errors.Is(err, attention.ErrUnsupported):
			r.Refused = err.Error()
		case err != nil:
			r.Error, r.Class, r.Composition = err.Error(), "gradients", m.name
		}
		k.record(r)
		if errors.Is(err, vk.ErrDeviceLost) {
			k.lost.Store(true)
			break
		}
	}
	end := soakRecord{Event: soakEnd, Case: c.String()}
	if err := e.close(); err != nil {
		end.Error = err.Error()
	}
	k.record(end)
}

// gradients computes and judges a call. It returns the number of rows that were judged.
func (k *soaker) gradients(e *engine, c soakCase, m modifiedGradients) (rows int, err error) {
	cfg, err := m.configOf(c.Target)
	if err != nil {
		return 0, err
	}
	before := m.memory(c.DType)
	after, err := e.runBackward(m, cfg, before)
	if err != nil {
		return 0, err
	}
	again, err := e.runBackward(m, cfg, before)
	if err != nil {
		return 0, err
	}
	for i := range after {
		if !slices.Equal(after[i], again[i]) {
			return 0, fmt.Errorf("piece %d has other bits in a second run", i)
		}
	}
	a := m.BackwardHostArgs(after)
	forward, err := accuracy.Verify(problem.Config(cfg), a.Args, accuracy.Options{Rows: -1})
	if err != nil {
		return 0, err
	}
	if !forward.Pass() {
		return forward.Rows, fmt.Errorf("%v", forward)
	}
	verdict, err := accuracy.VerifyBackward(problem.Config(cfg), a, accuracy.Options{})
	if err != nil {
		return forward.Rows, err
	}
	if !verdict.Pass() {
		return forward.Rows + verdict.Rows, fmt.Errorf("%v", verdict)
	}
	return forward.Rows + verdict.Rows, nil
}
