package tests

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/testdevice"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// maskCall is a call whose O shows the dropout mask: Q and K are 0, so every weight is 1/Sk,
// and row j of V has a 1 in column j. In the backward pass dO is the same matrix, so dV
// shows the mask transposed.
type maskCall struct {
	attention.Shape
	seed     uint64
	offset   uint32
	permuted []int32 // pages of one key each; nil: not paged
	sparse   bool    // lists of all keys, the last first
}

const (
	maskQ = iota
	maskK
	maskV
	maskO
	maskLSE
	maskDO
	maskDV
	maskTable
	maskOffsets
	maskTokens
)

func (m maskCall) String() string {
	return fmt.Sprintf("mask of seed %#x, offset %d", m.seed, m.offset)
}

func (m maskCall) args(tensor func(int) attention.Tensor) attention.BackwardArgs {
	vector := func(i int) attention.Vector { t := tensor(i); return attention.Vector{Host: t.Host, Buffer: t.Buffer} }
	a := attention.BackwardArgs{Args: attention.Args{Shape: m.Shape, DropoutSeed: m.seed, DropoutOffset: m.offset,
		Q: tensor(maskQ), K: tensor(maskK), V: tensor(maskV), O: tensor(maskO), LSE: tensor(maskLSE)}, DO: tensor(maskDO), DV: tensor(maskDV)}
	if m.permuted != nil {
		a.Pages = &attention.Pages{Table: vector(maskTable), PageSize: 1, Count: m.Sk}
	}
	if m.sparse {
		a.SparseTokens = &attention.SparseTokens{Offsets: vector(maskOffsets), Tokens: vector(maskTokens), Total: m.B * m.KVHeads() * m.Sk}
	}
	return a
}

func (m maskCall) HostArgs(images [][]byte) attention.Args {
	return m.args(func(i int) attention.Tensor { return attention.Tensor{Host: images[i]} }).Args
}

func (m maskCall) DeviceArgs(buffers []*vk.Buffer) attention.Args {
	return m.args(func(i int) attention.Tensor { return attention.Tensor{Buffer: buffers[i]} }).Args
}

// images is the memory of the call in float32 or a 16-bit type with head dim d.
func (m maskCall) images(dtype attention.DType, d int) [][]byte {
	size := dtype.Size()
	batches := m.B
	if m.permuted != nil {
		batches = 1
	}
	matrix := func(heads, rows int, at func(row int) int) []byte {
		image := make([]byte, m.B*heads*rows*d*size)
		for i := range m.B * heads * rows {
			dtype.Encode(image[(i*d+at(i%rows))*size:], []float32{1})
		}
		return image
	}
	ints := func(list []int32) (b []byte) {
		for _, x := range list {
			b = binary.LittleEndian.AppendUint32(b, uint32(x))
		}
		return append(b, make([]byte, 4)...)
	}
	heads := m.KVHeads()
	images := [][]byte{
		maskQ: make([]byte, m.B*m.Hq*m.Sq*d*size), maskK: make([]byte, batches*heads*m.Sk*d*size), maskV: matrix(heads, m.Sk, func(row int) int { return row }),
		maskO: make([]byte, m.B*m.Hq*m.Sq*d*size), maskLSE: make([]byte, m.B*m.Hq*m.Sq*4),
		maskDO: matrix(m.Hq, m.Sq, func(row int) int { return row }), maskDV: make([]byte, m.B*heads*m.Sk*d*size),
		maskTable: ints(nil), maskOffsets: ints(nil), maskTokens: ints(nil),
	}
	if m.permuted != nil { // page of key t is permuted[t], which holds row t
		image := make([]byte, m.Sk*heads*d*size)
		var table []int32
		for range m.B {
			table = append(table, m.permuted...)
		}
		for key, page := range m.permuted {
			for h := range heads {
				dtype.Encode(image[((int(page)*heads+h)*d+key)*size:], []float32{1})
			}
		}
		images[maskV], images[maskTable] = image, ints(table)
	}
	if m.sparse {
		var offsets, tokens []int32
		for range m.B * heads {
			offsets = append(offsets, int32(len(tokens)))
			for key := m.Sk - 1; key >= 0; key-- {
				tokens = append(tokens, int32(key))
			}
		}
		images[maskOffsets], images[maskTokens] = ints(append(offsets, int32(len(tokens)))), ints(tokens)
	}
	return images
}

// Forward and backward of every tier have the mask that DropoutMask returns: in one
// dispatch and split, of contiguous keys, pages and lists.
func TestDropoutMaskOfEveryTier(t *testing.T) {
	s := openTiers(t)
	shape := attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 37, Sk: 64}
	const d = 64
	pages := make([]int32, shape.Sk)
	for i := range pages {
		pages[i] = int32((i*29 + 5) % shape.Sk)
	}
	plain := maskCall{Shape: shape, seed: 0x299f31d0a4093822, offset: 0x03707344}
	for _, tt := range s.available() {
		if sharesPipelines(tt) {
			continue
		}
		t.Run(tt.String(), func(t *testing.T) {
			t.Parallel()
			e := s.newEngine(tt)
			defer func() { require.NoError(t, e.close()) }()
			for i, row := range []struct {
				name   string
				call   maskCall
				p      float32
				split  int
				access attention.Access
			}{
				{name: "plain", call: plain, p: 0.3},
				{name: "another seed", call: maskCall{Shape: shape, seed: 1}, p: 0.3},
				{name: "another offset", call: maskCall{Shape: shape, seed: 1, offset: 1}, p: 0.75},
				{name: "split", call: plain, p: 0.3, split: 3},
				{name: "paged", call: maskCall{Shape: shape, seed: 7, permuted: pages}, p: 0.5},
				{name: "sparse", call: maskCall{Shape: shape, seed: 7, sparse: true}, p: 0.5},
				{name: "decode", call: maskCall{Shape: attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 1, Sk: 64}, seed: 7}, p: 0.5},
				{name: "descriptors", call: plain, p: 0.3, access: attention.AccessDescriptors},
			} {
				if fewPipelines() && i >= 3 && (onMatrices(tt) || testlevel.IsBrief() && i != 3) {
					continue // the tables of cases have splits, pages and lists
				}
				t.Run(row.name, func(t *testing.T) {
					cfg := attention.Config{DType: tt.DType, Tier: tt.Tier, HeadDim: d, Dropout: row.p, FixedSplit: row.split, Tuning: attention.TuningOff}
					if e.dev != nil {
						cfg.Access = row.access
					}
					e.requireMask(t, row.call, cfg, tt)
				})
			}
		})
	}
}

// sharesPipelines reports whether another storage type of the tier stands for this one where a
// driver compiles slowly: the scalar kernel is one module, and types of matrices differ only in
// how elements are read and written.
func sharesPipelines(tt cases.Target) bool {
	stands := attention.F32
	if onMatrices(tt) {
		stands = attention.F16
	}
	return fewPipelines() && tt.DType != stands
}

// requireMask computes a call, forward and backward as far as the tier does, and compares
// what it keeps with the mask.
func (e *engine) requireMask(t *testing.T, call maskCall, cfg attention.Config, tt cases.Target) {
	t.Helper()
	images := call.images(tt.DType, cfg.HeadDim)
	want, err := attention.DropoutMask(cfg, call.args(func(int) attention.Tensor { return attention.Tensor{} }).Args)
	require.NoError(t, err)
	j := &job{Problem: call, cfg: cfg, before: images}
	require.NoError(t, e.run([]*job{j}))
	read := func(image []byte, i int) float64 {
		var x [1]float32
		tt.DType.Decode(x[:], image[i*tt.DType.Size():])
		return float64(x[0])
	}
	weight := 1 / float64(call.Sk) / (1 - float64(cfg.Dropout))
	for i, keep := range want {
		row, key := i/call.Sk, i%call.Sk
		require.InDelta(t, weight*float64(keep), read(j.after[maskO], row*cfg.HeadDim+key), weight/100, "forward: row %d, key %d", row, key)
	}
	if call.permuted != nil || cfg.FixedSplit != 0 || !computesGradients(tt.Tier) || call.sparse && onMatrices(tt) {
		return
	}
	after := e.backwardOf(t, call, cfg, j.after)
	sums := make([]float64, call.B*call.KVHeads()*call.Sk*cfg.HeadDim)
	for i, keep := range want {
		row, key := i/call.Sk, i%call.Sk
		head := row / call.Sq
		sums[((head/call.Hq*call.KVHeads()+head%call.Hq/call.Group())*call.Sk+key)*cfg.HeadDim+row%call.Sq] += weight * float64(keep)
	}
	for i, sum := range sums {
		require.InDelta(t, sum, read(after[maskDV], i), weight/50, "backward: element %d of dV", i)
	}
}

// backwardOf computes dV of a call whose forward pass left images.
func (e *engine) backwardOf(t *testing.T, call maskCall, cfg attention.Config, images [][]byte) [][]byte {
	t.Helper()
	op, err := e.op(cfg)
	require.NoError(t, err)
	if e.dev == nil {
		require.NoError(t, op.Backward(nil, call.args(func(i int) attention.Tensor { return attention.Tensor{Host: images[i]} })))
		return images
	}
	stream := testdevice.Stream(t, e.dev, "dropout")
	buffers := testdevice.Upload(t, stream, images...)
	require.NoError(t, stream.Barrier())
	require.NoError(t, op.Backward(attention.OnStream(stream), call.args(func(i int) attention.Tensor { return attention.Tensor{Buffer: buffers[i]} })))
	require.NoError(t, stream.Barrier())
	require.NoError(t, stream.Download(t.Context(), images[maskDV], buffers[maskDV], 0))
	return images
}

// Every tier compares the words of the known answer of Philox4x32-10 for counter and key 0
// with the threshold: 24 bits of each of the four words. A probability is a parameter, so
// all of them share a pipeline.
func TestDropoutKnownAnswer(t *testing.T) {
	s := openTiers(t)
	words := [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}
	call := maskCall{Shape: attention.Shape{B: 1, Hq: 1, Sq: 1, Sk: 4}}
	for _, tt := range s.available() {
		if sharesPipelines(tt) || fewPipelines() && onMatrices(tt) {
			continue
		}
		t.Run(tt.String(), func(t *testing.T) {
			t.Parallel()
			e := s.newEngine(tt)
			defer func() { require.NoError(t, e.close()) }()
			for i, word := range words {
				// Multiples of 2^-24 around word * 2^-32: below it the slot remains, above dropped.
				for step, keep := range []bool{true, false} {
					p := float32(math.Ldexp(float64(word>>8)+float64(step), -24))
					cfg := attention.Config{DType: tt.DType, Tier: tt.Tier, HeadDim: 16, Dropout: p, Tuning: attention.TuningOff}
					j := &job{Problem: call, cfg: cfg, before: call.images(tt.DType, 16)}
					require.NoError(t, e.run([]*job{j}))
					var o [1]float32
					tt.DType.Decode(o[:], j.after[maskO][i*tt.DType.Size():])
					require.Equal(t, keep, o[0] != 0, "word %d, probability %v", i, p)
				}
			}
		})
	}
}
