//go:build !windows

package cudapath

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	"vkattn/internal/backend"
	"vkattn/internal/problem"
)

// appendCase is a call in host memory.
type appendCase struct {
	cfg  kvcache.AppendConfig
	args kvcache.AppendArgs
}

// randomAppend draws a call. Rows may lie outside of the cache, pages outside of the pool, and memory outside of rows holds anything.
func randomAppend(seed uint64, dtype attention.DType) *appendCase {
	r := rand.New(rand.NewPCG(seed, 7))
	one := func(of ...int) int { return of[r.IntN(len(of))] }
	memory := func(elements int) []byte {
		b := make([]byte, (elements*dtype.Size()+3)&^3)
		x := make([]float32, len(b)/dtype.Size())
		for i := range x {
			x[i] = float32(r.NormFloat64())
			if r.IntN(50) == 0 {
				x[i] = []float32{float32(math.NaN()), float32(math.Inf(1)), 0, -0x1p-130, 65520}[r.IntN(5)]
			}
		}
		dtype.Encode(b, x)
		return b
	}
	tensor := func(batches, heads, rows, dim int) attention.Tensor {
		t := attention.Tensor{Offset: int64(r.IntN(3)), Strides: attention.Strides{Head: int64(rows*dim + r.IntN(3)), Seq: int64(dim + r.IntN(2))}}
		if t.Strides.Head += int64(rows) * (t.Strides.Seq - int64(dim)); r.IntN(2) == 0 { // rows before heads
			t.Strides.Head = int64(dim)
			t.Strides.Seq = int64(heads*dim + r.IntN(3))
		}
		t.Strides.Batch = max(t.Strides.Head*int64(heads), t.Strides.Seq*int64(rows)) + int64(r.IntN(3))
		t.Host = memory(int(t.Offset + t.Strides.Batch*int64(max(batches, 1))))
		return t
	}
	ints := func(x []int32) attention.Vector {
		b := []byte{}
		for _, n := range x {
			b = binary.LittleEndian.AppendUint32(b, uint32(n))
		}
		return attention.Vector{Host: b}
	}
	floats := func(n int) attention.Vector {
		b := []byte{}
		for range n {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(2*r.Float64()-1)))
		}
		return attention.Vector{Host: b}
	}
	c := &appendCase{cfg: kvcache.AppendConfig{DType: dtype, HeadDim: one(8, 64, 66, 100), HeadDimV: one(0, 8, 40)}}
	a := &c.args
	a.Shard, a.B, a.Hkv, a.New = true, one(1, 2, 4), one(1, 3), one(1, 2, 5)
	a.Hq = a.Hkv * one(1, 2)
	d, dv, batches, rows := c.cfg.HeadDim, c.cfg.HeadDimV, a.B, a.New
	if dv == 0 {
		dv = d
	}
	switch r.IntN(3) {
	case 0:
		cu := []int32{int32(r.IntN(2))}
		for range a.B {
			cu = append(cu, cu[len(cu)-1]+int32(one(0, 1, 6)))
		}
		a.CuNew, a.TotalNew = ints(cu), int(cu[a.B])+1
		batches, rows = 1, a.TotalNew
	case 1:
		var n []int32
		for range a.B {
			n = append(n, int32(r.IntN(a.New+1)))
		}
		a.UsedNew = ints(n)
	}
	a.K = tensor(batches, a.Hkv, rows, d)
	if r.IntN(4) > 0 {
		a.V = tensor(batches, a.Hkv, rows, dv)
	}
	if r.IntN(4) > 0 {
		used := make([]int32, a.B)
		for i := range used {
			used[i] = int32(one(0, 3, 9, 14, -1))
		}
		a.Used = ints(used)
	}
	a.Capacity = 16
	cached, keys := a.B, a.Capacity
	if r.IntN(2) == 0 {
		a.Pages = &attention.Pages{PageSize: one(1, 4, 16), Count: 20}
		a.Pages.Stride = 16/a.Pages.PageSize + r.IntN(2)
		table := make([]int32, a.B*a.Pages.Stride)
		for i, page := range r.Perm(max(20, len(table)))[:len(table)] {
			table[i] = int32(page) // those from 20 on are not in the pool
		}
		a.Pages.Table = ints(table)
		cached, keys = a.Pages.Count, a.Pages.PageSize
	}
	a.KCache = tensor(cached, a.Hkv, keys, d)
	if a.V.Given() {
		a.VCache = tensor(cached, a.Hkv, keys, dv)
	}
	if r.IntN(4) > 0 {
		c.cfg.Rotary = kvcache.Rotary{Dim: one(2, 6, d/2&^1, d&^1), Style: kvcache.RotaryStyle(r.IntN(2))}
		c.cfg.Rotary.First = r.IntN(d - c.cfg.Rotary.Dim + 1)
		a.Positions = one(12, 20)
		a.Cos, a.Sin = floats(a.Positions*c.cfg.Rotary.Dim/2), floats(a.Positions*c.cfg.Rotary.Dim/2)
		if a.QAtUsed = r.IntN(3) == 0; a.CuNew.Host == nil && r.IntN(2) == 0 {
			rows = one(1, 3, 7)
			a.RowsQ = rows
		}
		if c.cfg.CosSinOfDType = r.IntN(2) == 0; c.cfg.CosSinOfDType {
			for _, x := range []*attention.Vector{&a.Cos, &a.Sin} {
				of := make([]float32, len(x.Host)/4)
				attention.F32.Decode(of, x.Host)
				x.Host = make([]byte, (len(of)*dtype.Size()+3)&^3)
				dtype.Encode(x.Host, of)
			}
		}
		if a.Q = tensor(batches, a.Hq, rows, d); r.IntN(2) == 0 {
			a.QOut = a.Q
		} else {
			a.QOut = tensor(batches, a.Hq, rows, d)
		}
	}
	return c
}

// tensors are the tensors and vectors of a call.
func (c *appendCase) tensors() (tensors []*attention.Tensor, vectors []*attention.Vector) {
	a := &c.args
	vectors = []*attention.Vector{&a.UsedNew, &a.CuNew, &a.Used, &a.Cos, &a.Sin}
	if a.Pages != nil {
		vectors = append(vectors, &a.Pages.Table)
	}
	return []*attention.Tensor{&a.K, &a.V, &a.KCache, &a.VCache, &a.Q, &a.QOut}, vectors
}

// appendOn computes a call on a device, from and to host memory.
func appendOn(t testing.TB, dev *attention.Device, c appendCase) {
	t.Helper()
	if p := c.args.Pages; p != nil {
		pages := *p
		c.args.Pages = &pages
	}
	there := map[*byte]attention.Tensor{}
	move := func(host []byte) *attention.Memory {
		x, ok := there[unsafe.SliceData(host)]
		if !ok {
			var err error
			x, err = dev.Tensor(attention.F32, len(host)/4)
			require.NoError(t, err)
			require.NoError(t, x.SetBytes(host))
			there[unsafe.SliceData(host)] = x
		}
		return x.Memory
	}
	tensors, vectors := c.tensors()
	for _, x := range tensors {
		if x.Host != nil {
			x.Memory, x.Host = move(x.Host), nil
		}
	}
	for _, x := range vectors {
		if x.Host != nil {
			x.Memory, x.Host = move(x.Host), nil
		}
	}
	op, err := kvcache.NewAppend(dev, c.cfg)
	require.NoError(t, err)
	require.NoError(t, op.Prepare())
	require.NoError(t, op.Forward(nil, c.args))
	require.NoError(t, op.Close())
	for to, x := range there {
		b, err := x.Bytes(background(t))
		require.NoError(t, err)
		copy(unsafe.Slice(to, len(b)), b)
		require.NoError(t, x.Close())
	}
}

// numbersOf are the bits of elements, with one NaN for all.
func numbersOf(host []byte, dtype attention.DType) []uint32 {
	x := make([]float32, len(host)/dtype.Size())
	dtype.Decode(x, host)
	bits := make([]uint32, len(x))
	for i, y := range x {
		if bits[i] = math.Float32bits(y); y != y {
			bits[i] = 0x7fc00000
		}
	}
	return bits
}

// appendsAsTheCPU compares random calls with tier cpu, bit for bit but for those of NaN, and all memory around the rows.
func appendsAsTheCPU(t *testing.T, dev *attention.Device, dtype attention.DType, calls int) {
	t.Helper()
	for seed := range uint64(calls) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			here, there := randomAppend(seed, dtype), randomAppend(seed, dtype)
			appendOn(t, dev, *there)
			op, err := kvcache.NewAppend(nil, here.cfg)
			require.NoError(t, err)
			require.NoError(t, op.Forward(nil, here.args))
			want, _ := here.tensors()
			got, _ := there.tensors()
			for i := range want {
				require.Equal(t, numbersOf(want[i].Host, dtype), numbersOf(got[i].Host, dtype), "tensor %d of %+v", i, here.cfg)
			}
		})
	}
}

// A CUDA device without Vulkan appends rows of every storage type as tier cpu does. Caches of quantized types are refused by name.
func TestDeviceAppends(t *testing.T) {
	require.EqualValues(t, 384, unsafe.Sizeof(appendParams{}), "as kernels/attn_append.h says")
	f, dev := openFake(t)
	for _, dtype := range attention.DTypes() {
		t.Run(dtype.String(), func(t *testing.T) {
			e := newEmulatorOf(t, "append.cu", "AttnAppendParams", "ENTRY=attn_append_"+dtype.String(), dtype.String())
			emulated.Lock()
			emulated.e, emulated.err = e, nil
			emulated.Unlock()
			appendsAsTheCPU(t, dev, dtype, 150)
			require.NoError(t, emulated.err)
			require.Contains(t, f.launches(), "attn_append_"+dtype.String())
		})
	}
	_, err := kvcache.NewAppend(dev, kvcache.AppendConfig{HeadDim: 64, KeyType: attention.KVInt8, ValueType: attention.KVInt8})
	require.ErrorIs(t, err, attention.ErrUnsupported)
	require.ErrorContains(t, err, "tier cuda appends to caches of f16 alone, not of int8 and int8")

	// A call like one before allocates nothing.
	e := newEmulatorOf(t, "append.cu", "AttnAppendParams", "ENTRY=attn_append_f16", "f16")
	emulated.Lock()
	emulated.e = e
	emulated.Unlock()
	d, err := of("", dev)
	require.NoError(t, err)
	op, err := d.Append(backend.AppendConfig{HeadDim: 8, HeadDimV: 8})
	require.NoError(t, err)
	x, err := dev.Tensor(attention.F16, 1, 1, 4, 8)
	require.NoError(t, err)
	var c backend.AppendCall
	c.K.Set("K", &x, problem.F16, 1, 1, 1, 8)
	c.KCache.Set("KCache", &x, problem.F16, 1, 1, 4, 8)
	c.Sequences, c.Rows, c.Limit, c.PageRows = 1, 1, 4, 4
	s, err := dev.NewStream("")
	require.NoError(t, err)
	on := problemStream(s)
	require.Zero(t, testing.AllocsPerRun(20, func() { err = op.Append(on, c) }))
	require.NoError(t, err)
	require.NoError(t, s.Wait(background(t)))
	require.NoError(t, x.Close())
}

func TestGPUDeviceAppends(t *testing.T) {
	dev := needCUDA(t)
	for _, dtype := range attention.DTypes() {
		t.Run(dtype.String(), func(t *testing.T) { appendsAsTheCPU(t, dev, dtype, 500) })
	}
}
