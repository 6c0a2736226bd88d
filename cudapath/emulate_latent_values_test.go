//go:build !windows

package cudapath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/cases"
	"vkattn/internal/quant"
	"vkattn/internal/tensors"
	"vkattn/internal/testlevel"
)

// latentCall is a call of latent attention in host memory whose numbers and lists a test changes.
type latentCall struct {
	*cases.Problem
	images [][]byte
	lists  [][]int32 // of the rows of all sequences, Sq for each; nil: rows attend to all keys that the causal mask leaves

	// Lists have offsets: these, or their own; nil: they have one length.
	offsets []int32
}

// newLatentCall makes a call of two sequences. Their keys lie in pages, or in a padded batch.
func newLatentCall(t testing.TB, kv attention.KVType, lists latentLists, pageSize int) *latentCall {
	t.Helper()
	c := cases.Case{D: 576, Dv: 512, VInK: true, LSE: true, Seed: 5, Causal: attention.BottomRight, Shape: attention.Shape{Hq: 24, Hkv: 1},
		Seqs: []cases.Seq{{ID: 1, Rows: 2, Keys: 258}, {ID: 2, Rows: 1, Keys: 70}}, LooseK: true, PageSize: pageSize,
		KeyType: kv, ValueType: kv}
	p, err := cases.NewProblem(c, attention.F16)
	require.NoError(t, err)
	l := &latentCall{Problem: p}
	for _, image := range p.Image {
		l.images = append(l.images, bytes.Clone(image))
	}
	if lists != noLists { // the last keys in a falling order, behind entries that are no keys
		for row := range 4 {
			l.lists = append(l.lists, make([]int32, 140))
			for i := range l.lists[row] {
				l.lists[row][i] = int32(259 - i)
			}
		}
	}
	if lists == offsetLists {
		l.lists[0], l.lists[2] = l.lists[0][:131], l.lists[2][:0]
		l.setOffsets()
	}
	return l
}

// setOffsets makes offsets say which list is whose.
func (l *latentCall) setOffsets() {
	l.offsets = []int32{0}
	for i, list := range l.lists {
		l.offsets = append(l.offsets, l.offsets[i]+int32(len(list)))
	}
}

// args are the arguments of the call in some memory. Behind lists and offsets lies the number of a key that exists.
func (l *latentCall) args(images [][]byte) attention.Args {
	a := l.HostArgs(images)
	if l.lists == nil {
		return a
	}
	vector := func(numbers []int32) attention.Vector {
		var words []byte
		for _, x := range append(slices.Clone(numbers), make([]int32, 256)...) {
			words = binary.LittleEndian.AppendUint32(words, uint32(x))
		}
		return attention.Vector{Host: words[:4*len(numbers)]}
	}
	all := slices.Concat(l.lists...)
	a.SparseTokens = &attention.SparseTokens{Tokens: vector(all), TopK: len(l.lists[0]), PerRow: true}
	if l.offsets != nil {
		a.SparseTokens.Offsets, a.SparseTokens.TopK, a.SparseTokens.Total = vector(l.offsets), 0, len(all)
	}
	return a
}

// attends returns the keys of a row, with those that a list has several times.
func (l *latentCall) attends(b, row int) (keys []int) {
	visible := l.Causal.Visible(row, l.Seqs[b].Rows, l.Seqs[b].Keys)
	if l.lists == nil {
		for key := range visible {
			keys = append(keys, key)
		}
		return keys
	}
	for _, token := range l.lists[2*b+row] {
		if token >= 0 && int(token) < visible {
			keys = append(keys, int(token))
		}
	}
	return keys
}

// row is a row of Q, or a key of K, as it is stored.
func (l *latentCall) row(t testing.TB, i, b, head, row int) []byte {
	t.Helper()
	cfg, a := l.Config(cases.On(attention.TierCPU, l.DType)), l.args(l.images)
	var layouts tensors.Layouts
	require.NoError(t, layouts.Check(&cfg, &a))
	x := &layouts.List[i]
	if i == 1 && a.Pages != nil {
		page := tensors.IntAt(&a.Pages.Table, b*tensors.TableStride(a.Pages, &a.Shape)+row/a.Pages.PageSize)
		b, row = page, row%a.Pages.PageSize
	}
	return x.HostRow(int64(b), int64(head), int64(row))
}

func (l *latentCall) set(t testing.TB, i, b, head, row, column int, x float32) {
	t.Helper()
	l.DType.Encode(l.row(t, i, b, head, row)[2*column:][:2], []float32{x})
}

// fillUnused fills all of K but the keys that some row attends to.
func (l *latentCall) fillUnused(t testing.TB, bits uint16) {
	t.Helper()
	k := l.HostArgs(l.images).K.Host
	before, used := bytes.Clone(k), make([]bool, len(k))
	for b, s := range l.Seqs {
		for row := range s.Rows {
			for _, key := range l.attends(b, row) {
				row := l.row(t, 1, b, 0, key)
				at := cap(k) - cap(row)
				for i := range row {
					used[at+i] = true
				}
			}
		}
	}
	for i := range k {
		if k[i] = byte(bits >> (8 * (i % 2))); used[i] {
			k[i] = before[i]
		}
	}
}

// latentRow is what a call computes for a row.
type latentRow struct {
	o   []float32
	lse float32
}

// run computes the call with the keys of all sequences in some parts. Rows are by sequence, head and row.
func (l *latentCall) run(t testing.TB, e *latentEmulator, parts int) map[[3]int]latentRow {
	t.Helper()
	var images [][]byte
	for _, image := range l.images {
		images = append(images, bytes.Clone(image))
	}
	cfg, a, plain := l.Config(cases.On(attention.TierCPU, l.DType)), l.args(images), l.HostArgs(images)
	var layouts tensors.Layouts
	require.NoError(t, layouts.Check(&cfg, &plain)) // which refuses wrong offsets in host memory
	require.NoError(t, e.forward(cfg, a, layouts.All(), parts, parts, false))
	sample, rows := l.SampleRows(), map[[3]int]latentRow{}
	o, lse := l.Gather(images, sample)
	for _, s := range sample {
		for _, row := range s.Rows {
			n := len(rows)
			rows[[3]int{s.B, s.H, row}] = latentRow{o[n*l.Dv:][:l.Dv], lse[n]}
		}
	}
	return rows
}

// judge requires that the result is that of the reference.
func (l *latentCall) judge(t testing.TB, got map[[3]int]latentRow) {
	t.Helper()
	want := accuracy.Expected{Sample: l.SampleRows()}
	require.NoError(t, want.Expect(l.Config(cases.On(attention.TierCPU, l.DType)), l.args(l.images)))
	var o, lse []float32
	for _, s := range want.Sample {
		for _, row := range s.Rows {
			x := got[[3]int{s.B, s.H, row}]
			o, lse = append(o, x.o...), append(lse, x.lse)
		}
	}
	v := want.Judge(o, lse)
	require.True(t, v.Pass(), "%v", v)
}

// requireSameRows requires the same bits in both, but for columns that skip names.
func requireSameRows(t testing.TB, want, got map[[3]int]latentRow, skip func(at [3]int, column int) bool) {
	t.Helper()
	for at, x := range want {
		y := got[at]
		if skip == nil || !skip(at, -1) {
			require.Equal(t, math.Float32bits(x.lse), math.Float32bits(y.lse), "LSE of sequence, head and row %v: %v and %v", at, x.lse, y.lse)
		}
		for i := range x.o {
			if math.Float32bits(x.o[i]) != math.Float32bits(y.o[i]) && (skip == nil || !skip(at, i)) {
				require.Fail(t, "other bits", "O[%d] of sequence, head and row %v: %v and %v", i, at, x.o[i], y.o[i])
			}
		}
	}
}

// latentCalls runs a test with the kernels of dense calls and those of token lists.
func latentCalls(t *testing.T, kv attention.KVType, test func(t *testing.T, e *latentEmulator, parts int, call func(pageSize int) *latentCall)) {
	testlevel.HostOnly(t)
	for lists, name := range []string{"dense", "tokens", "offsets"} {
		lists := latentLists(lists)
		e := newLatentEmulator(t, attention.F16, kv, lists, nil)
		// One part, parts of several sequences, and parts that end with sequences; of lists one part, whole lists, and parts of lists.
		for _, parts := range []int{1, 2, 3} {
			if lists == offsetLists && parts != 2 { // each list is a part, and two CTAs have them in turn
				continue
			}
			t.Run(fmt.Sprint(name, " ", parts), func(t *testing.T) {
				test(t, e, parts, func(pageSize int) *latentCall { return newLatentCall(t, kv, lists, pageSize) })
			})
		}
	}
}

// Inf and NaN in keys that no row attends to, past the end of a sequence, in unused rows of pages and between sequences change no bit.
func TestLatentDoesNotUseOtherKeys(t *testing.T) {
	useNoOtherKeys(t, attention.KVSame, 0x7e00, 0xfc00) // NaN, -Inf
}

// So do NaN in numbers and scales, and Inf in what is not quantized, of rows of fp8_ds_mla.
func TestLatentDoesNotUseOtherRows(t *testing.T) {
	useNoOtherKeys(t, attention.KVFP8DSMLA, 0xffff, 0x7f80)
}

func useNoOtherKeys(t *testing.T, kv attention.KVType, fills ...uint16) {
	latentCalls(t, kv, func(t *testing.T, e *latentEmulator, parts int, call func(pageSize int) *latentCall) {
		for _, pageSize := range []int{0, 16} {
			clean := call(pageSize).run(t, e, parts)
			call(pageSize).judge(t, clean)
			for _, bits := range fills {
				l := call(pageSize)
				l.fillUnused(t, bits)
				requireSameRows(t, clean, l.run(t, e, parts), nil)
			}
		}
	})
}

// NaN and Inf in a key make the rows NaN that attend to it, or give the key no weight in them, and change no bit of the other rows.
func TestLatentKeepsNotFinite(t *testing.T) {
	const key, lastColumn = 257, 575 // its first sequence's last, to which the second row alone attends
	latentCalls(t, attention.KVSame, func(t *testing.T, e *latentEmulator, parts int, call func(pageSize int) *latentCall) {
		run := func(column int, x float32) map[[3]int]latentRow {
			l := call(0)
			for h := range l.Hq {
				for _, c := range []int{300, 540, lastColumn} {
					for row := range 2 {
						l.set(t, 0, 0, h, row, c, 0.5)
					}
				}
			}
			if column >= 0 {
				l.set(t, 1, 0, 0, key, column, x)
			}
			got := l.run(t, e, parts)
			if column < 0 {
				l.judge(t, got)
			}
			return got
		}
		attends := func(at [3]int, _ int) bool { return at[0] == 0 && at[2] == 1 }
		clean, infinity := run(-1, 0), float32(math.Inf(1))
		noWeight := run(lastColumn, -infinity)
		requireSameRows(t, clean, noWeight, attends)
		for _, column := range []int{300, 540} { // of V too, and of K alone
			for _, x := range []float32{float32(math.NaN()), infinity} {
				got := run(column, x)
				requireSameRows(t, clean, got, attends)
				for at, row := range got {
					if attends(at, 0) {
						require.True(t, math.IsNaN(float64(row.lse)), "LSE of %v is %v", at, row.lse)
						require.False(t, slices.ContainsFunc(row.o, func(x float32) bool { return x == x }), "O of %v", at)
					}
				}
			}
			// A score of -Inf has no weight. Whether 0 times the -Inf of V reaches its column is not defined.
			requireSameRows(t, noWeight, run(column, -infinity), func(at [3]int, c int) bool { return attends(at, c) && c == column })
		}
	})
}

// Rows whose scores are all -Inf, by Q or by K, count as rows with nothing to attend to, and change no other row. So do scores of some tiles.
func TestLatentRowsWithoutAFiniteScore(t *testing.T) {
	const column = 575
	infinity := float32(math.Inf(1))
	latentCalls(t, attention.KVSame, func(t *testing.T, e *latentEmulator, parts int, call func(pageSize int) *latentCall) {
		// The last columns of Q and K are 1, but for some keys of the first sequence and some rows of Q.
		ones := func(key func(key int) float32, q func(head, row int) float32) *latentCall {
			l := call(0)
			for b, s := range l.Seqs {
				for n := range s.Keys {
					x := float32(1)
					if b == 0 {
						x = key(n)
					}
					l.set(t, 1, b, 0, n, column, x)
				}
				for n := range l.Hq * s.Rows {
					x := float32(1)
					if b == 0 {
						x = q(n%l.Hq, n/l.Hq)
					}
					l.set(t, 0, b, n%l.Hq, n/l.Hq, column, x)
				}
			}
			return l
		}
		one, oneOfRow := func(int) float32 { return 1 }, func(_, _ int) float32 { return 1 }
		l := ones(one, oneOfRow)
		clean := l.run(t, e, parts)
		l.judge(t, clean)
		for _, x := range []struct {
			name    string
			call    *latentCall
			nothing func(at [3]int, column int) bool
		}{
			{"K", ones(func(int) float32 { return -infinity }, oneOfRow), func(at [3]int, _ int) bool { return at[0] == 0 }},
			{"Q", ones(one, func(head, row int) float32 {
				if head == 3 || row == 1 {
					return -infinity
				}
				return 1
			}), func(at [3]int, _ int) bool { return at[0] == 0 && (at[1] == 3 || at[2] == 1) }},
		} {
			got := x.call.run(t, e, parts)
			requireSameRows(t, clean, got, x.nothing)
			for at, row := range got {
				if x.nothing(at, 0) {
					require.Equal(t, -infinity, row.lse, "%s: LSE of %v", x.name, at)
					require.Equal(t, make([]float32, len(row.o)), abs(row.o), "%s: O of %v", x.name, at)
				}
			}
		}
		for _, x := range []struct{ from, to int }{{0, 128}, {128, 258}} { // tiles, and the parts that have them
			l = ones(func(key int) float32 {
				if key >= x.from && key < x.to {
					return -infinity
				}
				return 1
			}, oneOfRow)
			l.judge(t, l.run(t, e, parts))
		}
	})
}

func abs(x []float32) (y []float32) {
	for _, x := range x {
		y = append(y, float32(math.Abs(float64(x))))
	}
	return y
}

// Token lists without keys, with a key several times, with entries that are no keys, and of all lengths around a tile.
func TestLatentTokenLists(t *testing.T) {
	testlevel.HostOnly(t)
	var emulators [2][2]*latentEmulator
	types := [...]attention.KVType{attention.KVSame, attention.KVFP8DSMLA}
	for i, kv := range types {
		emulators[i] = [...]*latentEmulator{newLatentEmulator(t, attention.F16, kv, equalLists, nil), newLatentEmulator(t, attention.F16, kv, offsetLists, nil)}
	}
	// Each row has another first token.
	lists := func(n int, token func(row, i int) int) (all [][]int32) {
		for row := range 4 {
			list := make([]int32, n)
			for i := range list {
				list[i] = int32(token(row, i))
			}
			all = append(all, list)
		}
		return all
	}
	rising := func(row, i int) int { return (7*row + i) % 128 }
	only := func(row, first, end int) func(of, i int) int {
		return func(of, i int) int {
			if of == row && (i < first || i >= end) {
				return -1
			}
			return rising(of, i)
		}
	}
	for _, x := range []struct {
		name  string
		lists [][]int32
	}{
		{"one key", lists(1, rising)},
		{"a key less than a tile", lists(63, rising)},
		{"a tile", lists(64, rising)},
		{"a key more than a tile", lists(65, rising)},
		{"three tiles, the last of two keys", lists(130, rising)},
		{"no keys", lists(130, func(int, int) int { return -1 })},
		{"no keys, as they do not exist", lists(70, func(_, i int) int { return [...]int{258, 1 << 20, math.MaxInt32, -1, math.MinInt32}[i%5] })},
		{"a row without keys", lists(140, only(1, 0, 0))},
		{"a row without keys in its first tiles", lists(140, only(0, 131, 140))},
		{"a row without keys in its last tiles", lists(140, only(1, 0, 1))},
		{"a row with a key in the second tile", lists(140, only(0, 70, 71))},
		{"one key, once for each entry", lists(140, func(row, i int) int { return 5 + row })},
		{"a key twice", lists(80, func(row, i int) int { return rising(row, i%79) })},
		{"a key twice, in one tile", lists(66, func(row, i int) int { return rising(row, i-i%2) })},
		{"keys of the future", lists(66, func(row, i int) int { return 258 - i })},
	} {
		for i, parts := range []int{1, 3, 2} {
			t.Run(fmt.Sprintf("%s %d", x.name, parts), func(t *testing.T) {
				for of, kv := range types {
					if of == 1 && parts == 1 { // which are as without rows
						continue
					}
					l := newLatentCall(t, kv, equalLists, 0)
					if l.lists = x.lists; i == 2 {
						l.setOffsets()
					}
					l.fillUnused(t, [...]uint16{0x7e00, 0xffff}[of])
					l.judge(t, l.run(t, emulators[of][i/2], parts))
				}
			})
		}
	}
}

// Offsets below 0, behind the last entry, or in no order read and write nothing but what lists and rows have, and lists that they
// leave empty have no keys.
func TestLatentTokensOfWrongOffsets(t *testing.T) {
	testlevel.HostOnly(t)
	e := newLatentEmulator(t, attention.F16, attention.KVSame, offsetLists, nil)
	run := func(offsets ...int32) map[[3]int]latentRow {
		l := newLatentCall(t, attention.KVSame, offsetLists, 0)
		l.offsets = offsets
		return l.run(t, e, 2)
	}
	requireSameRows(t, run(0, 100, 200, 300, 411), run(math.MinInt32, 100, 200, 300, math.MaxInt32), nil)
	requireSameRows(t, run(50, 50, 200, 200, 411), run(50, 30, 200, 100, 411), func(at [3]int, _ int) bool { return at[0] == 0 && at[2] == 1 }) // list 1 has 30 to 200
	requireSameRows(t, run(0, 0, 0, 0, 0), run(411, 411, 411, 411, math.MaxInt32), nil)
}

// NaN in a number, a scale or what is not quantized of a row of fp8_ds_mla, and an infinite scale, make the rows NaN that attend to the key,
// and change no bit of the others.
func TestLatentRowsKeepNotFinite(t *testing.T) {
	const key = 257 // its first sequence's last, to which the second row alone attends
	latentCalls(t, attention.KVFP8DSMLA, func(t *testing.T, e *latentEmulator, parts int, call func(pageSize int) *latentCall) {
		if parts != 2 { // which are as without rows
			return
		}
		run := func(change func(row []byte)) map[[3]int]latentRow {
			l := call(0)
			change(l.row(t, 1, 0, 0, key))
			return l.run(t, e, parts)
		}
		attends := func(at [3]int, _ int) bool { return at[0] == 0 && at[2] == 1 }
		clean := run(func([]byte) {})
		for name, change := range map[string]func(row []byte){
			"a number":       func(row []byte) { row[300] = 0xff },
			"a scale":        func(row []byte) { binary.LittleEndian.PutUint32(row[512+4*3:], 0x7fc00000) },
			"Inf as a scale": func(row []byte) { row[0] = 0; binary.LittleEndian.PutUint32(row[512:], 0x7f800000) }, // NaN, as 0 is one of its numbers
			"a bfloat16":     func(row []byte) { binary.LittleEndian.PutUint16(row[528+2*63:], 0x7fc0) },
		} {
			got := run(change)
			requireSameRows(t, clean, got, attends)
			for at, row := range got {
				if attends(at, 0) {
					require.True(t, math.IsNaN(float64(row.lse)), "%s: LSE of %v is %v", name, at, row.lse)
					require.False(t, slices.ContainsFunc(row.o, func(x float32) bool { return x == x }), "%s: O of %v", name, at)
				}
			}
		}
	})
}

// A number of a row of fp8_ds_mla is float8 * scale in float32, rounded to the storage type: O of one key is its V.
func TestLatentRowsAreConvertedExactly(t *testing.T) {
	testlevel.HostOnly(t)
	scales := []float32{1, -0.0173, 0x1.fffffep-1, 1.0 / 3, 0x1p-126, 0x1.8p-149, 0x1.234568p-12, 0, 145.9, 3.7e-5}
	for _, dtype := range []attention.DType{attention.F16, attention.BF16} {
		e := newLatentEmulator(t, dtype, attention.KVFP8DSMLA, noLists, nil)
		c := cases.Case{D: 576, Dv: 512, VInK: true, LSE: true, Shape: attention.Shape{Hq: 1, Hkv: 1}, KeyType: attention.KVFP8DSMLA, ValueType: attention.KVFP8DSMLA}
		for i := range 8 {
			c.Seqs = append(c.Seqs, cases.Seq{ID: 1 + i, Rows: 1, Keys: 1})
		}
		p, err := cases.NewProblem(c, dtype)
		require.NoError(t, err)
		l := &latentCall{Problem: p, images: p.Image}
		want := map[int][]float32{}
		for b := range c.Seqs {
			clear(l.row(t, 0, b, 0, 0)) // all scores are 0
			row := l.row(t, 1, b, 0, 0)
			for i := range 512 {
				if row[i] = byte(37*b + i); row[i]&0x7f == 0x7f { // NaN
					row[i] = 0
				}
			}
			for i := range 4 {
				binary.LittleEndian.PutUint32(row[512+4*i:], math.Float32bits(scales[(4*b+i)%len(scales)]))
			}
			x := make([]float32, 576)
			quant.FP8DSMLA.Decode(x, row)
			bits := make([]byte, 2*512)
			dtype.Encode(bits, x[:512])
			want[b] = make([]float32, 512)
			dtype.Decode(want[b], bits)
		}
		for at, row := range l.run(t, e, 1) {
			require.Equal(t, want[at[0]], row.o, "%v, sequence %d", dtype, at[0])
		}
	}
}
