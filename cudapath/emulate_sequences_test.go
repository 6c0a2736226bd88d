//go:build !windows

package cudapath

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/internal/testlevel"
)

// sequencesKernels are the kernels of a family, fa3 or cubinFamily, for lengths and windows for a storage type and head dims.
func sequencesKernels(t *table, family, dtype string, d, dv int, paged bool) (list []*Kernel) {
	kernels := t.kernels
	if family == cubinFamily {
		kernels = t.cubins
	}
	for i := range kernels { // sorted by size
		k := &kernels[i]
		if k.Sequences && k.Paged == paged && k.DType == dtype && k.D >= d && k.DV >= dv && (len(list) == 0 || k.D == list[0].D && k.DV == list[0].DV) {
			list = append(list, k)
		}
	}
	return list
}

// sequencesFamilies have kernels for lengths and windows.
var sequencesFamilies = []string{"fa3", cubinFamily}

// sequencesRings are the fields of tiles of cubinFamily that its table has not, by head dim and keys: stages, ONE_RING and PINGPONG.
var sequencesRings = map[[2]int][3]int{{64, 48}: {3, 0, 1}, {64, 32}: {4, 0, 1}, {64, 80}: {2, 0, 1}, {96, 48}: {3, 1, 0}, {128, 32}: {2, 0, 0}}

// newSequencesEmulator loads a kernel of sequencesKernels with its tile. change may alter the text of its sources.
func newSequencesEmulator(t testing.TB, k *Kernel, change func(dir string)) *generalEmulator {
	t.Helper()
	flags := []string{fmt.Sprintf("-DATTN_BF16=%d", map[bool]int{true: 1}[k.DType == "bf16"]), fmt.Sprintf("-DATTN_D=%d", k.D), fmt.Sprintf("-DATTN_DV=%d", k.DV)}
	if k.Paged {
		flags = append(flags, "-DCUBIN_PAGED=1")
	}
	if k.Family == cubinFamily {
		ring, ok := sequencesRings[[2]int{k.D, k.Cols}]
		require.True(t, ok)
		for i, name := range []string{"WARPGROUPS", "COLS", "SHARED", "AHEAD", "STAGES", "ONE_RING", "PINGPONG"} {
			flags = append(flags, fmt.Sprintf("-DCUBIN_CAUSAL_%s=%d", name, append([]int{k.Rows / 64, k.Cols, k.Shared, 0}, ring[:]...)[i]))
		}
	} else {
		flags = append(flags, fmt.Sprintf("-DFA3_WARPGROUPS=%d", k.Rows/64), fmt.Sprintf("-DFA3_COLS=%d", k.Cols))
	}
	e := &generalEmulator{k: k, lib: emulation{kernel: map[string]string{"fa3": "fa3.cu", cubinFamily: "cubin.cu"}[k.Family], folder: "sm90", file: "forward.cc", change: change}.load(t, flags...)}
	purego.RegisterLibFunc(&e.runMapped, e.lib, "emulate")
	return e
}

// mapped runs the kernel in one CTA or, in the opposite order of threads, in some.
func (e *generalEmulator) mapped(p *generalParams, a *problem.Args, several bool) error {
	var maps [3]emulatedMap
	for i, x := range p.mapped(&a.Shape) {
		if i == len(maps) {
			break
		}
		maps[i] = emulatedMap{base: x.base, batch: x.batch, head: x.head, row: x.row, dim: int64(x.dim), rows: int64(x.rows), heads: int64(x.heads)}
		if x.packed {
			maps[i].packed = 1
		}
	}
	ctas, order := int32(1), int32(0)
	if several {
		ctas, order = 5, 1
	}
	emulators.Lock()
	defer emulators.Unlock()
	if failure := e.runMapped(p, &maps[0], ctas, order); failure != "" {
		return errors.New(failure)
	}
	runtime.KeepAlive(a)
	return nil
}

// computesSequences reports whether the kernels of fa3 take a case: it has lengths, a window or both, and no other option, and 16-byte
// copies reach its rows.
func computesSequences(t testing.TB, p *cases.Problem) bool {
	t.Helper()
	c := &p.Case
	if !computesForward(c) || c.PageSize%pagedKeys != 0 || c.Softcap != 0 || c.ALiBi || c.Sinks || c.Bias.On || c.Mask.On || c.Dropout != 0 || c.D > 128 || c.Dv > 128 {
		return false
	}
	cfg, a := p.Config(cases.On(attention.TierCPU, p.DType)), p.HostArgs(p.Image)
	var l tensors.Layouts
	require.NoError(t, l.Check(&cfg, &a))
	for i := range tensorNames {
		x := &l.List[i]
		if tensors.LargestAlignment(uint64(x.Dim), uint64(x.Tensor.Offset), uint64(x.Steps[0]), uint64(x.Steps[1]), uint64(x.Steps[2])) < alignment {
			return false
		}
	}
	return true
}

// sequenceCases are problems whose row blocks, windows and lengths end in all places of tiles: empty sequences, rows without keys, windows
// that leave tiles out at both ends.
func sequenceCases() []cases.Case {
	group, one := attention.Shape{Hq: 4, Hkv: 2}, attention.Shape{Hq: 1, Hkv: 1}
	many := make([]cases.Seq, 40)
	for i := range many {
		many[i] = cases.Seq{Rows: i * 7 % 12, Keys: i * 5 % 90}
	}
	var list []cases.Case
	for i, c := range []cases.Case{
		{Name: "packed", D: 64, Dv: 64, Shape: group, PackedQ: true, PackedK: true, Causal: attention.BottomRight, LSE: true,
			Seqs: []cases.Seq{{Rows: 200, Keys: 330}, {}, {Rows: 70}, {Keys: 300}, {Rows: 1, Keys: 129}, {Rows: 257, Keys: 3}}},
		{Name: "packed, loose", D: 128, Dv: 128, Shape: group, PackedQ: true, PackedK: true, LooseQ: true, LooseK: true, Causal: attention.TopLeft, LSE: true,
			Seqs: []cases.Seq{{Rows: 65, Keys: 63}, {Keys: 10}, {Rows: 140, Keys: 150}, {Rows: 3, Keys: 260}}},
		{Name: "pairs", D: 64, Dv: 64, Shape: one, PackedQ: true, PackedK: true, Causal: attention.TopLeft,
			Seqs: []cases.Seq{{Rows: 1100, Keys: 700}, {Rows: 400, Keys: 400}}},
		{Name: "full", D: 128, Dv: 96, Shape: group, PackedQ: true, PackedK: true, Seqs: []cases.Seq{{Rows: 100, Keys: 257}, {Rows: 60, Keys: 128}}},
		{Name: "rows packed, keys padded", D: 64, Dv: 64, Shape: group, PackedQ: true, LooseK: true, Causal: attention.BottomRight, LSE: true,
			Seqs: []cases.Seq{{Rows: 30, Keys: 140}, {Rows: 129, Keys: 129}}},
		{Name: "narrow window", D: 64, Dv: 64, Shape: attention.Shape{B: 1, Hq: 2, Hkv: 1, Sq: 700, Sk: 700}, Window: attention.WindowOf(30, 10), Align: attention.TopLeft, LSE: true},
		{Name: "wide window", D: 128, Dv: 128, Shape: attention.Shape{B: 1, Hq: 1, Hkv: 1, Sq: 300, Sk: 900}, Window: attention.WindowOf(400, 0), Causal: attention.BottomRight},
		{Name: "window on the right", D: 128, Dv: 120, Shape: attention.Shape{B: 2, Hq: 1, Sq: 200, Sk: 450}, Window: attention.WindowOf(-1, 20), Align: attention.BottomRight},
		{Name: "window on the left", D: 64, Dv: 64, Shape: attention.Shape{B: 1, Hq: 1, Sq: 300, Sk: 500}, Window: attention.WindowOf(140, -1), Align: attention.TopLeft},
		{Name: "window that rows leave", D: 64, Dv: 64, Shape: attention.Shape{B: 1, Hq: 1, Sq: 600, Sk: 130}, Window: attention.WindowOf(40, 40), Align: attention.TopLeft, LSE: true},
		{Name: "window, packed", D: 128, Dv: 128, Shape: group, PackedQ: true, PackedK: true, Window: attention.WindowOf(100, 50), Align: attention.BottomRight,
			Seqs: []cases.Seq{{Rows: 300, Keys: 260}, {Rows: 0, Keys: 4}, {Rows: 129, Keys: 400}}},
		{Name: "negative scale", D: 40, Dv: 56, Shape: one, LooseQ: true, LooseK: true, Scale: attention.ScaleOf(-0.1), Seqs: []cases.Seq{{Keys: 77}, {Rows: 63, Keys: 127}, {Rows: 84, Keys: 84}}},
		{Name: "no keys", D: 64, Dv: 64, Shape: group, PackedQ: true, PackedK: true, LSE: true, Seqs: []cases.Seq{{Rows: 70}, {}, {Rows: 3}}},
		{Name: "many", D: 64, Dv: 64, Shape: one, PackedQ: true, PackedK: true, Causal: attention.BottomRight, LSE: true, Seqs: many},
		{Name: "many, loose", D: 64, Dv: 64, Shape: one, LooseQ: true, LooseK: true, LSE: true, Seqs: many},
		{Name: "pages of 16", D: 64, Dv: 64, Shape: group, PackedQ: true, PageSize: 16, Causal: attention.BottomRight, LSE: true,
			Seqs: []cases.Seq{{Rows: 200, Keys: 330}, {Rows: 70}, {Keys: 300}, {Rows: 1, Keys: 129}}},
		{Name: "pages of 64", D: 128, Dv: 128, Shape: group, PackedQ: true, PageSize: 64, Window: attention.WindowOf(100, 50), Align: attention.BottomRight,
			Seqs: []cases.Seq{{Rows: 150, Keys: 260}, {Rows: 0, Keys: 4}, {Rows: 65, Keys: 200}}},
		{Name: "pages of 80", D: 64, Dv: 64, Shape: one, LooseQ: true, PageSize: 80, Causal: attention.TopLeft, LSE: true,
			Seqs: []cases.Seq{{Rows: 150, Keys: 260}, {Rows: 270, Keys: 190}}},
		{Name: "pages of 48", D: 96, Dv: 96, Shape: group, PackedQ: true, PageSize: 48, LSE: true, Seqs: []cases.Seq{{Rows: 150, Keys: 260}, {Rows: 65, Keys: 48}}},
		{Name: "head dim 96", D: 96, Dv: 88, Shape: group, PackedQ: true, PackedK: true, Causal: attention.BottomRight, LSE: true,
			Seqs: []cases.Seq{{Rows: 250, Keys: 260}, {Rows: 65, Keys: 148}}},
	} {
		c.Seed = uint64(700 + i)
		list = append(list, inSequences(c))
	}
	return list
}

// The kernels for lengths and windows, run by the CPU, compute the cases of the tables of options that are theirs, and others.
func TestSequencesKernelsOnTheCPU(t *testing.T) {
	testlevel.HostOnly(t)
	table, err := embedded()
	require.NoError(t, err)
	for which, dtype := range []attention.DType{attention.F16, attention.BF16} {
		t.Run(dtype.String(), func(t *testing.T) {
			var list []cases.Case
			for i, c := range sequenceCases() {
				if i%2 == which || testlevel.IsExhaustive() {
					list = append(list, c)
				}
			}
			for _, c := range cases.DealOptions(cases.BriefOptions(), 3)[which] {
				if emulatedTiles(&c) <= 64 || testlevel.IsExhaustive() {
					list = append(list, c)
				}
			}
			n := 0
			for _, c := range list {
				p, err := cases.NewProblem(c, dtype)
				require.NoError(t, err)
				if !computesSequences(t, p) {
					continue
				}
				for _, family := range sequencesFamilies {
					list := sequencesKernels(table, family, dtype.String(), c.D, c.Dv, c.PageSize > 0)
					require.True(t, len(list) > 0 || family == "fa3" && c.PageSize > 0)
					for i, k := range list {
						if i == n%min(len(list), 2) || testlevel.IsExhaustive() {
							t.Run(fmt.Sprintf("%s %d rows %v", family, k.Rows, &c), func(t *testing.T) {
								require.NoError(t, conformGeneral(newSequencesEmulator(t, k, nil), p))
							})
						}
					}
				}
				n++
			}
			t.Logf("%d cases", n)
		})
	}
}

// Numbers at the ends of their ranges give what the formula says. Lengths and positions that are wrong write nothing outside of O and LSE.
func TestSequencesKernelsOfExtremesOnTheCPU(t *testing.T) {
	testlevel.HostOnly(t)
	table, err := embedded()
	require.NoError(t, err)
	n, want := 0, 9 // cases, with the tiles in turn
	if testlevel.IsExhaustive() {
		want = 40
	}
	for seed := uint64(0); n < want; seed++ {
		dtype := []attention.DType{attention.F16, attention.BF16}[seed%2]
		c := cases.RandomExtreme(seed, int(seed), attention.KVSame, dtype)
		if !computesForward(&c) || emulatedTiles(&c) > 32 {
			continue
		}
		p, err := cases.NewProblem(c, dtype)
		require.NoError(t, err)
		if !computesSequences(t, p) {
			continue
		}
		n++
		t.Run(c.String(), func(t *testing.T) {
			list := slices.Concat(sequencesKernels(table, "fa3", dtype.String(), c.D, c.Dv, c.PageSize > 0), sequencesKernels(table, cubinFamily, dtype.String(), c.D, c.Dv, c.PageSize > 0))
			e := newSequencesEmulator(t, list[n%len(list)], nil)
			require.NoError(t, conformGeneral(e, p))
			before := p.Wild(seed)
			var after [][]byte
			for _, image := range before {
				after = append(after, bytes.Clone(image))
			}
			cfg, sound := p.Config(cases.On(attention.TierCPU, dtype)), p.HostArgs(p.Image)
			var l tensors.Layouts
			require.NoError(t, l.Check(&cfg, &sound))
			require.NoError(t, e.forward(cfg, p.HostArgs(after), l.All(), false))
			require.NoError(t, p.TrespassTensors(before, after))
		})
	}
}

// A kernel with one fault fails a case of few rows.
func TestSequencesKernelsFaultsAreFound(t *testing.T) {
	testlevel.HostOnly(t)
	table, err := embedded()
	require.NoError(t, err)
	seqs := []cases.Seq{{ID: 1, Rows: 70, Keys: 133}, {ID: 2, Rows: 3}, {ID: 3, Rows: 230, Keys: 300}}
	base := cases.Case{D: 64, Dv: 64, Shape: attention.Shape{Hq: 2, Hkv: 1}, Seqs: seqs, LSE: true, Causal: attention.BottomRight}
	packed, loose, window, paged := base, base, base, base
	paged.Name, paged.PackedQ, paged.PageSize = "paged", true, 16
	packed.Name, packed.PackedQ, packed.PackedK = "packed", true, true
	loose.Name, loose.LooseQ, loose.LooseK, loose.Causal = "loose", true, true, attention.CausalNone
	window.Name, window.PackedQ, window.PackedK, window.Window = "window", true, true, attention.WindowOf(150, 0)
	window.Seqs = []cases.Seq{{ID: 1, Rows: 70, Keys: 400}, {ID: 2, Rows: 230, Keys: 300}} // the first keys of the first are no row's
	for _, x := range []struct {
		c                    cases.Case
		file, right, planted string // cubin_*.h, and calls with pages, are of cubinFamily, others of fa3
	}{
		{packed, "fa3_options.h", "return p.cu_q != 0 ? p.total_q : p.Sq;", "return p.Sq;"},
		{packed, "fa3_options.h", "rows.first + rows.used, keys.first,", "rows.first + rows.used, 0,"},
		{packed, "fa3_options.h", "finishEmpty<T>(p, at, i);", ""},
		{packed, "fa3_options.h", "block = blocks - 1 - block)", "block = blocks - 1)"},
		{packed, "fa3_options.h", "max(top + 1 - close / T::BN, 0)", "max(top - close / T::BN, 0)"},
		{packed, "fa3_options.h", "== kind", "== kind && kind > 20"},
		{loose, "fa3_options.h", "head, p.cu_q != 0 ? 0 : sequence, rows.first + rows.used", "head, p.cu_q != 0 ? 0 : sequence, rows.first + rows.extent"},
		{loose, "fa3_options.h", "end = w[W::KEYS] - 1;", "end = w[W::KEYS];"},
		{window, "fa3_options.h", "|| step >= w.whole", ""},
		{window, "fa3_options.h", "open = max(last - left, 0)", "open = 0"},
		{window, "fa3_options.h", "from = max(row - left, 0)", "from = max(row - left + T::BN, 0)"},
		{window, "fa3_consume.h", "|| 8 * j + c < first0 + 8", ""},
		{packed, "cubin_consume.h", "firstStepOf<T>(p, w, at.row + 64 * group)", "firstStepOf<T>(p, w, at.row)"},
		{packed, "cubin_consume.h", "fetchQ<T>(q, p, at, at.row + rowInBlock, c)", "fetchQ<T>(q, p, at, rowInBlock, c)"},
		{window, "cubin_consume.h", "if (i >= crossed && i < whole) return;", "if (i >= crossed) return;"},
		{window, "cubin_consume.h", "const int key = (w.top - i) * T::BN", "const int key = (top - i) * T::BN"},
		{paged, "fa3_options.h", "pagedKeyOf(p, w, block * T::BN + row)", "pagedKeyOf(p, w, block * T::BN)"},
		{paged, "fa3_options.h", "full, 64 * i, from.row, headKV, from.page", "full, 64 * i, 0, headKV, from.page + 1"},
	} {
		requireOnce(t, x.file, x.right)
		requireFault(t, x.c.Name+" "+x.planted, func(t *testing.T) error {
			p, err := cases.NewProblem(x.c, attention.F16)
			require.NoError(t, err)
			family := "fa3"
			if strings.HasPrefix(x.file, cubinFamily) || x.c.PageSize > 0 {
				family = cubinFamily
			}
			return conformGeneral(newSequencesEmulator(t, sequencesKernels(table, family, "f16", 64, 64, x.c.PageSize > 0)[0], planting(t, x.file, x.right, x.planted)), p)
		})
	}
	// V that is not finite, in row blocks that others follow.
	right := "if (!more || T::OPTIONS && mark)"
	requireOnce(t, "cubin_consume.h", right)
	requireFault(t, "not finite", func(t *testing.T) error {
		p, err := cases.NewProblem(cases.RandomExtreme(10609, 10609, attention.KVSame, attention.BF16), attention.BF16)
		require.NoError(t, err)
		k := sequencesKernels(table, cubinFamily, "bf16", p.D, p.Dv, false)[0]
		return conformGeneral(newSequencesEmulator(t, k, planting(t, "cubin_consume.h", right, "if (!more)")), p)
	})
}
