//go:build !windows

package cudapath

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/internal/testlevel"
)

// latentEmulator runs the kernels of latent attention on the CPU.
type latentEmulator struct {
	run func(p *latentParams, k *emulatedMap, batches, box, ctas, groups, reversed int32) string
}

// latentLists is LATENT_TOKENS of the kernels: what lists their calls have.
type latentLists int

const (
	noLists latentLists = iota
	equalLists
	offsetLists
)

// suffix is the end of their names.
func (l latentLists) suffix() string {
	return [...]string{"_latent", "_latent_tokens", "_latent_offsets"}[l]
}

// listsOf are the lists that a case has.
func listsOf(c *cases.Case) latentLists {
	switch {
	case c.SparseRatio == 0:
		return noLists
	case c.TopK:
		return equalLists
	}
	return offsetLists
}

// latentSuffix is the end of the name of the kernel that takes a case.
func latentSuffix(c *cases.Case) string {
	if kv := latentRowsOf(c.KeyType); kv != "" {
		return listsOf(c).suffix() + "_" + kv
	}
	return listsOf(c).suffix()
}

// newLatentEmulator loads the kernels of a storage type for calls with some lists. change may alter the text of their sources.
func newLatentEmulator(t testing.TB, dtype attention.DType, kv attention.KVType, lists latentLists, change func(dir string)) *latentEmulator {
	t.Helper()
	e := &latentEmulator{}
	lib := emulation{kernel: "latent.cu", folder: "sm90", file: "latent.cc", change: change}.load(t, fmt.Sprintf("-DATTN_BF16=%d", map[bool]int{true: 1}[dtype == attention.BF16]),
		fmt.Sprintf("-DLATENT_TOKENS=%d", lists), fmt.Sprintf("-DLATENT_FP8=%d", map[bool]int{true: 1}[kv.Latent()]))
	purego.RegisterLibFunc(&e.run, lib, "emulate")
	return e
}

// forward computes a call in host memory, with the keys of all sequences in some parts. Fewer CTAs than parts share them.
func (e *latentEmulator) forward(cfg problem.Config, a problem.Args, all []tensors.Layout, parts, ctas int, reversed bool) error {
	factors := plan.FactorsOf(cfg)
	var call problem.CUDACall
	plan.SetCUDACall(&call, &cfg, &factors, &a, all)
	var p latentParams
	p.set(&call)
	p.b = int32(a.B)
	for i, t := range [...]*tensorParams{&p.q, &p.k, &p.v, &p.o} {
		t.base = hostAddress([...][]byte{a.Q.Host, a.K.Host, a.V.Host, a.O.Host}[i], all[i].Tensor.Offset, int(all[i].Size))
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
	p.setOptions(&call)
	p.setLatent(&call)
	if a.SparseTokens != nil {
		p.tokens, p.offsets = vector(a.SparseTokens.Tokens), vector(a.SparseTokens.Offsets)
	}
	g := latentGrid{rowTiles: latentRowTiles(&a.Shape, p.tokens != 0), parts: parts}
	p.setParts(&a.Shape, parts)
	check := func() error { return nil }
	if parts > 1 {
		p.partial, check = guardedWorkspace(g.workspace())
		at := p.partial + g.workspace() - uint64(parts)*latentSplitBytes
		for i, splits := 0, unsafe.Slice(*(**int32)(unsafe.Pointer(&at)), parts*latentSplitBytes/4); i < len(splits); i++ {
			splits[i] = 1 // of the call before
		}
	}
	m, batches, box := latentMap(&p.generalParams, &a.Shape)
	k := emulatedMap{base: m.base, batch: m.batch, head: m.head, row: m.row, dim: int64(m.dim), rows: int64(m.rows), heads: int64(m.heads)}
	if m.packed {
		k.packed = 1
	}
	order := int32(0)
	if reversed {
		order = 1
	}
	emulators.Lock()
	defer emulators.Unlock()
	if failure := e.run(&p, &k, int32(batches), int32(box), int32(ctas), int32(min(parts, 4)), order); failure != "" {
		return errors.New(failure)
	}
	runtime.KeepAlive(a)
	return check()
}

// conformLatent computes a case. What must not matter, the order of threads, and how many CTAs share the parts change no bit.
func conformLatent(e *latentEmulator, p *cases.Problem, parts int) error {
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
		tiles := latentRowTiles(&a.Shape, a.SparseTokens != nil)
		if err := e.forward(cfg, a, l.All(), parts, max(tiles*parts/(i+1), 1), i == 1); err != nil {
			return err
		}
		if err := p.Trespass(before, afters[i]); err != nil {
			return fmt.Errorf("run %d: %w", i+1, err)
		}
	}
	var truth cases.Truth
	if err := truth.Judge(p, afters[0]); err != nil {
		return err
	}
	judged := cases.NewFormula(p).Judge(afters[0])
	if err := judged.Err(); err != nil {
		return err
	}
	return p.Same(afters[0], afters[1])
}

// latentTokenCases are calls in which each row has a list of tokens, with the number of parts: lists in one part and in several, parts
// with whole lists, lists without a key.
func latentTokenCases() (list []cases.Case, parts []int) {
	add := func(n int, c cases.Case) {
		c.D, c.Dv, c.VInK, c.LSE, c.Seed, c.Hkv, c.PerRow, c.TopK, c.Shuffled = 576, 512, true, true, uint64(900+len(list)), 1, true, true, true
		c.Name = "tokens, " + c.Name
		for j := range c.Seqs {
			c.Seqs[j].ID = 1 + j
		}
		list, parts = append(list, c), append(parts, n)
	}
	add(3, cases.Case{Name: "splits", Shape: attention.Shape{Hq: 80}, SparseRatio: 0.7, Data: cases.Rising, Seqs: []cases.Seq{{Rows: 2, Keys: 260}, {Rows: 2, Keys: 260}}})
	add(2, cases.Case{Name: "whole lists", Shape: attention.Shape{Hq: 16}, SparseRatio: 0.5, Causal: attention.BottomRight,
		Seqs: []cases.Seq{{Rows: 8, Keys: 150}, {Rows: 8, Keys: 150}}})
	add(4, cases.Case{Name: "pages", Shape: attention.Shape{Hq: 40}, SparseRatio: 0.5, PageSize: 24, PackedQ: true, LooseQ: true, Causal: attention.BottomRight,
		Seqs: []cases.Seq{{Rows: 2, Keys: 230}, {Rows: 1, Keys: 64}, {Keys: 3}, {Rows: 1}, {Rows: 3, Keys: 129}}})
	add(2, cases.Case{Name: "packed", Shape: attention.Shape{Hq: 16}, SparseRatio: 1, PackedQ: true, PackedK: true, LooseK: true, Data: cases.Falling,
		Seqs: []cases.Seq{{Rows: 2, Keys: 63}, {}, {Rows: 1, Keys: 165}}})
	add(3, cases.Case{Name: "padded", Shape: attention.Shape{Hq: 16}, SparseRatio: 0.2, LooseQ: true, LooseK: true, Scale: attention.ScaleOf(-0.1),
		Seqs: []cases.Seq{{Rows: 2, Keys: 200}, {Rows: 0, Keys: 60}, {Rows: 4, Keys: 130}}})
	return list, parts
}

// latentOffsetCases are those of latentTokenCases with lists of any lengths, which have offsets.
func latentOffsetCases() (list []cases.Case, parts []int) {
	list, parts = latentTokenCases()
	for i := range list {
		list[i].TopK, list[i].Name = false, strings.Replace(list[i].Name, "tokens", "offsets", 1)
	}
	return list, parts
}

// inSequences is a case whose equal sequences, if it has some, are in its list of sequences.
func inSequences(c cases.Case) cases.Case {
	for range c.B {
		c.Seqs = append(c.Seqs, cases.Seq{Rows: c.Sq, Keys: c.Sk})
	}
	c.B, c.Sq, c.Sk = 0, 0, 0
	for j := range c.Seqs {
		c.Seqs[j].ID = 1 + j
	}
	return c
}

// latentCases are calls of latent attention with the number of parts in which their keys lie: row tiles with several queries and with
// part of a head group, sequences in one part and in several, parts of several sequences, lengths of 0 and around the tiles.
func latentCases() (list []cases.Case, parts []int) {
	add := func(n int, c cases.Case) {
		c.D, c.Dv, c.VInK, c.LSE, c.Seed = 576, 512, true, true, uint64(700+len(list))
		c.Hkv = 1
		list, parts = append(list, inSequences(c)), append(parts, n)
	}
	add(1, cases.Case{Name: "one part", Shape: attention.Shape{B: 2, Hq: 16, Sq: 1, Sk: 130}})
	add(5, cases.Case{Name: "splits", Shape: attention.Shape{B: 1, Hq: 80, Sq: 1, Sk: 500}, Data: cases.Falling})
	add(2, cases.Case{Name: "rising", Shape: attention.Shape{B: 1, Hq: 16, Sq: 1, Sk: 400}, Data: cases.Rising})
	add(4, cases.Case{Name: "causal", Shape: attention.Shape{B: 2, Hq: 40, Sq: 3, Sk: 194}, Causal: attention.BottomRight})
	add(2, cases.Case{Name: "top-left", Shape: attention.Shape{B: 1, Hq: 16, Sq: 4, Sk: 100}, Causal: attention.TopLeft})
	add(5, cases.Case{Name: "pages", Shape: attention.Shape{Hq: 16}, PageSize: 64, PackedQ: true, Causal: attention.BottomRight,
		Seqs: []cases.Seq{{Rows: 2, Keys: 300}, {Rows: 3, Keys: 64}, {Keys: 3}, {Rows: 1}, {Rows: 4, Keys: 129}}})
	add(3, cases.Case{Name: "small pages", Shape: attention.Shape{Hq: 32}, PageSize: 16, LooseK: true, Layout: cases.Packed,
		Seqs: []cases.Seq{{Rows: 1, Keys: 140}, {Rows: 1}, {Rows: 1, Keys: 63}}})
	add(3, cases.Case{Name: "pages of two tiles", Shape: attention.Shape{Hq: 128}, PageSize: 128, LooseK: true,
		Seqs: []cases.Seq{{Rows: 1, Keys: 200}, {Rows: 1, Keys: 128}}})
	add(7, cases.Case{Name: "packed", Shape: attention.Shape{Hq: 16}, PackedQ: true, PackedK: true, LooseQ: true, LooseK: true, Causal: attention.BottomRight,
		Seqs: []cases.Seq{{Rows: 5, Keys: 63}, {}, {Rows: 3, Keys: 65}, {Rows: 1, Keys: 1}, {Rows: 2, Keys: 260}}})
	add(2, cases.Case{Name: "negative scale", Shape: attention.Shape{B: 3, Hq: 8, Sq: 1, Sk: 70}, Scale: attention.ScaleOf(-0.1), Data: cases.Large})
	many := make([]cases.Seq, 40) // more than a warp has lanes
	for i := range many {
		many[i] = cases.Seq{Rows: 1 - i%2, Keys: i * 5 % 90}
	}
	add(30, cases.Case{Name: "many sequences", Shape: attention.Shape{Hq: 16}, PackedQ: true, LooseK: true, Seqs: many})
	return list, parts
}

// latentRowCases are cases with rows of fp8_ds_mla.
func latentRowCases(list []cases.Case) (of []cases.Case) {
	for _, c := range list {
		c.KeyType, c.ValueType, c.Name = attention.KVFP8DSMLA, attention.KVFP8DSMLA, "rows, "+c.Name
		of = append(of, inSequences(c))
	}
	return of
}

// The kernels of latent attention, run by the CPU, compute calls with lengths, pages and causal masks, whatever is in memory that does
// not matter.
func TestLatentKernelsOnTheCPU(t *testing.T) {
	list, parts := latentCases()
	latentConforms(t, noLists, list, parts)
}

// The same with K in rows of fp8_ds_mla, also with lists.
func TestLatentKernelsOfRowsOnTheCPU(t *testing.T) {
	short := []string{"one part", "causal", "small pages", "pages", "pages of two tiles", "packed", "tokens, pages", "tokens, packed", "offsets, pages"}
	for lists, of := range []func() ([]cases.Case, []int){latentCases, latentTokenCases, latentOffsetCases} {
		t.Run(latentLists(lists).suffix(), func(t *testing.T) {
			all, allParts := of()
			var list []cases.Case
			var parts []int
			for i, c := range all {
				if testlevel.IsExhaustive() || slices.Contains(short, c.Name) {
					list, parts = append(list, c), append(parts, allParts[i])
				}
			}
			latentConforms(t, latentLists(lists), latentRowCases(list), parts)
		})
	}
}

// The same with a list of tokens for each query row.
func TestLatentKernelsOfTokensOnTheCPU(t *testing.T) {
	list, parts := latentTokenCases()
	latentConforms(t, equalLists, list, parts)
}

// The same with lists of any lengths, which offsets tell.
func TestLatentKernelsOfOffsetsOnTheCPU(t *testing.T) {
	list, parts := latentOffsetCases()
	latentConforms(t, offsetLists, list, parts)
}

func latentConforms(t *testing.T, lists latentLists, list []cases.Case, parts []int) {
	testlevel.HostOnly(t)
	for which, dtype := range []attention.DType{attention.F16, attention.BF16} {
		t.Run(dtype.String(), func(t *testing.T) {
			e := newLatentEmulator(t, dtype, list[0].KeyType, lists, nil)
			for i, c := range list {
				if !testlevel.IsExhaustive() && i%2 != which {
					continue
				}
				t.Run(c.String(), func(t *testing.T) {
					p, err := cases.NewProblem(c, dtype)
					require.NoError(t, err)
					require.NoError(t, conformLatent(e, p, parts[i]))
				})
			}
		})
	}
}

// A kernel with one fault fails a case.
func TestLatentKernelsFaultsAreFound(t *testing.T) {
	testlevel.HostOnly(t)
	list, parts := latentCases()
	tokenCases, tokenParts := latentTokenCases()
	offsetCases, offsetParts := latentOffsetCases()
	list, parts = slices.Concat(list, tokenCases, offsetCases), slices.Concat(parts, tokenParts, offsetParts)
	list, parts = slices.Concat(list, latentRowCases(list)), slices.Concat(parts, parts)
	for _, x := range []struct {
		name, file, right, planted string
	}{
		{"pages", "latent_output.h", "storeShared(to, make_uint4(0, 0, 0, 0));", ""},
		{"splits", "latent_combine.h", "top == rows.top[r] ? 1 : exp2Approx(step)", "1"},
		{"rising", "latent_output.h", "if (__any_sync(~0u, factor[0] != 1 || factor[1] != 1)) multiply", "if (false) multiply"},
		{"small pages", "latent_produce.h", "latentSourceOf(p, w, key + row)", "latentSourceOf(p, w, key)"},
		{"packed", "latent_work.h", "first == 0 && until == tiles ? -1 : 2 * part + (first == 0)", "first == 0 && until == tiles ? -1 : 2 * part"},
		{"one part", "latent.cu", "giveRegisters<T::SCORES_REGISTERS>", "takeRegisters<T::SCORES_REGISTERS>"},
		{"negative scale", "latent_scores.h", "if (p.scale_log2 < 0) {", "if (false) {"},
		{"rising", "latent_scores.h", "pass(n, all + n * N / 2)", "pass(n, P)"},
		{"many sequences", "latent_work.h", "splits && ofParts && blockIdx.x == 0 && part < p.parts", "false"},
		{"packed", "latent_work.h", ": part + partsOf(tiles);", ": part + 2;"},
		{"splits", "latent_work.h", "return {begin, begin + partsOf(tiles)};", "return {begin, begin + 1};"},
		{"causal", "latent_work.h", "field == FIRST ? part : ", ""},
		{"tokens, whole lists", "latent_scores.h", "s[4 * j + i] = s[4 * j + 2 + i] = -INFINITY;", ";"},
		{"tokens, pages", "latent_produce.h", "uint32_t(token) % uint32_t(p.page_size)", "uint32_t(token)"},
		{"tokens, padded", "latent_work.h", "rows.first += query, ", ""},
		{"offsets, packed", "latent_work.h", "clampLatent(offsets[1], p.entries) - first", "p.entries - first"},
		{"rows, one part", "latent_convert.h", "barrierWait(rows + 8 * c, k.parity);", ""},
		{"rows, splits", "latent_convert.h", "scales + 4 * c;", "scales;"},
		{"rows, splits", "latent_convert.h", "__syncwarp(); // chunk 3", "// chunk 3"},
		{"rows, one part", "latent_convert.h", "narrow(x.z), narrow(x.w);", ""},
		{"rows, small pages", "latent_convert.h", "uint32_t(token) % uint32_t(p.page_size)", "uint32_t(token)"},
		{"rows, packed", "latent_convert.h", "w[LatentPiece::FIRST_KEY_ROW] * p.k.row", "0"},
		{"rows, tokens, pages", "latent_convert.h", "(T::GATHER_WARPS * k.stage + half), listed)", "(T::GATHER_WARPS * k.stage + half), ~0u)"},
	} {
		requireOnce(t, x.file, x.right)
		j := slices.IndexFunc(list, func(c cases.Case) bool { return c.Name == x.name })
		require.GreaterOrEqual(t, j, 0, "there is no case %q", x.name)
		requireFault(t, x.name+" "+x.planted, func(t *testing.T) error {
			e := newLatentEmulator(t, attention.F16, list[j].KeyType, listsOf(&list[j]), planting(t, x.file, x.right, x.planted))
			p, err := cases.NewProblem(list[j], attention.F16)
			require.NoError(t, err)
			return conformLatent(e, p, parts[j])
		})
	}
}

// withoutFiniteScores is the memory of a problem whose scores are all -Inf, by the last columns of Q and K.
func withoutFiniteScores(t testing.TB, p *cases.Problem) [][]byte {
	t.Helper()
	var images [][]byte
	for _, image := range p.Image {
		images = append(images, bytes.Clone(image))
	}
	cfg, a := p.Config(cases.On(attention.TierCPU, p.DType)), p.HostArgs(images)
	var l tensors.Layouts
	require.NoError(t, l.Check(&cfg, &a))
	for i, x := range []float32{1, float32(math.Inf(-1))} {
		q := l.List[i]
		heads, rows := a.Hq, a.Sq
		if i == 1 {
			heads, rows = max(a.Hkv, 1), a.Sk
		}
		for n := range int64(a.B * heads * rows) {
			b, h, s := n/int64(heads*rows), n/int64(rows)%int64(heads), n%int64(rows)
			at := q.Tensor.Offset + b*q.Steps[0] + h*q.Steps[1] + s*q.Steps[2] + int64(cfg.HeadDim) - 1
			p.DType.Encode(q.Tensor.Host[2*at:][:2], []float32{x})
		}
	}
	return images
}

// requireNothing requires O = 0 and LSE = -Inf in all rows of a call that is stored without gaps.
func requireNothing(t testing.TB, p *cases.Problem, images [][]byte) {
	t.Helper()
	a := p.HostArgs(images)
	for i, x := range a.O.Host[2*a.O.Offset:][:2*a.Rows()*int64(p.Case.Dv)] {
		require.Zero(t, x&0x7f, "byte %d of O", i) // but for signs
	}
	lse := make([]float32, a.Rows())
	attention.F32.Decode(lse, a.LSE.Host[4*a.LSE.Offset:][:4*len(lse)])
	for i, x := range lse {
		require.Equal(t, float32(math.Inf(-1)), x, "row %d", i)
	}
}
