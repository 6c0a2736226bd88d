//go:build !windows

package cudapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/half"
	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/internal/testlevel"
)

// generalEmulator runs a forward kernel for calls with options on the CPU, of family fa2 or, by runMapped, of fa3.
type generalEmulator struct {
	k         *Kernel
	lib       uintptr
	run       func(entry uintptr, p *generalParams, grid *uint32, threads, reversed int32) string
	runMapped func(p *generalParams, maps *emulatedMap, ctas, reversed int32) string
}

// generalKernel is the kernel of the table for a storage type, head dims and options of slots or none, nil if there is none.
func generalKernel(t *table, dtype string, d, dv int, slots bool) *Kernel {
	for i := range t.kernels { // sorted by size
		if k := &t.kernels[i]; k.General && !k.Sequences && k.Slots == slots && k.DType == dtype && k.D >= d && k.DV >= dv {
			return k
		}
	}
	return nil
}

// newGeneralEmulator loads a kernel with its tile of kernels/build. change may alter the text of its sources.
func newGeneralEmulator(t testing.TB, k *Kernel, change func(dir string)) *generalEmulator {
	t.Helper()
	flags := []string{"-DFA2_NAME=attn", "-DFA2_ELEMENT=" + map[string]string{"f16": "Half", "bf16": "Bfloat"}[k.DType], fmt.Sprintf("-DFA2_D=%d", k.D),
		fmt.Sprintf("-DFA2_DV=%d", k.DV), "-DPARAMS=AttnGeneralParams"}
	// The tile as fa2.json has it, with the numbers that do not show there.
	rest := map[int]struct{ step, qRegs, rounded int }{64: {32, 4, 0}, 128: {32, 0, 1}, 192: {32, 0, 1}, 256: {32, 8, 1}}[k.D]
	if k.Slots {
		rest.step, rest.qRegs = map[bool]int{false: 32, true: 16}[k.D == 128], rest.qRegs&4
	}
	for name, value := range map[string]int{"WARPS": k.Threads / 32, "MFRAGMENTS": k.Rows / (k.Threads / 2), "COLS": k.Cols, "STEP": rest.step, "QREGS": rest.qRegs,
		"STAGES": 2, "BLOCKS": 2, "ROUNDED": rest.rounded, "SHARED": k.Shared} {
		flags = append(flags, fmt.Sprintf("-DFA2_GENERAL_%s=%d", name, value), fmt.Sprintf("-DFA2_SLOTS_%s=%d", name, value))
	}
	slices.Sort(flags)
	e := &generalEmulator{k: k, lib: emulation{kernel: "fa2_general.cu", folder: "warp", change: change}.load(t, flags...)}
	purego.RegisterLibFunc(&e.run, e.lib, "emulate")
	return e
}

// forward computes a call in host memory. eachHead launches each head of each sequence by itself, as calls do with more of them than a
// grid holds, and reverses the order of threads.
func (e *generalEmulator) forward(cfg problem.Config, a problem.Args, all []tensors.Layout, eachHead bool) error {
	factors := plan.FactorsOf(cfg)
	var call problem.CUDACall
	plan.SetCUDACall(&call, &cfg, &factors, &a, all)
	var p generalParams
	p.set(&call)
	p.b = int32(a.B)
	for i, t := range [...]*tensorParams{&p.q, &p.k, &p.v, &p.o} {
		t.base = hostAddress([...][]byte{a.Q.Host, a.K.Host, a.V.Host, a.O.Host}[i], all[i].Tensor.Offset, 2)
	}
	vector := func(v problem.Vector) uint64 { return hostAddress(v.Host, v.Offset, 4) }
	if a.LSE.Given() {
		p.lse = hostAddress(a.LSE.Host, a.LSE.Offset, 4)
	}
	if v := a.Varlen; v != nil {
		p.cuQ, p.cuK, p.usedQ, p.usedK = vector(v.CuQ), vector(v.CuK), vector(v.UsedQ), vector(v.UsedK)
	}
	if a.Pages != nil {
		p.table = vector(a.Pages.Table)
	}
	p.alibi, p.sinks = vector(a.ALiBi), vector(a.Sinks)
	if a.Bias != nil {
		p.bias = hostAddress(a.Bias.Host, a.Bias.Offset, a.Bias.DType.Size())
	}
	if a.Mask != nil {
		p.mask = hostAddress(a.Mask.Host, a.Mask.Offset, 1)
	}
	p.dropState = vector(a.DropoutState)
	if p.setOptions(&call); a.MaxLogits.Given() {
		p.maxLogits = vector(a.MaxLogits)
		half.EncodeF32(a.MaxLogits.Host[4*a.MaxLogits.Offset:], slices.Repeat([]float32{float32(math.Inf(-1))}, a.Hq))
	}
	if e.runMapped != nil {
		return e.mapped(&p, &a, eachHead)
	}
	g, err := e.k.grid(e.k.tiles(&a.Shape, a.B))
	if err != nil {
		return err
	}
	function, err := purego.Dlsym(e.lib, map[bool]string{false: "attn", true: "attn_slots"}[e.k.Slots])
	if err != nil {
		return err
	}
	order, grid, heads, batches := int32(0), [3]uint32{uint32(g[0]), uint32(g[1]), uint32(g[2])}, 1, 1
	if eachHead {
		order, grid, heads, batches = 1, [3]uint32{uint32(g[0]), 1, 1}, a.Hq, a.B
	}
	emulators.Lock()
	defer emulators.Unlock()
	for i := range heads * batches {
		p.firstHead, p.firstBatch = int32(i%heads), int32(i/heads)
		if failure := e.run(function, &p, &grid[0], int32(e.k.Threads), order); failure != "" {
			return errors.New(failure)
		}
	}
	runtime.KeepAlive(a)
	return nil
}

// conformGeneral computes a case. What must not matter, and the order of threads, change no bit.
func conformGeneral(e *generalEmulator, p *cases.Problem) error {
	cfg := p.Config(cases.On(attention.TierCPU, p.DType))
	var afters [2][][]byte
	for i, before := range [2][][]byte{p.Image, p.Spoiled()} {
		for _, image := range before {
			afters[i] = append(afters[i], bytes.Clone(image))
		}
		a := p.HostArgs(afters[i])
		var l tensors.Layouts
		if err := l.Check(&cfg, &a); err != nil {
			return err
		}
		if err := e.forward(cfg, a, l.All(), i == 1); err != nil {
			return err
		}
		if err := p.Trespass(before, afters[i]); err != nil {
			return fmt.Errorf("run %d: %w", i+1, err)
		}
	}
	var truth cases.Truth
	if !strings.HasPrefix(p.Name, "extreme") {
		if err := truth.Judge(p, afters[0]); err != nil {
			return err
		}
	}
	if p.Dropout == 0 { // which the formula does not know
		judged := cases.NewFormula(p).Judge(afters[0])
		if err := judged.Err(); err != nil {
			return err
		}
	}
	return p.Same(afters[0], afters[1])
}

// computesForward reports whether the general forward kernels take a case: it has options, and all of them are theirs.
func computesForward(c *cases.Case) bool {
	cfg := c.Config(cases.On(attention.TierCPU, attention.F16))
	options := c.PackedQ || c.PackedK || c.LooseQ || c.LooseK || c.PageSize > 0 || cfg.Window.Given() || c.Softcap != 0 || c.ALiBi || c.Sinks ||
		c.Bias.On || c.Mask.On || c.Dropout != 0
	return options && c.SparseRatio == 0 && c.BlockQ == 0 && c.AttentionChunk == 0 &&
		c.KeyType == attention.KVSame && c.FixedSplit == 0 && c.Mods == 0 && c.D <= 256 && c.Dv <= 256
}

// The general kernels, run by the CPU, compute the cases of the tables of options, and extreme numbers.
func TestGeneralKernelsOnTheCPU(t *testing.T) {
	testlevel.HostOnly(t)
	table, err := embedded()
	require.NoError(t, err)
	for which, dtype := range []attention.DType{attention.F16, attention.BF16} {
		t.Run(dtype.String(), func(t *testing.T) {
			emulators := map[*Kernel]*generalEmulator{}
			n := 0
			for _, c := range cases.DealOptions(cases.BriefOptions(), 3)[which] {
				if !computesForward(&c) || emulatedTiles(&c) > 64 && !testlevel.IsExhaustive() {
					continue
				}
				n++
				t.Run(c.String(), func(t *testing.T) {
					p, err := cases.NewProblem(c, dtype)
					require.NoError(t, err)
					k := generalKernel(table, dtype.String(), c.D, c.Dv, c.Bias.On || c.Mask.On || c.Dropout != 0)
					require.NotNil(t, k)
					if emulators[k] == nil {
						emulators[k] = newGeneralEmulator(t, k, nil)
					}
					require.NoError(t, conformGeneral(emulators[k], p))
				})
			}
			t.Logf("%d cases", n)
		})
	}
}

// outputsOf computes a case with other arguments.
func (e *generalEmulator) outputsOf(t *testing.T, p *cases.Problem, eachHead bool, change func(a *problem.Args)) (images [][]byte, logits []float32) {
	t.Helper()
	for _, image := range p.Image {
		images = append(images, bytes.Clone(image))
	}
	cfg, a := p.Config(cases.On(attention.TierCPU, p.DType)), p.HostArgs(images)
	a.MaxLogits = problem.Vector{Host: make([]byte, 4*(a.Hq+1)), Offset: 1}
	change(&a)
	var l tensors.Layouts
	require.NoError(t, l.Check(&cfg, &a))
	require.NoError(t, e.forward(cfg, a, l.All(), eachHead))
	logits = make([]float32, a.Hq+1)
	half.DecodeF32(logits, a.MaxLogits.Host)
	require.Zero(t, logits[0])
	return images, logits[1:]
}

// A general kernel stores the largest score of each head, in whatever order CTAs run. A state moves the mask of dropout.
func TestGeneralKernelsOutputsOnTheCPU(t *testing.T) {
	testlevel.HostOnly(t)
	table, err := embedded()
	require.NoError(t, err)
	emulators := map[*Kernel]*generalEmulator{}
	lists := [2][]cases.Case{}
	for which := range lists {
		n := 0
		for _, c := range cases.DealOptions(cases.BriefOptions(), 3)[which] {
			if !computesForward(&c) || c.D > 128 || c.Dv > 128 || emulatedTiles(&c) > 64 {
				continue
			}
			if n++; n%4 == 0 || c.Dropout != 0 || testlevel.IsExhaustive() {
				lists[which] = append(lists[which], c)
			}
		}
	}
	one := cases.Case{Name: "one key", D: 64, Dv: 64, Shape: attention.Shape{Hq: 12, Hkv: 12}, Seqs: []cases.Seq{{ID: 1, Rows: 1, Keys: 1}}, LooseK: true} // scores of either sign
	for which, dtype := range []attention.DType{attention.F16, attention.BF16} {
		for _, c := range append(lists[which], one) {
			t.Run(dtype.String()+" "+c.String(), func(t *testing.T) {
				p, err := cases.NewProblem(c, dtype)
				require.NoError(t, err)
				k := generalKernel(table, dtype.String(), c.D, c.Dv, c.Bias.On || c.Mask.On || c.Dropout != 0)
				require.NotNil(t, k)
				if emulators[k] == nil {
					emulators[k] = newGeneralEmulator(t, k, nil)
				}
				e := emulators[k]
				want, err := attention.ReferenceMaxLogits(attention.Config(p.Config(cases.On(attention.TierCPU, dtype))), p.HostArgs(p.Image))
				require.NoError(t, err)
				images, logits := e.outputsOf(t, p, false, func(*problem.Args) {})
				for h, x := range want {
					require.InDelta(t, x, logits[h], 1e-4*(1+math.Abs(x)), "head %d", h)
				}
				moved, again := e.outputsOf(t, p, true, func(a *problem.Args) {
					if c.Dropout == 0 {
						return
					}
					seed, offset := a.DropoutSeed, uint64(a.DropoutOffset)
					a.DropoutSeed, a.DropoutOffset = 77, math.MaxUint32-5 // the sum of offsets has a carry
					state := binary.LittleEndian.AppendUint64(make([]byte, 4), seed-77-3)
					a.DropoutState = problem.Vector{Host: binary.LittleEndian.AppendUint64(state, offset+3<<32-uint64(a.DropoutOffset)), Offset: 1}
				})
				require.Equal(t, logits, again)
				require.NoError(t, p.Same(images, moved))
			})
		}
	}
}

// requireOnce checks that a file of the kernels has a text, which a test replaces by a fault, once.
func requireOnce(t testing.TB, file, right string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("kernels", file))
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), right), "the text of the kernel has changed: %s: %s", file, right)
}

// A kernel with one fault fails a case of few rows.
func TestGeneralKernelsFaultsAreFound(t *testing.T) {
	testlevel.HostOnly(t)
	table, err := embedded()
	require.NoError(t, err)
	seqs := []cases.Seq{{ID: 1, Rows: 70, Keys: 133}, {ID: 2, Rows: 3, Keys: 9}, {ID: 3, Rows: 40, Keys: 300}}
	base := cases.Case{D: 64, Dv: 64, Shape: attention.Shape{Hq: 4, Hkv: 2}, Seqs: seqs, LSE: true, Causal: attention.BottomRight, Layout: cases.Packed}
	with := func(name string, change func(c *cases.Case)) cases.Case {
		c := base
		c.Name = name
		change(&c)
		return c
	}
	packed := with("packed", func(c *cases.Case) { c.PackedQ, c.PackedK = true, true })
	loose := with("loose", func(c *cases.Case) { c.LooseQ, c.LooseK, c.Causal = true, true, attention.CausalNone })
	window := with("window", func(c *cases.Case) { c.PackedQ, c.Window = true, attention.WindowOf(24, 0) })
	softcap := with("softcap", func(c *cases.Case) { c.Softcap = 3 })
	alibi := with("alibi", func(c *cases.Case) { c.ALiBi, c.PackedK = true, true })
	sinks := with("sinks", func(c *cases.Case) { c.Sinks, c.LooseK = true, true })
	bias := with("bias", func(c *cases.Case) {
		c.LooseQ, c.LooseK, c.Bias = true, true, cases.BiasKind{Spread: cases.Spread{On: true, Heads: true, Rows: true}, DType: attention.F32}
	})
	mask := with("mask", func(c *cases.Case) { c.Mask, c.Causal = cases.Spread{On: true, Rows: true}, attention.CausalNone })
	hidden := with("keys hidden from all rows", func(c *cases.Case) { c.Mask, c.Causal = cases.Spread{On: true}, attention.CausalNone })
	dropout := with("dropout", func(c *cases.Case) { c.Dropout = 0.3 })
	paged := with("paged", func(c *cases.Case) { c.PageSize, c.LooseK, c.PackedQ = 16, true, true })
	for _, x := range []struct {
		c                    cases.Case
		file, right, planted string
	}{
		{packed, "fa2.h", "p.cu_q != 0 ? int64_t(task.head) * p.total_q + bounds.rows.first", "p.cu_q != 0 ? int64_t(task.head) * p.Sq + bounds.rows.first"},
		{packed, "fa2.h", "+ bounds.keys.first * p.v.row", ""},
		{loose, "fa2.h", "|| key >= end", ""},
		{loose, "fa2.h", "if constexpr (C::General) return bounds.rows.used;", "if constexpr (C::General) return bounds.rows.extent;"},
		{window, "fa2.h", "vt = shared + at + C::KBytes;\n\t\t\t\tif (__syncthreads_or(odd_values(vt))) take_odd_values(vt, col);", "vt = 0;"},
		{window, "fa2.h", "past < from", "past <= from"},
		{window, "fa2_general.h", "open = max(last - left, 0)", "open = 0"},
		{window, "fa2_general.h", "first_key = max(row - left, 0)", "first_key = max(row - left + C::Cols, 0)"},
		{softcap, "fa2_general.h", "fabsf(y) < 0.05f", "fabsf(y) < 0.9f"},
		{alibi, "fa2.h", "first_row() + bounds.offset - col", "first_row() - col"},
		{sinks, "fa2.h", "inverse *= take_sink", "take_sink"},
		{sinks, "fa2_general.h", "lse = highest + logf(expf(keys - highest) + expf(sink - highest));", ""},
		{bias, "fa2_general.h", "((const float *)p.bias + at)[k]", "((const float *)p.bias + at)[k + 1]"},
		{bias, "fa2_general.h", "n * 8 + e < left", "n * 8 + e < left - 1"},
		{hidden, "fa2.h", "bounds.masked = TakesSlots<C> && p.mask != 0 ||", "bounds.masked ="},
		{mask, "fa2_general.h", "((const char *)p.mask + at)[k] == 0", "((const char *)p.mask)[k] == 0"},
		{dropout, "fa2_general.h", "(odd ? other : mine) >> 2 * odd", "mine >> 2 * odd"},
		{dropout, "fa2.h", "inverse *= p.drop_scale", ""},
		{paged, "fa2.h", "+ key / p.page_size]", "+ key / (2 * p.page_size)]"},
		{paged, "fa2.h", "int64_t(task.batch) * p.table_stride", "0"},
	} {
		requireOnce(t, x.file, x.right)
		requireFault(t, x.c.Name+" "+x.planted, func(t *testing.T) error {
			p, err := cases.NewProblem(x.c, attention.F16)
			require.NoError(t, err)
			e := newGeneralEmulator(t, generalKernel(table, "f16", 64, 64, x.c.Bias.On || x.c.Mask.On || x.c.Dropout != 0), planting(t, x.file, x.right, x.planted))
			return conformGeneral(e, p)
		})
	}
}

// Numbers at the ends of their ranges give what the formula says. Lengths, positions and pages that are wrong write nothing outside of
// O and LSE.
func TestGeneralKernelsOfExtremesOnTheCPU(t *testing.T) {
	testlevel.HostOnly(t)
	table, err := embedded()
	require.NoError(t, err)
	const want = 24 // cases
	emulators := map[*Kernel]*generalEmulator{}
	n := 0
	for seed := uint64(0); n < want; seed++ {
		dtype := []attention.DType{attention.F16, attention.BF16}[seed%2]
		c := cases.RandomExtreme(seed, int(seed), attention.KVSame, dtype)
		k := generalKernel(table, dtype.String(), c.D, c.Dv, c.Bias.On || c.Mask.On || c.Dropout != 0)
		if !computesForward(&c) || k == nil || k.D > 128 && !testlevel.IsExhaustive() || emulatedTiles(&c) > 32 {
			continue
		}
		p, err := cases.NewProblem(c, dtype)
		require.NoError(t, err)
		cfg := p.Config(cases.On(attention.TierCPU, dtype))
		if plan.CUDASoftcapRefusal(&cfg) != "" {
			continue
		}
		n++
		t.Run(c.String(), func(t *testing.T) {
			if emulators[k] == nil {
				emulators[k] = newGeneralEmulator(t, k, nil)
			}
			require.NoError(t, conformGeneral(emulators[k], p))
			before := p.Wild(seed)
			var after [][]byte
			for _, image := range before {
				after = append(after, bytes.Clone(image))
			}
			sound := p.HostArgs(p.Image)
			var l tensors.Layouts
			require.NoError(t, l.Check(&cfg, &sound))
			require.NoError(t, emulators[k].forward(cfg, p.HostArgs(after), l.All(), false))
			require.NoError(t, p.TrespassTensors(before, after))
		})
	}
}
