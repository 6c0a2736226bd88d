package tests

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/score"
	"vkattn/internal/cases"
	"vkattn/internal/problem"
	"vkattn/internal/testdevice"
	"vkattn/internal/testdevices"
	"vkattn/vk"
)

// mapOf makes the map of a call on the device and reads it back. The device's memory is as the images say.
func mapOf(t *testing.T, s *session, m modified) (made *attention.BlockMap, words []uint32, op *attention.Op, args attention.Args) {
	op, stream, args := modifiedOn(t, s, m)
	made, words = readMap(t, stream, op, args)
	return made, words, op, args
}

// modifiedOn is a call on a device, whose memory is as the images say.
func modifiedOn(t *testing.T, s *session, m modified) (op *attention.Op, stream *attention.Stream, args attention.Args) {
	dev := attention.On(s.dev)
	cfg := m.config(t, cases.On(attention.TierScalar, attention.F32))
	op = testdevices.Op(t, dev, cfg)
	stream, err := dev.NewStream("map")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, stream.Close()) })
	var buffers []*vk.Buffer
	for _, image := range m.memory(attention.F32) {
		b := testdevice.Buffer(t, s.dev, uint64(max(len(image), 4)))
		buffers = append(buffers, b)
		if len(image) > 0 {
			require.NoError(t, stream.Vulkan().Upload(b, 0, image))
		}
	}
	return op, stream, m.DeviceArgs(buffers)
}

// readMap makes the map of a call and reads it.
func readMap(t *testing.T, stream *attention.Stream, op *attention.Op, args attention.Args) (made *attention.BlockMap, words []uint32) {
	made, err := op.BlockMap(context.Background(), stream, args)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, made.Close()) })
	tiles := problem.TilesOf(made).Forward
	require.NotNil(t, tiles.Buffer, "the kernel takes no map")
	data := make([]byte, tiles.Size.Bytes())
	require.NoError(t, stream.Vulkan().Download(context.Background(), data, tiles.Buffer, 0))
	for i := 0; i < len(data); i += 4 {
		words = append(words, binary.LittleEndian.Uint32(data[i:]))
	}
	return made, words
}

// A map is of what the earlier work of its stream leaves in tables, without a wait between them; and so is the map that a call
// makes itself.
func TestBlockMapsAreInOrder(t *testing.T) {
	s := openDevice(t)
	m := modified{shape: attention.Shape{B: 1, Hq: 4, Sq: 150, Sk: 3000}, d: 8, mask: "doc[i] == doc[j]"}
	op, stream, args := modifiedOn(t, s, m)
	_, before := readMap(t, stream, op, args)
	doc := args.Tables[0].Buffer
	one, err := s.dev.NewBuffer(4*3000, vk.BufferOptions{}) // zeros: one document
	require.NoError(t, err)
	defer func() { require.NoError(t, one.Close()) }()
	v := stream.Vulkan()
	require.NoError(t, v.Fill(vk.BufferRange{Buffer: one}, 0))
	require.NoError(t, v.Barrier())
	require.NoError(t, v.Copy(vk.BufferRange{Buffer: doc, Size: 4 * 3000}, vk.BufferRange{Buffer: one}))
	made, after := readMap(t, stream, op, args)
	require.NotEqual(t, before, after)
	tiles := problem.TilesOf(made).Forward
	for at := 0; at < len(after); at += tiles.Size.Words {
		for _, word := range after[at+tiles.Size.Words/2 : at+tiles.Size.Words] {
			require.NotEqual(t, ^uint32(0), word, "tiles of one document are full, but the last ones")
		}
	}
	forward := func(given *attention.BlockMap) []byte {
		out := make([]byte, args.O.Buffer.Size())
		args.BlockMap = given
		require.NoError(t, op.Forward(stream, args))
		require.NoError(t, v.Download(context.Background(), out, args.O.Buffer, 0))
		return out
	}
	require.Equal(t, forward(made), forward(nil))
	before2 := forward(nil)
	args.BlockMap = nil
	docs := m.memory(attention.F32)[5]
	require.NoError(t, v.Upload(doc, 0, docs))
	changed := forward(nil)
	require.NotEqual(t, before2, changed)
	_, again := readMap(t, stream, op, args)
	require.Equal(t, before, again)
}

// A map says of each tile what the mask leaves of it: for tables it is exact, and where interval arithmetic answers, tiles
// that it takes for partial may be full or empty.
func TestBlockMapsSayWhatTilesHold(t *testing.T) {
	s := openDevice(t)
	wide := attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 150, Sk: 3000}
	for _, m := range []modified{
		{name: "documents", shape: wide, mask: "doc[i] == doc[j]"},
		{name: "sides of rows and keys", shape: wide, mask: "doc[i] % 3 <= doc[j / 2] && (doc[j] > 2 || (i & 64) == 0 || h < 2) && doc[min(j, row)] >= 0"},
		{name: "more sides than there are", shape: wide, mask: "(doc[j] > 3) == (doc[j / 2] > 2) && doc[j / 3] + 7 > doc[i] && float(doc[j / 4]) < 5.5"},
		{name: "sinks and a window", shape: wide, mask: "j < 4 || i - j < 300 && j < i"},
		{name: "of each head and sequence", shape: wide, mask: "(j / 100 + h + b) % 3 == 0 && doc[j] >= 0"},
		{name: "nothing", shape: wide, mask: "j < i && j > i"},
		{name: "few slots", shape: wide, mask: "(i * 7 + j * 3) % 1009 == 5"},
		{name: "all but few slots", shape: wide, mask: "j < 2000 && (i * 7 + j * 3) % 1009 != 5"},
		{name: "with positions", shape: wide, mask: "doc[j] != 3", change: func(c *attention.Config, _ *attention.Args) {
			c.Causal, c.Window = attention.BottomRight, attention.WindowOf(700, 0)
		}},
	} {
		m.d = 8
		given, words, op, args := mapOf(t, s, m)
		made := problem.TilesOf(given).Forward
		mask := op.Config().MaskMod
		group := m.shape.Hq / m.shape.KVHeads()
		memory := m.memory(attention.F32)
		doc := score.Memory{Name: "doc", Dims: [3]int{m.shape.Sk}, Data: memory[5]}
		e := score.NewEvaluator(mask, score.Float32)
		known := mask.Tiles().Known
		first := m.shape.Sk - m.shape.Sq // as plan.leavesLaterRowsMore
		lastFirst := mask.Bounds(score.Tile{I0: first, I1: first, J0: first + m.shape.Sq/2, J1: m.shape.Sk - 1}).Hi == 0
		half, counts := made.Size.Words/2, [3]int{}
		for at := range made.Size.Sequences * made.Size.Heads * made.Size.Owners {
			b, kvHead, x := at/made.Size.Owners/made.Size.Heads, at/made.Size.Owners%made.Size.Heads, at%made.Size.Owners
			if op.Config().Causal != attention.CausalNone || lastFirst {
				x = made.Size.Owners - 1 - x
			}
			for tile := range (m.shape.Sk + int(made.Of.Keys) - 1) / int(made.Of.Keys) {
				some, all := false, true
				for r := x * int(made.Of.Rows); r < min((x+1)*int(made.Of.Rows), m.shape.Sq*group); r++ {
					row := score.Slots{B: b, KVHead: kvHead, Head: kvHead*group + r%group, Row: r / group, Rows: m.shape.Sq, Keys: m.shape.Sk, Tables: []score.Memory{doc}}
					row.I = row.Row + m.shape.Sk - m.shape.Sq
					from, to := tile*int(made.Of.Keys), (tile+1)*int(made.Of.Keys)
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
		args.BlockMap = given
		require.ErrorContains(t, other.Forward(nil, args), "BlockMap is of another operation")
		require.NoError(t, other.Close())
	}
}
