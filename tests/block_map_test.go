package tests

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/score"
	"vkattn/internal/cases"
	"vkattn/vk"
)

// mapOf makes the map of a call on the device and reads it back. The device's memory is as the images say.
func mapOf(t *testing.T, s *session, m modified) (made *attention.BlockMap, words []uint32, op *attention.Op, args attention.Args) {
	dev := attention.On(s.dev)
	cfg := m.config(t, cases.On(attention.TierScalar, attention.F32))
	op, err := attention.New(dev, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, op.Close()) })
	stream, err := dev.NewStream("map")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, stream.Close()) })
	var buffers []*vk.Buffer
	for _, image := range m.memory(attention.F32) {
		b, err := s.dev.NewBuffer(uint64(max(len(image), 4)), vk.BufferOptions{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		buffers = append(buffers, b)
		if len(image) > 0 {
			require.NoError(t, stream.Vulkan().Upload(b, 0, image))
		}
	}
	args = m.DeviceArgs(buffers)
	made, err = op.BlockMap(context.Background(), stream, args)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, made.Close()) })
	require.NotNil(t, made.Buffer, "the kernel takes no map")
	data := make([]byte, made.Size.Bytes())
	require.NoError(t, stream.Vulkan().Download(context.Background(), data, made.Buffer, 0))
	for i := 0; i < len(data); i += 4 {
		words = append(words, binary.LittleEndian.Uint32(data[i:]))
	}
	return made, words, op, args
}

// A map says of each tile what the mask leaves of it: for tables it is exact, and where interval arithmetic answers, tiles
// that it takes for partial may be full or empty.
func TestBlockMapsSayWhatTilesHold(t *testing.T) {
	s := openDevice(t)
	wide := attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 150, Sk: 3000}
	for _, m := range []modified{
		{name: "documents", shape: wide, mask: "doc[i] == doc[j]"},
		{name: "sinks and a window", shape: wide, mask: "j < 4 || i - j < 300 && j < i"},
		{name: "of each head and sequence", shape: wide, mask: "(j / 100 + h / 2 + b) % 3 == 0 && doc[j] >= 0"},
		{name: "nothing", shape: wide, mask: "j < i && j > i"},
		{name: "with positions", shape: wide, mask: "doc[j] != 3", change: func(c *attention.Config, _ *attention.Args) {
			c.Causal, c.Window = attention.BottomRight, attention.WindowOf(700, 0)
		}},
	} {
		m.d = 8
		made, words, op, args := mapOf(t, s, m)
		mask := op.Config().MaskMod
		group := m.shape.Hq / m.shape.KVHeads()
		memory := m.memory(attention.F32)
		doc := score.Memory{Name: "doc", Dims: [3]int{m.shape.Sk}, Data: memory[5]}
		e := score.NewEvaluator(mask, score.Float32)
		_, known := mask.Tiles()
		half, counts := made.Size.Words/2, [3]int{}
		for at := range made.Size.Sequences * made.Size.Heads * made.Size.RowTiles {
			b, kvHead, x := at/made.Size.RowTiles/made.Size.Heads, at/made.Size.RowTiles%made.Size.Heads, at%made.Size.RowTiles
			if op.Config().Causal != attention.CausalNone {
				x = made.Size.RowTiles - 1 - x
			}
			for tile := range (m.shape.Sk + int(made.Keys) - 1) / int(made.Keys) {
				some, all := false, true
				for r := x * int(made.Rows); r < min((x+1)*int(made.Rows), m.shape.Sq*group); r++ {
					row := score.Slots{B: b, KVHead: kvHead, Head: kvHead*group + r%group, Row: r / group, Rows: m.shape.Sq, Keys: m.shape.Sk, Tables: []score.Memory{doc}}
					row.I = row.Row + m.shape.Sk - m.shape.Sq
					from, to := tile*int(made.Keys), (tile+1)*int(made.Keys)
					for key := from; key < to; key++ {
						row.J = append(row.J, key)
					}
					yes := make([]float64, len(row.J))
					e.Eval(yes, &row)
					for n, key := range row.J {
						attended := yes[n] != 0 && key < m.shape.Sk
						if op.Config().Causal != attention.CausalNone {
							attended = attended && key <= row.I && row.I-key <= op.Config().Window.Left()
						}
						some, all = some || attended, all && attended
					}
				}
				bit := func(kind int) bool { return words[at*made.Size.Words+kind*half+tile/32]>>(tile%32)&1 != 0 }
				full, partial := bit(0), bit(1)
				require.False(t, full && partial, "%s", m.name)
				require.False(t, full && !all, "%s: tile %d, %d of %d is full", m.name, x, tile, at)
				require.False(t, !full && !partial && some, "%s: tile %d, %d of %d is empty", m.name, x, tile, at)
				if !known && op.Config().Causal == attention.CausalNone {
					require.Equal(t, [2]bool{all, some && !all}, [2]bool{full, partial}, "%s: tile %d, %d of %d", m.name, x, tile, at)
				}
				switch {
				case full:
					counts[2]++
				case partial:
					counts[1]++
				default:
					counts[0]++
				}
			}
		}
		t.Logf("%s: %d tiles empty, %d partial, %d full", m.name, counts[0], counts[1], counts[2])
		require.Positive(t, counts[0], m.name)
		other, err := attention.New(attention.On(s.dev), op.Config())
		require.NoError(t, err)
		args.BlockMap = made
		require.ErrorContains(t, other.Forward(nil, args), "BlockMap is of another operation")
		require.NoError(t, other.Close())
	}
}
