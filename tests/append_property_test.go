package tests

import (
	"context"
	"encoding/binary"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	"vkattn/internal/cases"
	"vkattn/internal/half"
	"vkattn/internal/testdevice"
	"vkattn/internal/testdevices"
	"vkattn/vk"
)

// Properties of appends: norms and styles of rotary embeddings, agreement of the tiers, wrong
// numbers, and attention over a cache that was just appended to.

func drawAppend(t *rapid.T, dev *vk.Device) appendCase {
	return appendCase{
		AppendConfig: kvcache.AppendConfig{
			DType: rapid.SampledFrom(attention.DTypes()).Draw(t, "dtype"), HeadDim: 20,
			Rotary: kvcache.Rotary{Dim: 12, First: 4, Style: rapid.SampledFrom([]kvcache.RotaryStyle{
				kvcache.RotaryInterleaved, kvcache.RotaryHalfSplit}).Draw(t, "style")},
			Access: mergeAccesses(dev)[0],
		},
		b: rapid.IntRange(1, 4).Draw(t, "b"), hkv: rapid.IntRange(1, 3).Draw(t, "hkv"), group: 2,
		rows: rapid.IntRange(1, 6).Draw(t, "rows"), capacity: rapid.IntRange(1, 20).Draw(t, "capacity"),
		layout:   rapid.SampledFrom([]cases.LayoutKind{cases.Tight, cases.Odd, cases.BSHD}).Draw(t, "layout"),
		lengths:  rapid.SampledFrom([]string{"", "packed", "counted"}).Draw(t, "lengths"),
		pageSize: rapid.SampledFrom([]int{0, 1, 5, 16}).Draw(t, "page size"),
		inPlace:  rapid.Bool().Draw(t, "in place"), seed: rapid.Uint64().Draw(t, "seed"),
	}
}

func (p *appendProblem) mustRun(t require.TestingT, dev *vk.Device) [appendPieces][]byte {
	after, err := p.run(dev)
	require.NoError(t, err)
	require.NoError(t, p.trespass(after))
	require.NoError(t, p.judge(after))
	return after
}

// A rotation changes no pair's length. At position 0 it changes nothing.
func TestPropertyRotationKeepsNorms(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		rapid.Check(t, func(t *rapid.T) {
			p := newAppendProblem(drawAppend(t, dev))
			after := p.mustRun(t, dev)
			unit := map[attention.DType]float64{attention.F16: 0x1p-11, attention.BF16: 0x1p-8, attention.F32: 0x1p-22}[p.DType]
			require.NoError(t, p.eachRow(func(r appended) error {
				before, got := p.decode(p.image[r.in][r.row:], p.HeadDim), p.decode(after[r.out][r.to:], p.HeadDim)
				if r.position == 0 || r.in == appendV {
					require.Equal(t, before, got)
				}
				for i := range 6 {
					a, b := 4+2*i, 5+2*i
					if p.Rotary.Style == kvcache.RotaryHalfSplit {
						a, b = 4+i, 10+i
					}
					was := math.Hypot(float64(before[a]), float64(before[b]))
					require.InDelta(t, was, math.Hypot(float64(got[a]), float64(got[b])), 2*unit*was+1e-7)
				}
				return nil
			}))
		})
	})
}

// Half-split rotation gives the bits of interleaved rotation with the columns reordered.
func TestPropertyRotaryStylesAgree(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		rapid.Check(t, func(t *rapid.T) {
			c := drawAppend(t, dev)
			c.inPlace = false
			c.Rotary.Style = kvcache.RotaryInterleaved
			p := newAppendProblem(c)
			c.Rotary.Style = kvcache.RotaryHalfSplit
			q := newAppendProblem(c)
			order := make([]int, c.HeadDim) // the column of each element in half-split order
			for d := range order {
				if order[d] = d; d >= 4 && d < 16 {
					order[d] = 4 + (d-4)/2 + (d-4)%2*6
				}
			}
			permute := func(dst, src []byte) {
				n := c.DType.Size()
				for d, to := range order {
					copy(dst[to*n:(to+1)*n], src[d*n:])
				}
			}
			for _, i := range []int{appendK, appendQ} {
				s := &p.slots[i]
				for b := range s.batches {
					for h := range s.heads {
						for r := range s.rows {
							permute(q.image[i][s.at(b, h, r):], p.image[i][s.at(b, h, r):])
						}
					}
				}
			}
			a, b := p.mustRun(t, dev), q.mustRun(t, dev)
			row := make([]byte, p.slots[appendK].rowBytes())
			require.NoError(t, p.eachRow(func(r appended) error {
				if r.in != appendV {
					permute(row, a[r.out][r.to:])
					require.Equal(t, row, b[r.out][r.to:][:len(row)])
				}
				return nil
			}))
		})
	})
}

// The CPU tier and a device append the same bits, up to the divisions of quantizing.
func TestAppendTiersAgree(t *testing.T) {
	s := openDevice(t)
	for _, dtype := range attention.DTypes() {
		c := appendCase{b: 2, hkv: 2, group: 2, rows: 5, capacity: 40, layout: cases.Odd, seed: 6,
			AppendConfig: kvcache.AppendConfig{DType: dtype, HeadDim: 48, Rotary: kvcache.Rotary{Dim: 32, First: 5, Style: kvcache.RotaryHalfSplit}}}
		p := newAppendProblem(c)
		require.Equal(t, p.mustRun(t, nil), p.mustRun(t, s.dev))
	}
}

// An append may have more sequences than a dispatch has batches. It may also mix many
// decoding sequences in pages with a long prefill.
func TestAppendOfManySequences(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		all := mergeAccesses(dev)
		for _, access := range all {
			c := appendCase{b: 600, hkv: 2, group: 1, rows: 3, capacity: 7, layout: cases.Odd, lengths: "packed", pageSize: 5, seed: 4,
				AppendConfig: kvcache.AppendConfig{HeadDim: 6, Rotary: kvcache.Rotary{Dim: 4}, Access: access}}
			newAppendProblem(c).mustRun(t, dev)
		}
		if os.Getenv("VKATTN_DRIVER") == "swiftshader" {
			return // slow: its time grows with the number of workgroups, to seconds
		}
		c := appendCase{b: 70000, hkv: 1, group: 1, rows: 1, capacity: 2, layout: cases.Tight, seed: 3, noV: true,
			AppendConfig: kvcache.AppendConfig{HeadDim: 4, KeyType: attention.KVInt8, ValueType: attention.KVInt8, Access: all[len(all)-1]}}
		newAppendProblem(c).mustRun(t, dev)
	})
}

// Wrong numbers in the vectors cause no write outside of the cache.
func TestAppendOfWrongNumbers(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		numbers := []uint32{0xffffffff, 0x80000000, 0x7fffffff, 0x80000001, 1 << 20, 7, 0, 0xfffffff9, 3}
		for n, lengths := range []string{"", "packed", "counted", "", "packed", "counted"} {
			for _, access := range mergeAccesses(dev) {
				c := appendCase{b: 9, hkv: 2, group: 1, rows: 4, capacity: 16, layout: cases.Odd, lengths: lengths, pageSize: n / 3 * 5, seed: 1,
					AppendConfig: kvcache.AppendConfig{HeadDim: 5, Rotary: kvcache.Rotary{Dim: 4}, Access: access}}
				p := newAppendProblem(c)
				for shift, tensor := range []int{appendUsed, appendLengths, appendTable} {
					for j := 0; p.has(tensor) && j < len(p.image[tensor])/4-5; j++ {
						binary.LittleEndian.PutUint32(p.image[tensor][4*(3+j):], numbers[(j+shift)%len(numbers)])
					}
				}
				after, err := p.run(dev)
				require.NoError(t, err)
				for tensor, b := range after {
					switch tensor {
					case appendKCache, appendVCache, appendQOut:
						require.Equal(t, outside(p, tensor, p.image[tensor]), outside(p, tensor, b), "what lies around the rows of tensor %d", tensor)
					default:
						require.Equal(t, p.image[tensor], b)
					}
				}
				cpu, err := p.run(nil)
				require.NoError(t, err)
				if lengths != "packed" && p.pageSize == 0 { // else rows race for a place, or a search finds any of those that claim a row
					require.Equal(t, cpu, after)
				}
			}
		}
	})
}

// outside returns a tensor's memory with its rows blanked.
func outside(p *appendProblem, tensor int, image []byte) []byte {
	rest, s := append([]byte(nil), image...), &p.slots[tensor]
	for b := range s.batches {
		for h := range s.heads {
			for r := range s.rows {
				clear(rest[s.at(b, h, r):][:s.rowBytes()])
			}
		}
	}
	return rest
}

// An Inf or NaN spoils the elements that share its scale, and no others.
func TestAppendOfInvalidRows(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		for _, kv := range attention.KVTypes()[1:] {
			c := appendCase{b: 1, hkv: 1, group: 1, rows: 3, capacity: 3, layout: cases.Tight, empty: true, noV: true, seed: 2,
				AppendConfig: kvcache.AppendConfig{DType: attention.F32, HeadDim: 64, KeyType: kv, ValueType: kv, Access: mergeAccesses(dev)[0]}}
			if kv.Latent() {
				c.HeadDim, c.HeadDimV = 576, 512
			}
			p := newAppendProblem(c)
			at := p.slots[appendK].at(0, 0, 1)
			half.EncodeF32(p.image[appendK][at+4*5:], []float32{nan})
			half.EncodeF32(p.image[appendK][p.slots[appendK].at(0, 0, 2)+4*40:], []float32{-inf})
			after, err := p.run(dev)
			require.NoError(t, err)
			require.NoError(t, p.trespass(after))
			for r := range 3 {
				row := after[appendKCache][p.slots[appendKCache].at(0, 0, r):]
				if kv.Scaled() {
					scale := math.Float32frombits(binary.LittleEndian.Uint32(after[appendKScale][4*(3+r):]))
					require.Equal(t, r > 0, scale != scale, "%v row %d", kv, r)
					continue
				}
				if kv.Latent() { // the bad elements are of the first 128
					for span := range 4 {
						scale := math.Float32frombits(binary.LittleEndian.Uint32(row[512+4*span:]))
						require.Equal(t, r > 0 && span == 0, scale != scale, "row %d, scale %d", r, span)
					}
					continue
				}
				for block := range 2 {
					scale := half.F16ToFloat32(binary.LittleEndian.Uint16(row[block*kv.RowBytes(c.DType, 32):]))
					require.Equal(t, r == block+1, scale != scale, "%v row %d block %d", kv, r, block)
				}
			}
		}
	})
}

// Attention over a cache that the same submission appends to gives the result of attention
// over a cache that was built on the host.
func TestAppendThenAttend(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		const had, more = 13, 3
		c := appendCase{b: 2, hkv: 2, group: 2, rows: more, capacity: 20, layout: cases.Padded, noQ: true, seed: 5,
			AppendConfig: kvcache.AppendConfig{HeadDim: 40, HeadDimV: 24}}
		p := newAppendProblem(c)
		p.used = []int{had, had}
		p.vector(appendUsed, words(p.used))
		x := make([]float32, 40)
		for i := appendKCache; i <= appendVCache; i++ { // the keys that the cache already has
			s := &p.slots[i]
			for b := range 2 {
				for h := range 2 {
					for r := range had {
						for d := range x {
							x[d] = float32(math.Sin(float64(i + 31*b + 17*h + 7*r + d*d)))
						}
						p.encode(p.image[i][s.at(b, h, r):], x[:s.units])
					}
				}
			}
		}
		built := *p
		for i := appendKCache; i <= appendVCache; i++ {
			built.image[i] = append([]byte(nil), p.image[i]...)
		}
		require.NoError(t, p.eachRow(func(r appended) error {
			copy(built.image[r.out][r.to:][:p.slots[r.out].rowBytes()], p.image[r.in][r.row:])
			return nil
		}))
		want, got := attend(t, dev, &built, false), attend(t, dev, p, true)
		require.Equal(t, want, got)
		require.NotEqual(t, want, attend(t, dev, p, false), "what the cache had before")
	})
}

// Attention reads what append writes: for every storage type a paged cache gives the same
// result within the precision of the type.
func TestAppendQuantizedThenAttend(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		var want []float32
		for _, kv := range attention.KVTypes() {
			if kv.Latent() {
				continue // of other head dims: TestAppendLatentThenAttend
			}
			p := newAppendProblem(appendCase{b: 3, hkv: 2, group: 2, rows: 16, capacity: 20, pageSize: 5, layout: cases.Tight, lengths: "counted",
				noQ: true, empty: true, seed: 7, AppendConfig: kvcache.AppendConfig{HeadDim: 64, HeadDimV: 32, KeyType: kv, ValueType: kv}})
			after, err := p.run(dev)
			require.NoError(t, err)
			p.image = after
			o := attend(t, nil, p, false) // the conformance tests show that all tiers read quantized caches alike
			got := make([]float32, len(o)/2)
			half.DecodeF16(got, o)
			if kv == attention.KVSame {
				want = got
				continue
			}
			tolerance := map[attention.KVType]float64{attention.KVInt8: 0.03, attention.KVQ8_0: 0.03, attention.KVFP8: 0.05, attention.KVQ4_0: 0.1,
				attention.KVFP8E5M2: 0.1, attention.KVQ4_1: 0.15, attention.KVQ5_0: 0.1, attention.KVQ5_1: 0.1, attention.KVIQ4NL: 0.15}[kv]
			require.InDeltaSlice(t, want, got, tolerance, "%v", kv)
		}
	})
}

// The same of rows of latent attention, whose V is in K.
func TestAppendLatentThenAttend(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		var results [2][]float32
		for i, kv := range []attention.KVType{attention.KVSame, attention.KVFP8DSMLA} {
			p := newAppendProblem(appendCase{b: 3, hkv: 1, group: 4, rows: 16, capacity: 20, pageSize: 5, layout: cases.Tight, lengths: "counted",
				noQ: true, empty: true, noV: true, seed: 7, AppendConfig: kvcache.AppendConfig{HeadDim: 576, HeadDimV: 512, KeyType: kv, ValueType: kv}})
			after, err := p.run(dev)
			require.NoError(t, err)
			p.image = after
			o := attend(t, nil, p, false)
			results[i] = make([]float32, len(o)/2)
			half.DecodeF16(results[i], o)
		}
		require.InDeltaSlice(t, results[0], results[1], 0.1)
	})
}

// attend computes attention of the last rows over the cache. If asked to, it appends to the
// cache first.
func attend(t *testing.T, dev *vk.Device, p *appendProblem, appendFirst bool) []byte {
	shape := attention.Shape{B: p.b, Hq: 4, Hkv: p.hkv, Sq: p.rows, Sk: p.used[0] + p.rows}
	cfg := attention.Config{HeadDim: p.HeadDim, HeadDimV: p.HeadDimV, KeyType: p.KeyType, ValueType: p.ValueType, Causal: attention.BottomRight, Tuning: attention.TuningOff}
	if p.pageSize > 0 { // each sequence has its own length: all that was appended
		shape.Sq, shape.Sk = 1, p.capacity
	}
	op := testdevices.Op(t, attention.On(dev), cfg)
	add, err := kvcache.NewAppend(attention.On(dev), p.AppendConfig)
	require.NoError(t, err)
	defer add.Close()
	q, o := make([]byte, int(shape.Rows())*p.HeadDim*2), make([]byte, int(shape.Rows())*p.HeadDimV*2)
	for i := range q {
		q[i] = []byte{byte(37 * i), 0x38 + byte(i%7)}[i%2]
	}
	images := append(append([][]byte(nil), p.image[:]...), q, o)
	tensors := make([]attention.Tensor, len(images))
	var stream *vk.Stream
	if dev != nil {
		stream = testdevice.Stream(t, dev, "attend")
	}
	for i, b := range images {
		if b == nil {
			continue
		}
		if dev == nil {
			tensors[i].Host = append([]byte(nil), b...)
			continue
		}
		buffer := testdevice.Buffer(t, dev, uint64(len(b)))
		require.NoError(t, stream.Upload(buffer, 0, b))
		tensors[i].Buffer = buffer
	}
	if dev != nil {
		require.NoError(t, stream.Barrier())
	}
	a := p.args(func(i int) attention.Tensor { return tensors[i] })
	if appendFirst {
		require.NoError(t, add.Forward(attention.OnStream(stream), a))
		if dev != nil {
			require.NoError(t, stream.Barrier())
		}
	}
	if p.noV { // it is in K
		a.VCache = a.KCache
		a.VCache.Strides = a.KCache.Strides.Resolve(p.hkv, p.slots[appendKCache].rows, p.HeadDim)
	}
	args := attention.Args{Shape: shape, Q: tensors[appendPieces], K: a.KCache, V: a.VCache, O: tensors[appendPieces+1],
		Pages: a.Pages, KScale: a.KScale, VScale: a.VScale}
	if p.pageSize > 0 {
		args.Varlen = &attention.Varlen{UsedK: a.UsedNew}
	}
	require.NoError(t, op.Forward(attention.OnStream(stream), args))
	if dev == nil {
		return tensors[appendPieces+1].Host
	}
	require.NoError(t, stream.Barrier())
	require.NoError(t, stream.Download(context.Background(), o, tensors[appendPieces+1].Buffer, 0))
	require.NoError(t, stream.Wait(context.Background()))
	return o
}

// All append kernels compile on devices that execute nothing.
func TestCompileAppend(t *testing.T) {
	s := open(t)
	if !s.compileOnly {
		t.Skip("this device executes; see TestAppend")
	}
	for _, access := range mergeAccesses(s.dev) {
		for i, kv := range attention.KVTypes() {
			for j, dtype := range attention.DTypes() {
				n := (i + j) % 3
				if kv.Latent() {
					n = 2
				}
				op, err := kvcache.NewAppend(attention.On(s.dev), kvcache.AppendConfig{DType: dtype, HeadDim: []int{64, 128, 576}[n], HeadDimV: []int{32, 128, 512}[n],
					KeyType: kv, ValueType: kv, Rotary: kvcache.Rotary{Dim: 32, Style: kvcache.RotaryStyle(i % 2)}, Access: access})
				require.NoError(t, err)
				require.NoError(t, op.Prepare())
				require.NoError(t, op.Close())
			}
		}
	}
}

// A cache may start over 4 GiB, and over 2^32 elements, into a buffer. Its sequences and
// pages may too.
func TestAppendBeyond4GiB(t *testing.T) {
	s := openDevice(t)
	const dim, rows = 24, 3
	for _, paged := range []bool{false, true} {
		far := int64(1<<32 + 1<<20)
		if paged {
			far = 1<<32 - 8 // the stride of a pool has 32 bits
		}
		bytes := uint64(2 * (far + rows*dim))
		if bytes > s.dev.Caps().Limits.MaxBufferBytes || !s.dev.Caps().BufferDeviceAddress {
			t.Skipf("a buffer holds %d bytes here", s.dev.Caps().Limits.MaxBufferBytes)
		}
		p := newAppendProblem(appendCase{b: 2, hkv: 1, group: 1, rows: rows, capacity: rows, layout: cases.Tight, empty: true, noV: true, seed: 3,
			AppendConfig: kvcache.AppendConfig{HeadDim: dim}})
		op, err := kvcache.NewAppend(attention.On(s.dev), p.AppendConfig)
		require.NoError(t, err)
		defer op.Close()
		stream := testdevice.Stream(t, s.dev, "far")
		buffer := func(bytes uint64) *vk.Buffer {
			b, err := s.dev.NewBuffer(bytes, vk.BufferOptions{})
			require.NoError(t, err)
			return b
		}
		k, cache, table := buffer(uint64(len(p.image[appendK]))), buffer(bytes), buffer(8)
		require.NoError(t, stream.Upload(k, 0, p.image[appendK]))
		require.NoError(t, stream.Upload(table, 0, []byte{1, 0, 0, 0, 0, 0, 0, 0}))
		require.NoError(t, stream.Barrier())
		a := kvcache.AppendArgs{B: 2, Hkv: 1, New: rows, K: attention.Tensor{Buffer: k}, Capacity: rows,
			KCache: attention.Tensor{Buffer: cache, Strides: attention.Strides{Batch: far, Head: rows * dim, Seq: dim}}}
		half := len(p.image[appendK]) / 2
		want := [2][]byte{p.image[appendK][:half], p.image[appendK][half:]}
		if paged {
			a.Pages = &attention.Pages{Table: attention.Vector{Buffer: table}, PageSize: rows, Count: 2}
			want[0], want[1] = want[1], want[0]
		}
		require.NoError(t, op.Forward(attention.OnStream(stream), a))
		require.NoError(t, stream.Barrier())
		for i := range want {
			got := make([]byte, half)
			require.NoError(t, stream.Download(context.Background(), got, cache, 2*uint64(int64(i)*far)))
			require.Equal(t, want[i], got)
		}
		for _, b := range []*vk.Buffer{k, cache, table} {
			require.NoError(t, b.Close())
		}
	}
}
