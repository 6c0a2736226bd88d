package attention_test

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/merge"
	"vkattn/vk"
)

// goodMerge is a merge that is accepted: f16, B2 H4 S8, 16 columns, one state and
// three.
func goodMerge() (merge.MergeConfig, merge.MergeArgs) {
	o := func(states int) attention.Tensor {
		return attention.Tensor{Host: make([]byte, states*2*4*8*16*2)}
	}
	lse := func(states int) attention.Tensor { return attention.Tensor{Host: make([]byte, states*2*4*8*4)} }
	return merge.MergeConfig{HeadDim: 16}, merge.MergeArgs{
		Shape: attention.Shape{B: 2, Hq: 4, Sq: 8},
		First: merge.States{O: o(1), LSE: lse(1)}, Second: merge.States{O: o(3), LSE: lse(3), Count: 3},
		O: o(1), LSE: lse(1),
	}
}

func doMerge(cfg merge.MergeConfig, a merge.MergeArgs) error {
	m, err := merge.NewMerge(nil, cfg)
	if err != nil {
		return err
	}
	defer m.Close()
	return m.Forward(nil, a)
}

func TestMergeAccepts(t *testing.T) {
	for name, change := range map[string]func(*merge.MergeArgs){
		"packed":              func(*merge.MergeArgs) {},
		"no second":           func(a *merge.MergeArgs) { a.Second = merge.States{} },
		"no LSE":              func(a *merge.MergeArgs) { a.LSE = attention.Tensor{} },
		"LSE strides":         func(a *merge.MergeArgs) { a.First.LSE.Strides = attention.BHSD(4, 8, 1) },
		"BSHD":                func(a *merge.MergeArgs) { a.O.Strides = attention.BSHD(4, 8, 16) },
		"sizes of a Forward":  func(a *merge.MergeArgs) { a.Hkv, a.Sk = 2, 100 },
		"one state twice":     func(a *merge.MergeArgs) { a.Second = a.First },
		"O is the first":      func(a *merge.MergeArgs) { a.O = a.First.O },
		"all is the first":    func(a *merge.MergeArgs) { a.O, a.LSE = a.First.O, a.First.LSE },
		"LSE is the second's": func(a *merge.MergeArgs) { a.LSE = a.Second.LSE },
		"O is a later state": func(a *merge.MergeArgs) {
			a.O = a.Second.O
			a.O.Offset = 2 * 2 * 4 * 8 * 16
		},
		"one place named in two ways": func(a *merge.MergeArgs) {
			a.O = a.First.O
			a.O.Strides = attention.BHSD(4, 8, 16)
		},
		"states in alternating columns of a row": func(a *merge.MergeArgs) {
			a.Second.StepO = 16
			a.Second.O.Strides = attention.BHSD(4, 8, 48)
		},
		"exactly to the end": func(a *merge.MergeArgs) { a.Second.Count, a.Second.O.Offset = 2, 2*4*8*16 },
		"states that overlap one another": func(a *merge.MergeArgs) {
			a.First.Count, a.Second.Count = 2, 2
			a.First.StepO, a.First.StepLSE = 1, 1
			a.First.O.Host, a.First.LSE.Host = make([]byte, 2*2*4*8*16+2), make([]byte, 4*2*4*8+4)
		},
	} {
		cfg, a := goodMerge()
		change(&a)
		require.NoError(t, doMerge(cfg, a), name)
	}
}

func TestMergeRefusesByFieldName(t *testing.T) {
	short := func(x *attention.Tensor) { x.Host = x.Host[:len(x.Host)-1] }
	for name, c := range map[string]struct {
		field  string
		change func(*merge.MergeConfig, *merge.MergeArgs)
	}{
		"dtype":        {"DType", func(c *merge.MergeConfig, _ *merge.MergeArgs) { c.DType = 9 }},
		"no head dim":  {"HeadDim", func(c *merge.MergeConfig, _ *merge.MergeArgs) { c.HeadDim = 0 }},
		"head dim":     {"HeadDim", func(c *merge.MergeConfig, _ *merge.MergeArgs) { c.HeadDim = 513 }},
		"access":       {"Access", func(c *merge.MergeConfig, _ *merge.MergeArgs) { c.Access = 7 }},
		"batch":        {"B", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.B = -1 }},
		"heads":        {"Hq", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.Hq = -1 }},
		"rows":         {"Sq", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.Sq = math.MaxInt }},
		"count":        {"Second.Count", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.Second.Count = -1 }},
		"many":         {"First.Count", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.First.Count = 257 }},
		"many in all":  {"First.Count + Second.Count", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.Second.Count = 256 }},
		"step":         {"Second.StepO", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.Second.StepO = -1 }},
		"step of LSE":  {"First.StepLSE", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.First.StepLSE = -1 }},
		"huge step":    {"Second.O", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.Second.StepO = math.MaxInt64 / 2 }},
		"wide step":    {"Second.O", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.Second.StepO = 2*4*8*16 + 1 }},
		"no state":     {"First.O", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.First = merge.States{} }},
		"no O":         {"O", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.O = attention.Tensor{} }},
		"O forgotten":  {"Second.O", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.Second.O = attention.Tensor{} }},
		"LSE needed":   {"First.LSE", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.First.LSE = attention.Tensor{} }},
		"begun":        {"Second.O", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.Second = merge.States{Count: 2} }},
		"LSE begun":    {"LSE", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.LSE = attention.Tensor{Offset: 1} }},
		"short first":  {"First.O", func(_ *merge.MergeConfig, a *merge.MergeArgs) { short(&a.First.O) }},
		"short stack":  {"Second.O", func(_ *merge.MergeConfig, a *merge.MergeArgs) { short(&a.Second.O) }},
		"short LSE":    {"Second.LSE", func(_ *merge.MergeConfig, a *merge.MergeArgs) { short(&a.Second.LSE) }},
		"short result": {"O", func(_ *merge.MergeConfig, a *merge.MergeArgs) { short(&a.O) }},
		"offset":       {"O.Offset", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.O.Offset = -1 }},
		"stride":       {"First.O.Strides.Seq", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.First.O.Strides.Seq = -1 }},
		"LSE strides":  {"Second.LSE.Strides", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.Second.LSE.Strides.Seq = 2 }},
		"rows overlap": {"O.Strides", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.O.Strides = attention.BHSD(4, 8, 15) }},
		"O in the first": {"O", func(_ *merge.MergeConfig, a *merge.MergeArgs) {
			a.First.O.Host = append(a.First.O.Host, make([]byte, 32)...)
			a.O = a.First.O
			a.O.Offset = 16
		}},
		"O across two states": {"O", func(_ *merge.MergeConfig, a *merge.MergeArgs) {
			a.O = a.Second.O
			a.O.Offset = 2*4*8*16 + 16
		}},
		"O the first's memory, other strides": {"O", func(_ *merge.MergeConfig, a *merge.MergeArgs) {
			a.O = a.First.O
			a.O.Strides = attention.BSHD(4, 8, 16)
		}},
		"O in LSE":       {"O", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.Second.LSE.Host = a.O.Host }},
		"LSE in a LSE":   {"LSE", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.LSE = a.Second.LSE; a.LSE.Offset = 1 }},
		"LSE in O":       {"LSE", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.LSE.Host = a.O.Host }},
		"LSE in a state": {"LSE", func(_ *merge.MergeConfig, a *merge.MergeArgs) { a.LSE.Host = a.First.O.Host }},
	} {
		cfg, a := goodMerge()
		c.change(&cfg, &a)
		before := bytes.Clone(a.O.Host)
		err := doMerge(cfg, a)
		var shape *attention.ShapeError
		require.True(t, errors.As(err, &shape), "%s: %v", name, err)
		require.Equal(t, c.field, shape.Field, "%s: %v", name, err)
		require.Equal(t, before, a.O.Host, name)
	}
}

func TestMergeOnTheCPUTakesNoStream(t *testing.T) {
	cfg, a := goodMerge()
	m, err := merge.NewMerge(nil, cfg)
	require.NoError(t, err)
	require.Equal(t, cfg, m.Config())
	require.NoError(t, m.Prepare())
	require.Error(t, m.Forward(attention.OnStream(&vk.Stream{}), a))
	require.ErrorIs(t, m.Record(&vk.Commands{}, a), attention.ErrUnsupported)
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	require.ErrorIs(t, m.Forward(nil, a), vk.ErrClosed)
}

// recordedMerge merges the outputs of a recording.
func recordedMerge(t testing.TB, r *recording, access attention.Access) (*merge.Merge, merge.MergeArgs) {
	m, err := merge.NewMerge(attention.On(r.dev), merge.MergeConfig{HeadDim: 8, Access: access})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	require.NoError(t, m.Prepare())
	o := attention.Tensor{Buffer: r.args.O.Buffer}
	state := merge.States{O: o, LSE: r.args.LSE}
	return m, merge.MergeArgs{Shape: recordedShape, First: state, Second: state, O: o, LSE: r.args.LSE}
}

func TestMergesAllocateNothing(t *testing.T) {
	forwardsAllocateNothing(t, func(t testing.TB, r *recording, access attention.Access) func() error {
		m, a := recordedMerge(t, r, access)
		return func() error { return m.Forward(attention.OnStream(r.stream), a) }
	})
}

// A merge that a device cannot compute is refused before anything is recorded.
func TestMergeRefusesOnADevice(t *testing.T) {
	r := newRecording(t, attention.AccessDescriptors)
	m, good := recordedMerge(t, r, attention.AccessAuto)
	host, mixed := good, good
	host.Second.O = attention.Tensor{Host: make([]byte, 16)}
	mixed.O.Host = make([]byte, 16)
	refusesOnADevice(t, r, m, good, map[string]merge.MergeArgs{"Second.O": host, "O": mixed}, func(dev *attention.Device) (*merge.Merge, error) {
		return merge.NewMerge(dev, merge.MergeConfig{HeadDim: 8})
	})
}

func BenchmarkMergeRecord(b *testing.B) {
	benchmarkRecord(b, func(t testing.TB, r *recording, access attention.Access) func(*vk.Commands) error {
		m, a := recordedMerge(t, r, access)
		return func(c *vk.Commands) error { return m.Record(c, a) }
	})
}
