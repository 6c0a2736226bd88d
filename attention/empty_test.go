package attention_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/half"
)

// emptyCall is a call of two sequences, three rows and four keys each, with sinks, a bias of all
// batches and every gradient, whose outputs hold NaN.
func emptyCall() (attention.Config, attention.BackwardArgs) {
	const hq, dim, rows, keys = 4, 4, 2 * 3, 2 * 4
	numbers := func(n int) []byte {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(i%7-3) / 4
		}
		return encodeF32(x)
	}
	var a attention.BackwardArgs
	a.Shape = attention.Shape{B: 2, Hq: hq, Hkv: 2, Sq: 3, Sk: 4}
	a.Q.Host, a.DO.Host = numbers(rows*hq*dim), numbers(rows*hq*dim)
	a.K.Host, a.V.Host = numbers(keys*2*dim), numbers(keys*2*dim)
	a.O.Host, a.LSE.Host, a.DQ.Host = nans(rows*hq*dim), nans(rows*hq), nans(rows*hq*dim)
	a.DK.Host, a.DV.Host = nans(keys*2*dim), nans(keys*2*dim)
	a.Sinks, a.DSinks.Host = vectorF32(0.5, -1, 2, 0), nans(hq)
	a.Bias = &attention.Bias{Tensor: attention.Tensor{Host: numbers(hq * 3 * 4)}, DType: attention.F32, Batches: 1}
	a.DBias.Host = nans(hq * 3 * 4)
	return attention.Config{HeadDim: dim, DType: attention.F32}, a
}

// Calls without keys, without rows or without sequences are calls: rows attend to nothing, and
// what rows and keys there are have a gradient of 0.
func TestCallsOfNothing(t *testing.T) {
	all := func(x []byte, want float32) func(t *testing.T, name string) {
		return func(t *testing.T, name string) {
			t.Helper()
			got := make([]float32, len(x)/4)
			half.DecodeF32(got, x)
			for i, y := range got {
				if !(y == want || y != y && want != want) {
					t.Errorf("element %d of %s is %v, want %v", i, name, y, want)
					return
				}
			}
		}
	}
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	type wants = map[string]float32
	for name, x := range map[string]struct {
		set  func(a *attention.BackwardArgs)
		want wants
		only string // a tensor whose gradient there is; "": all
	}{
		"no packed keys": {func(a *attention.BackwardArgs) {
			a.Varlen = &attention.Varlen{CuK: vectorI32(0, 0, 0)}
		}, wants{"O": 0, "DQ": 0, "DK": nan, "DV": nan, "DSinks": 0, "DBias": 0}, ""},
		"no packed keys, no sinks": {func(a *attention.BackwardArgs) {
			a.Varlen = &attention.Varlen{CuK: vectorI32(0, 0, 0)}
			a.Sinks, a.DSinks = attention.Vector{}, attention.Vector{}
		}, wants{"O": 0, "LSE": inf, "DQ": 0, "DK": nan, "DV": nan, "DBias": 0}, ""},
		"wrong lengths of no packed keys": {func(a *attention.BackwardArgs) {
			a.Varlen = &attention.Varlen{CuK: vectorI32(0, 3, 4), UsedK: vectorI32(4, 4)}
		}, wants{"O": 0, "DQ": 0, "DK": nan, "DV": nan, "DBias": 0}, ""},
		"no packed rows": {func(a *attention.BackwardArgs) {
			a.Varlen = &attention.Varlen{CuQ: vectorI32(0, 0, 0)}
		}, wants{"O": nan, "LSE": nan, "DQ": nan, "DK": 0, "DV": 0, "DSinks": 0, "DBias": 0}, ""},
		"no sequences": {func(a *attention.BackwardArgs) {
			a.B = 0
		}, wants{"O": nan, "LSE": nan, "DQ": nan, "DK": nan, "DV": nan, "DSinks": 0, "DBias": 0}, ""},
		"no sequences of packed rows and keys": {func(a *attention.BackwardArgs) {
			a.B, a.Varlen = 0, &attention.Varlen{CuQ: vectorI32(0), CuK: vectorI32(0), TotalQ: 6, TotalK: 8}
		}, wants{"O": nan, "LSE": nan, "DQ": nan, "DK": nan, "DV": nan, "DSinks": 0, "DBias": 0}, ""},
		"no pages": {func(a *attention.BackwardArgs) {
			a.Pages = &attention.Pages{Table: vectorI32(0, 0, 0, 0), PageSize: 2}
			a.Varlen = &attention.Varlen{UsedK: vectorI32(4, 3)}
		}, wants{"O": 0}, "forward"},
		"no pages of a split call": {func(a *attention.BackwardArgs) {
			a.Pages = &attention.Pages{Table: vectorI32(0, 0, 0, 0), PageSize: 2}
		}, wants{"O": 0}, "forward"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, on := range []string{"cpu", "addresses", "descriptors"} {
				t.Run(on, func(t *testing.T) {
					cfg, a := emptyCall()
					x.set(&a)
					if name == "no pages of a split call" {
						cfg.FixedSplit = 2
					}
					if on == "cpu" {
						op, err := attention.New(nil, cfg)
						require.NoError(t, err)
						require.NoError(t, op.Forward(nil, a.Args))
						if x.only == "" {
							require.NoError(t, op.Backward(nil, a))
						}
					} else {
						d := newBackwardDevice(t)
						cfg.Access = attention.AccessDescriptors
						if on == "addresses" {
							if cfg.Access = attention.AccessAddresses; !d.dev.Caps().BufferDeviceAddress || d.dev.Caps().Limits.MaxPushConstantBytes < 256 {
								t.Skip("no addresses")
							}
						}
						op, u := d.op(t, cfg), d.upload(t, a)
						require.NoError(t, op.Forward(d.stream, u.Args))
						_, err := op.PlanFor(u.Args)
						require.NoError(t, err)
						if x.only == "" {
							require.NoError(t, d.stream.Barrier())
							require.NoError(t, op.Backward(d.stream, u.BackwardArgs))
						}
						u.download(t, d)
					}
					outputs := outputsOf(&a)
					outputs["O"], outputs["LSE"] = a.O.Host, a.LSE.Host
					for name, want := range x.want {
						all(outputs[name], want)(t, name)
					}
				})
			}
		})
	}
}

// An append and a merge without sequences do nothing.
func TestAppendAndMergeOfNothing(t *testing.T) {
	adding, rows := goodAppend()
	rows.B, rows.KCache.Host[0] = 0, 7
	require.NoError(t, doAppend(adding, rows))
	require.Equal(t, byte(7), rows.KCache.Host[0])
	cfg, a := goodMerge()
	a.B = 0
	require.NoError(t, merge(cfg, a))

	r := newRecording(t, attention.AccessDescriptors)
	p, onDevice := recordedAppend(t, r, attention.AccessAuto)
	onDevice.B = 0
	require.NoError(t, p.Forward(r.stream, onDevice))
	m, err := attention.NewMerge(r.dev, attention.MergeConfig{HeadDim: 8})
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	require.NoError(t, m.Forward(r.stream, attention.MergeArgs{Shape: attention.Shape{Hq: 1, Sq: 1}, O: r.args.O,
		First: attention.States{O: r.args.Q, LSE: r.args.LSE}}))
	r.wait(t)
}
