package tests

import (
	"slices"
	"sync"
	"testing"

	"vkattn/attention"
)

// The values every tier has to get right. dims are (HeadDim, HeadDimV).
var (
	dims = [][2]int{
		{1, 1}, {8, 8}, {31, 31}, {32, 32}, {40, 40}, {59, 59}, {64, 64}, {72, 72}, {80, 80}, {96, 96},
		{111, 111}, {128, 128}, {160, 160}, {192, 192}, {256, 256},
		{192, 128}, {128, 64}, {320, 256}, {512, 512}, {576, 512},
	}
	lengths = []int{1, 2, 7, 31, 33, 64, 127, 128, 129, 239, 512, 1023}
	heads   = [][2]int{{1, 1}, {6, 6}, {32, 8}, {8, 1}} // (Hq, Hkv)
	batches = []int{1, 2, 3}
	causals = []attention.Causal{attention.CausalNone, attention.TopLeft, attention.BottomRight}
	scales  = []attention.Scale{{}, attention.ScaleOf(0), attention.ScaleOf(-0.31), attention.ScaleOf(0.7)}
	access  = []attention.Access{attention.AccessAddresses, attention.AccessDescriptors}
)

// Indices of the factors of the table.
const (
	fDims = iota
	fSq
	fSk
	fHeads
	fBatch
	fCausal
	fScale
	fLayout
	fData
	fLSE
	fAccess
)

var tableFactors = []factor{
	fDims: {"dims", len(dims)}, fSq: {"Sq", len(lengths)}, fSk: {"Sk", len(lengths)},
	fHeads: {"heads", len(heads)}, fBatch: {"batch", len(batches)}, fCausal: {"causal", len(causals)},
	fScale: {"scale", len(scales)}, fLayout: {"layout", int(layoutKinds)}, fData: {"data", int(dataKinds)},
	fLSE: {"lse", 2}, fAccess: {"access", len(access)},
}

// caseOf is a row of the table.
func caseOf(row []int) testCase {
	return testCase{
		d: dims[row[fDims]][0], dv: dims[row[fDims]][1],
		causal: causals[row[fCausal]], scale: scales[row[fScale]],
		shape: attention.Shape{
			B: batches[row[fBatch]], Hq: heads[row[fHeads]][0], Hkv: heads[row[fHeads]][1],
			Sq: lengths[row[fSq]], Sk: lengths[row[fSk]],
		},
		layout: layoutKind(row[fLayout]), data: dataKind(row[fData]), lse: row[fLSE] == 1, access: access[row[fAccess]],
	}
}

func every(p pair) (pair, bool) { return p, true }

func rowCost(row []int) int64 { return caseOf(row).cost() }

// table is the one table of cases, for every tier of a storage type: a covering
// design over the factors, and problems worth their own line. The default is
// brief (see brief_test.go), since on a CPU driver what costs is compiling.
func table(dtype attention.DType) []testCase {
	if !full() {
		return slices.Concat(brief(int(dtype)), notable)
	}
	return slices.Concat(pairwise(), notable, realistic())
}

// pairwise has every pair of values of any two factors.
var pairwise = sync.OnceValue(func() []testCase {
	var all []testCase
	for _, row := range cover(tableFactors, every, rowCost, 1e9) {
		all = append(all, caseOf(row))
	}
	return all
})

// notable are corners that the covering design meets only by chance.
var notable = []testCase{
	// Nothing to attend to but for the last key.
	{d: 64, dv: 64, causal: attention.BottomRight, shape: attention.Shape{B: 1, Hq: 2, Sq: 239, Sk: 1}, lse: true},
	// Whole tiles of rows with nothing, then the diagonal.
	{d: 64, dv: 64, causal: attention.BottomRight, shape: attention.Shape{B: 1, Hq: 2, Sq: 512, Sk: 129}, layout: odd, lse: true},
	// Whole tiles of keys that no row sees.
	{d: 64, dv: 64, causal: attention.TopLeft, shape: attention.Shape{B: 2, Hq: 2, Sq: 33, Sk: 512}, lse: true},
	// One query against a cache of keys, latent and grouped.
	{d: 576, dv: 512, shape: attention.Shape{B: 1, Hq: 8, Hkv: 1, Sq: 1, Sk: 100}, layout: packed},
	{d: 128, dv: 128, causal: attention.BottomRight, shape: attention.Shape{B: 2, Hq: 8, Hkv: 2, Sq: 1, Sk: 239}, layout: bshd},
	// The smallest problem there is.
	{d: 1, dv: 1, shape: attention.Shape{B: 1, Hq: 1, Sq: 1, Sk: 1}, lse: true},
	// Unlike dims either way round, none a multiple of anything.
	{d: 3, dv: 200, shape: attention.Shape{B: 1, Hq: 3, Sq: 65, Sk: 63}, layout: even, lse: true},
	{d: 200, dv: 3, causal: attention.TopLeft, shape: attention.Shape{B: 1, Hq: 3, Sq: 63, Sk: 65}, layout: odd, lse: true},
	// The maximum moves at every key, down and up, with large scores.
	{d: 128, dv: 128, shape: attention.Shape{B: 1, Hq: 2, Sq: 129, Sk: 239}, data: rising, lse: true},
	{d: 64, dv: 64, causal: attention.BottomRight, shape: attention.Shape{B: 1, Hq: 2, Sq: 129, Sk: 239}, data: falling, lse: true},
	{d: 64, dv: 64, scale: attention.ScaleOf(-0.125), shape: attention.Shape{B: 1, Hq: 2, Sq: 129, Sk: 239}, data: large, lse: true},
	// Verified by a sample of its rows, as the realistic ones are.
	{d: 64, dv: 64, causal: attention.TopLeft, shape: attention.Shape{B: 2, Hq: 2, Sq: 300, Sk: 300}, layout: bshd, lse: true, sampleMax: 64},
	// Scale 0 under a mask: each row the mean of what it sees.
	{d: 64, dv: 64, causal: attention.BottomRight, scale: attention.ScaleOf(0), shape: attention.Shape{B: 1, Hq: 1, Sq: 129, Sk: 127}, lse: true},
}

// realistic are problems of the size people have, verified by sampled rows.
func realistic() []testCase {
	var all []testCase
	for i, d := range [][2]int{{64, 64}, {128, 128}, {192, 128}, {256, 256}} {
		for j, s := range []attention.Shape{
			{B: 1, Hq: 8, Hkv: 2, Sq: 4096, Sk: 4096},
			{B: 1, Hq: 4, Sq: 2049, Sk: 8191},
			{B: 2, Hq: 16, Hkv: 2, Sq: 17, Sk: 16384},
		} {
			all = append(all, testCase{
				d: d[0], dv: d[1], causal: causals[(i+j)%len(causals)], shape: s, lse: true,
				layout: []layoutKind{packed, bshd, tight}[j], sampleMax: 512,
			})
		}
	}
	return append(all, testCase{
		d: 576, dv: 512, causal: attention.BottomRight, shape: attention.Shape{B: 2, Hq: 128, Hkv: 1, Sq: 2, Sk: 8192},
		layout: packed, lse: true, sampleMax: 512,
	})
}

// The table names no case twice, and says how long it is.
func TestTable(t *testing.T) {
	for _, dtype := range attention.DTypes() {
		seen := map[string]bool{}
		pipelines := map[string]bool{}
		var flops int64
		all := table(dtype)
		for _, c := range all {
			if seen[c.String()] {
				t.Errorf("%v is there twice", c)
			}
			seen[c.String()] = true
			pipelines[c.pipeline()] = true
			flops += c.cost()
		}
		t.Logf("%v: %d cases, about %d pipelines, %.1f GFLOP", dtype, len(seen), len(pipelines), float64(flops)/1e9)
		for _, d := range dims {
			if !slices.ContainsFunc(all, func(c testCase) bool { return [2]int{c.d, c.dv} == d }) {
				t.Errorf("%v: no case has head dimensions %v", dtype, d)
			}
		}
	}
}
