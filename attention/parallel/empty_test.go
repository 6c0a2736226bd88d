package parallel

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/vk"
)

// Calls without rows, keys or sequences write what a call on one device writes. The properties of
// Forward and Backward have such calls on the CPU tier.
func TestNothingOnADevice(t *testing.T) {
	dev, streams := openRanks(t, 2)
	shape := attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 5, Sk: 6}
	for name, p := range map[string]Problem{
		"no rows":      {Shape: shape, CuQ: []int{0, 0, 0}, CuK: []int{0, 3, 9}},
		"no keys":      {Shape: shape, CuQ: []int{0, 5, 7}, CuK: []int{0, 0, 0}},
		"no sequences": {Shape: attention.Shape{Hq: 4, Hkv: 2, Sq: 5, Sk: 6}},
	} {
		for _, mode := range Modes() {
			t.Run(mode.String()+"/"+name, func(t *testing.T) {
				cfg := Config{Config: attention.Config{HeadDim: 8}, Mode: mode, Inner: 2}
				w := newWhole(cfg, p, 1)
				parts := make([]*part, len(streams))
				for r, err := range w.onDevices(t, dev, streams, ranksOf(t, len(streams)), movable, func(r int, x *deviceRank) error {
					parts[r] = x.part
					for _, tensor := range []*attention.Tensor{&x.DO, &x.DQ, &x.DK, &x.DV} {
						x.tensor(tensor, vk.Readback)
					}
					if err := x.op.Forward(context.Background(), attention.OnStream(x.s), x.Args); err != nil {
						return err
					}
					if err := x.op.Backward(context.Background(), attention.OnStream(x.s), x.BackwardArgs); err != nil {
						return err
					}
					return x.onDevice.collect()
				}) {
					require.NoError(t, err, "rank %d", r)
				}
				for _, x := range parts {
					x.collect(true)
					x.collect(false)
				}
				for name, host := range map[string][]byte{"O": w.O.Host, "DQ": w.DQ.Host, "DK": w.DK.Host, "DV": w.DV.Host} {
					require.True(t, bytes.Equal(host, make([]byte, len(host))), name)
				}
				infinity := []byte{0, 0, 0x80, 0xff}
				require.True(t, bytes.Equal(w.LSE.Host, bytes.Repeat(infinity, len(w.LSE.Host)/4)), "LSE")
			})
		}
	}
	t.Run("decode", func(t *testing.T) { decodeNothing(t, dev, streams) })
}

// Ranks that have no sequence agree on the call.
func TestDecodeOfNoSequences(t *testing.T) { decodeNothing(t, nil, make([]*vk.Stream, 2)) }

func decodeNothing(t *testing.T, dev *vk.Device, streams []*vk.Stream) {
	for _, rows := range []int{1, 3} {
		for r, err := range onAll(ranksOf(t, len(streams)), func(r int, g *Group) error {
			cfg := Config{Config: attention.Config{HeadDim: 8, Causal: attention.BottomRight}}
			op, err := New(g, attention.On(dev), cfg)
			if err != nil {
				return err
			}
			defer op.Close()
			d := onDevice{t: t, s: streams[r]}
			tensor := func(fill byte) attention.Tensor {
				x := attention.Tensor{Host: bytes.Repeat([]byte{fill}, 64)}
				if dev != nil {
					d.tensor(&x, vk.Readback)
				}
				return x
			}
			cache := Cache{K: tensor(1), V: tensor(1), Capacity: 4}
			o := tensor(7)
			if err := op.Append(attention.OnStream(streams[r]), AppendArgs{Hkv: 1, New: rows, NewK: tensor(2), NewV: tensor(2), Cache: cache}); err != nil {
				return err
			}
			for range 3 { // later calls are recorded
				if err := op.Decode(context.Background(), attention.OnStream(streams[r]), DecodeArgs{Hq: 2, Hkv: 1, Sq: rows, Q: tensor(3), Cache: cache, O: o}); err != nil {
					return err
				}
			}
			return d.collect()
		}) {
			require.NoError(t, err, "rank %d of %d rows", r, rows)
		}
	}
}
