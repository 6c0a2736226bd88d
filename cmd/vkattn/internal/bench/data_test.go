package bench

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/tensors"
)

// withOptions are problems with options, small enough to be computed whole.
func withOptions() (list []Problem) {
	shape := attention.Shape{B: 3, Hq: 4, Hkv: 2, Sq: 6, Sk: 40}
	mixed, none := Lengths("6/40,0/3,0/0,2/17"), Lengths("1/0,3/9")
	for _, c := range []attention.Config{
		{}, {Causal: attention.TopLeft}, {Causal: attention.BottomRight}, {Window: attention.WindowOf(5, 2), Align: attention.BottomRight, Softcap: 3},
	} {
		c.HeadDim, c.HeadDimV = 32, 64
		for _, f := range []Options{
			{}, {Sinks: true, ALiBi: c.Align != 0 || c.Causal != 0}, {PageSize: 16}, {PageSize: 7, HND: true}, {PageSize: 1, Lengths: mixed, Packed: true},
			{Blocks: 0.5, BlockQ: 16, BlockK: 16}, {Blocks: 0.3, BlockQ: 16, BlockK: 16, Lengths: "40/40,0/9,20/33", PageSize: 3},
			{Lengths: mixed}, {Lengths: mixed, Packed: true}, {Lengths: none}, {SparseRatio: 0.2}, {SparseRatio: 0.2, PageSize: 5, Lengths: mixed},
			{SparseTopK: 7}, {SparseTopK: 3, PageSize: 5, Lengths: mixed}, {SparseTopK: 5, Packed: true, Lengths: mixed},
		} {
			p := Problem{Shape: shape, Config: c, Options: f}
			if f.Lengths != "" {
				f.Lengths.bound(&p.Shape)
			}
			list = append(list, p)
		}
	}
	for _, f := range []Options{{SharedKV: true}, {SharedKV: true, PageSize: 4, Lengths: mixed}, {SharedKV: true, Packed: true, Lengths: mixed}} {
		p := Problem{Shape: shape, Config: attention.Config{HeadDim: 96, HeadDimV: 64}, Options: f}
		if f.Lengths != "" {
			f.Lengths.bound(&p.Shape)
		}
		list = append(list, p)
	}
	return list
}

// reference is O of every row there is, as gather packs it.
func (d *data) reference(t *testing.T) []float64 {
	rows, err := tensors.ExistingRows(d.args.Args)
	require.NoError(t, err)
	o, _, err := attention.ReferenceSample(d.problem.Config, d.args.Args, rows)
	require.NoError(t, err)
	return o
}

func TestAMaskAndSeparateCallsAreTheSameProblem(t *testing.T) {
	masked, separate := 0, 0
	for _, p := range withOptions() {
		t.Run(p.String(), func(t *testing.T) {
			d := newData(p, 3)
			require.NoError(t, attention.CheckArgs(p.Config, d.args.Args))
			want := d.reference(t)
			require.Len(t, want, int(p.rows())*p.Config.ValueDim())
			m, err := d.byMask()
			if errors.Is(err, attention.ErrUnsupported) {
				require.True(t, p.ALiBi)
			} else {
				require.NoError(t, err)
				rows, err := tensors.ExistingRows(d.args.Args) // the mask knows no lengths of rows
				require.NoError(t, err)
				got, _, err := attention.ReferenceSample(m.problem.Config, m.args.Args, rows)
				require.NoError(t, err)
				require.InDeltaSlice(t, want, got, 1e-12)
				masked++
			}
			if BaselineContiguous.applies(p, nil) {
				c := d.contiguous()
				require.NoError(t, attention.CheckArgs(c.problem.Config, c.args.Args))
				require.Nil(t, c.args.Pages)
				require.InDeltaSlice(t, want, c.reference(t), 1e-12)
			}
			if !BaselineSeparate.applies(p, nil) {
				return
			}
			// The rows of each call lie where the whole result has them.
			var got []float64
			calls := d.separate(d.args.Args)
			for _, one := range calls {
				o, _, err := attention.Reference(p.Config, one)
				require.NoError(t, err)
				got = append(got, o...)
			}
			require.InDeltaSlice(t, want, got, 1e-12)
			separate++
		})
	}
	require.Greater(t, masked, 25)
	require.GreaterOrEqual(t, separate, 12)
}

func TestAVWithinKTakesNoMemory(t *testing.T) {
	p := Problem{Shape: attention.Shape{B: 2, Hq: 2, Hkv: 1, Sq: 1, Sk: 50}, Config: attention.Config{HeadDim: 96, HeadDimV: 64}, Options: Options{SharedKV: true}}
	d := newData(p, 1)
	l := onCPU(t, d)
	a := l.layout.args(p.Config, l.first, 3)
	require.NoError(t, attention.CheckArgs(p.Config, a.Args))
	require.Equal(t, &a.K.Host[0], &a.V.Host[0])
	require.Equal(t, a.K.Offset, a.V.Offset)
	require.NotZero(t, a.K.Offset)
	one, err := attention.New(nil, p.Config)
	require.NoError(t, err)
	out, err := l.results(t.Context(), &work{op: one})
	require.NoError(t, err)
	got, err := d.gather(out["O"], d)
	require.NoError(t, err)
	for i, x := range d.reference(t) {
		require.InDelta(t, x, got[i], 1e-2)
	}
}

func TestRowsOfARunLandWhereTheyAreJudged(t *testing.T) {
	for _, p := range withOptions() {
		d := newData(p, 3)
		op, err := attention.New(nil, p.Config)
		require.NoError(t, err)
		require.NoError(t, op.Forward(nil, d.args.Args), "%v", p)
		got, err := d.gather(d.args.O.Host, d)
		require.NoError(t, err)
		want := d.reference(t)
		require.Len(t, got, len(want))
		for i := range want {
			require.InDelta(t, want[i], got[i], 2e-2, "%v, element %d", p, i)
		}
	}
}

func TestCellsAndBytes(t *testing.T) {
	for _, p := range withOptions() {
		if p.sparse() {
			continue
		}
		rows, keys := p.lengths()
		var cells float64
		var bytes uint64
		var m *blockMap
		if p.Blocks > 0 {
			m = p.blockMap()
		}
		for i := range rows {
			touched := map[[2]int]bool{}
			for r := range rows[i] {
				for k := range keys[i] {
					for h := range 2 {
						if lo, hi := p.sees(r, rows[i], keys[i]); k >= lo && k < hi && (m == nil || m.at(h, r/16, k/16)) {
							cells += 0.5
							touched[[2]int{h, k}] = true
						}
					}
				}
			}
			bytes += uint64(len(touched)) * 96 * 2 // 32 + 64, or 96 that are both
		}
		require.Equal(t, cells, p.cells(), "%v", p)
		require.Equal(t, bytes, p.KVBytes(), "%v", p)
	}
	p := Problem{Shape: attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 1, Sk: 1000}, Config: attention.Config{HeadDim: 64}, Options: Options{SparseRatio: 0.02}}
	require.EqualValues(t, 2*2*20*128*2, p.KVBytes())
	require.EqualValues(t, 2*20, p.cells())
	require.InDelta(t, 0.02, p.sparseRatio(), 1e-12)
	p.Options, p.Shape.Sq = Options{SparseTopK: 500}, 2
	require.EqualValues(t, 2*2*750*128*2, p.KVBytes()) // a key is in neither list with a chance of a quarter
	require.EqualValues(t, 2*2*500, p.cells())
	require.InDelta(t, 0.5, p.sparseRatio(), 1e-12)
	p.Shape.Sq, p.Config.KeyType, p.Config.ValueType, p.Options = 1, attention.KVInt8, attention.KVInt8, Options{}
	require.EqualValues(t, 2*2*1000*(128+8), p.KVBytes())
	p.Config.KVBlock = attention.KVBlockHead
	require.EqualValues(t, 2*2*1000*128+2*8, p.KVBytes())
	p.Config.KVBlock = 0
	p.Config.KeyType, p.Config.ValueType = attention.KVQ4_0, attention.KVQ4_0
	require.EqualValues(t, 2*2*1000*4*18, p.KVBytes())
}

func TestQuantizedDataIsNormalNumbers(t *testing.T) {
	for _, kv := range attention.KVTypes()[1:] {
		p := Problem{Shape: attention.Shape{B: 2, Hq: 2, Hkv: 2, Sq: 1, Sk: 300}, Options: Options{PageSize: 7},
			Config: attention.Config{HeadDim: 32, HeadDimV: 64, KeyType: kv, ValueType: kv, DType: attention.F32}}
		if kv.Latent() {
			p.Config.HeadDim, p.Config.HeadDimV, p.Shape.Hkv, p.SharedKV = 576, 512, 1, true
		}
		d := newData(p, 1)
		require.NoError(t, attention.CheckArgs(p.Config, d.args.Args))
		require.Equal(t, d.reference(t), d.contiguous().reference(t))
		one := p
		one.Config.KeyType, one.Config.ValueType = attention.KVSame, attention.KVSame
		q := newData(one, 1)
		a, b := d.reference(t), q.reference(t)
		// Other random numbers, but of the same size.
		var x, y float64
		for i := range a {
			x, y = x+a[i]*a[i], y+b[i]*b[i]
		}
		require.InDelta(t, 1, x/y, 0.6, "%v", kv)
	}
}

func TestPagesAreInRandomOrderAndEachOnce(t *testing.T) {
	p := Problem{Shape: attention.Shape{B: 2, Hq: 1, Hkv: 1, Sq: 1, Sk: 1000}, Config: attention.Config{HeadDim: 8},
		Options: Options{PageSize: 3, Lengths: "1/1000,1/100"}}
	d := newData(p, 1)
	var used []int32
	for b, s := range d.call.Sequences {
		for key := 0; key < s.Keys; key += 3 {
			page, _ := d.call.KVRow(b, key)
			used = append(used, int32(page))
		}
	}
	require.Len(t, used, d.args.Pages.Count)
	require.False(t, slices.IsSorted(used))
	slices.Sort(used)
	for i, x := range used {
		require.EqualValues(t, i, x)
	}
	require.NotEqual(t, d.args.Pages.Table, newData(p, 2).args.Pages.Table, "another seed")
}

func TestExtrasCross(t *testing.T) {
	base := []Problem{{Shape: attention.Shape{B: 1, Hq: 2, Hkv: 2, Sq: 1, Sk: 64}, Config: attention.Config{HeadDim: 64}}}
	e := Lists("page-size=0,16 kv-dtype=same,int8 fixed-split=0,2,3 kv-layout=hnd window=3,0")
	list, err := e.cross(base)
	require.NoError(t, err)
	require.Len(t, list, 12)
	seen := map[string]bool{}
	for _, p := range list {
		require.NoError(t, p.Config.Validate())
		require.Equal(t, attention.BottomRight, p.Config.Align)
		require.Equal(t, p.PageSize > 0, p.HND)
		seen[fmt.Sprint(p)] = true
	}
	require.Len(t, seen, 12, "a problem's name tells it from others")
	for range 12 {
		e["page-size"] = append(e["page-size"], e["page-size"]...)
	}
	_, err = e.cross(base)
	require.ErrorContains(t, err, "over 10000")
}
