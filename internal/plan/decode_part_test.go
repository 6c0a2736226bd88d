package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
)

// The decode part of a mixed batch has its own dispatch if most sequences are short and
// there are enough of them. The limits are an H200's.
func TestShortSequencesLeaveTheLongOnes(t *testing.T) {
	caps := h200Caps()
	caps.ShaderCores, caps.Limits.MaxPushConstantBytes = 132, 256
	for _, c := range []struct {
		name string
		set  func(cfg *problem.Config, r *Request)
		want int // rows of a short sequence
	}{
		{"600 decodes, 5 prefills", nil, 2},
		{"with nothing grouped", func(_ *problem.Config, r *Request) { r.Shape.Hkv = 32 }, 8},
		{"large groups", func(_ *problem.Config, r *Request) { r.Shape.Hkv = 2 }, 1},
		{"no row of a group has room", func(_ *problem.Config, r *Request) { r.Shape.Hkv = 1 }, 0},
		{"about as long as the longest", func(_ *problem.Config, r *Request) { r.TotalQ = 605 * 2048 / 3 }, 0},
		{"few", func(_ *problem.Config, r *Request) { r.Shape.B, r.TotalQ = 16, 2048+15 }, 0},
		{"padded", func(_ *problem.Config, r *Request) { r.Options.Lengths, r.TotalQ = LengthUsedQ|lengthCuK, 0 }, 0},
		{"splits that the caller fixed", func(cfg *problem.Config, _ *Request) { cfg.FixedSplit = 2 }, 0},
	} {
		cfg := problem.Config{DType: problem.F16, HeadDim: 128}
		r := Request{Shape: problem.Shape{B: 605, Hq: 32, Hkv: 8, Sq: 2048, Sk: 2048}, Access: problem.AccessAddresses,
			Align: [4]uint32{8, 8, 8, 8}, Options: Options{Lengths: LengthCuQ | lengthCuK}, TotalQ: 600 + 5*2048}
		if c.set != nil {
			c.set(&cfg, &r)
		}
		v, _, reason := chooseVariant(caps, cfg, problem.TierCoopMat2, r)
		require.Empty(t, reason, c.name)
		v.Options.split = false
		s, ok := decodePartRequest(caps, &cfg, &v, &r)
		require.Equal(t, c.want > 0, ok, c.name)
		if !ok {
			continue
		}
		require.Equal(t, c.want, s.Shape.Sq, c.name)
		s.operands = operandsInRegisters
		decodePart, _, reason := chooseVariant(caps, cfg, problem.TierCoopMat2, s)
		require.Empty(t, reason, c.name)
		decodePart.Options.decodePartRows, decodePart.Options.isDecodePart = s.decodeRows(), true
		require.True(t, decodePart.IsDecode(), c.name)
		require.Equal(t, [3]uint32{1, uint32(r.Shape.Hkv), 605}, decodePart.grid(&r, 1), c.name)
	}
}

// The decode kernel combines its splits itself if that takes few rounds.
func TestSplitsThatCombineInFewRounds(t *testing.T) {
	lengths := Options{Lengths: LengthCuQ}
	for _, c := range []struct {
		rows, dim, local uint32
		splits           int
		options          Options
		want             bool
	}{
		{4, 128, 256, 16, Options{}, true}, {4, 128, 256, 17, Options{}, false},
		{8, 128, 128, 8, Options{}, true}, {8, 128, 128, 9, Options{}, false},
		{8, 128, 128, 24, lengths, true}, {8, 128, 128, 25, lengths, false},
		{16, 512, 128, 8, Options{}, true}, // splits of one round are always combined
		{1, 64, 128, 48, lengths, true}, {1, 64, 128, 65, lengths, false},
		{4, 128, 256, 1, Options{}, false},
	} {
		v := Variant{Tile: decodeTile{fragment: fragment{SumN: c.rows, Subgroup: 32}, Subgroups: c.local / 32, DvSlice: c.dim}}
		r := Request{Shape: problem.Shape{B: 1, Hq: int(c.rows), Hkv: 1, Sq: 1, Sk: 4096}, Options: c.options}
		require.Equal(t, c.want, v.combines(&r, c.splits), "%+v", c)
		r.LSE = true
		require.Equal(t, c.want, v.combines(&r, c.splits), "%+v with LSE", c)
		r.Options.alibi = 1
		require.False(t, v.combines(&r, c.splits), "%+v with LSE and slopes", c)
	}
}
