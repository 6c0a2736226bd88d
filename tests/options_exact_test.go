package tests

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/half"
	"vkattn/vk"
)

// raw is a call with its memory. Each tensor has its own piece.
type raw struct {
	name   string
	shape  attention.Shape
	scales bool
}

// The pieces of memory of a raw call.
const (
	rawQ = iota
	rawK
	rawV
	rawO
	rawKScale
	rawVScale
	rawPieces
)

func (r raw) String() string { return r.name }

func (r raw) HostArgs(images [][]byte) attention.Args {
	host := func(i int) attention.Tensor { return attention.Tensor{Host: images[i]} }
	a := attention.Args{Shape: r.shape, Q: host(rawQ), K: host(rawK), V: host(rawV), O: host(rawO)}
	if r.scales {
		a.KScale.Host, a.VScale.Host = images[rawKScale], images[rawVScale]
	}
	return a
}

func (r raw) DeviceArgs(buffers []*vk.Buffer) attention.Args {
	on := func(i int) attention.Tensor { return attention.Tensor{Buffer: buffers[i]} }
	a := attention.Args{Shape: r.shape, Q: on(rawQ), K: on(rawK), V: on(rawV), O: on(rawO)}
	if r.scales {
		a.KScale.Buffer, a.VScale.Buffer = buffers[rawKScale], buffers[rawVScale]
	}
	return a
}

// Attention to a single key returns each number of a quantized type, times its scale,
// rounded to the storage type.
func TestOptionsEveryQuantizedNumber(t *testing.T) {
	s := openTiers(t)
	const heads, scale = 4, 0.375
	for n, kv := range attention.KVTypes()[1:] {
		d, dv, kvHeads := 64, 64, heads // few columns compile quickly
		if kv.Latent() {
			d, dv, kvHeads = 576, 512, 1
		}
		k := make([]byte, kv.RowBytes(attention.F16, d*heads))
		v, want := everyNumber(kv, dv*kvHeads, scale)
		for len(want) < dv*heads { // the heads of a key
			want = append(want, want...)
		}
		for i, tt := range s.available() {
			if fewPipelines() && (slowToCompile(tt) || kv.Latent()) && i != n%len(s.available()) {
				continue // all types read the numbers alike and then round
			}
			t.Run(kv.String()+"/"+tt.String(), func(t *testing.T) {
				t.Parallel()
				images := make([][]byte, rawPieces)
				images[rawQ] = make([]byte, d*heads*tt.DType.Size())
				images[rawK] = k
				images[rawV] = v
				images[rawO] = make([]byte, dv*heads*tt.DType.Size())
				scales := make([]byte, 4*heads)
				for i := range heads {
					binary.LittleEndian.PutUint32(scales[4*i:], math.Float32bits(scale))
				}
				images[rawKScale], images[rawVScale] = scales, scales
				e := s.newEngine(tt)
				j := &job{
					Problem: raw{kv.String(), attention.Shape{B: 1, Hq: heads, Hkv: kvHeads, Sq: 1, Sk: 1}, kv.Scaled()},
					cfg:     attention.Config{DType: tt.DType, HeadDim: d, HeadDimV: dv, KeyType: kv, ValueType: kv, Tier: tt.Tier, Tuning: attention.TuningOff},
					before:  images,
				}
				jobs, wants := []*job{j}, [][]float32{want}
				if _, minimum := cases.BlockNumbers(kv); minimum {
					beyond := *j
					beyond.before = slices.Clone(images)
					var infinite []float32
					beyond.before[rawV], infinite = infiniteMinimums(kv, v, dv*heads)
					jobs, wants = append(jobs, &beyond), append(wants, infinite)
				}
				err := e.run(jobs)
				require.NoError(t, e.close())
				if refusedBy(tt, err) {
					t.Skip(err)
				}
				require.NoError(t, err)
				for n, want := range wants {
					for i, got := range widened(jobs[n].after[rawO], tt.DType) {
						if math.IsNaN(float64(want[i])) {
							require.True(t, math.IsNaN(float64(got)), "number %d of job %d is %v", i, n, got)
						} else {
							require.Equal(t, rounded(want[i], tt.DType), got, "number %d of job %d", i, n)
						}
					}
				}
			})
		}
	}
}

// If all values are infinite, O is infinite. A row's last KV tile has slots beyond the last
// key with weight 0; 0 times their content must not make O NaN.
func TestOptionsInfiniteValues(t *testing.T) {
	s := openTiers(t)
	sizes := []int{0, 1, 16, 64}
	if fewPipelines() {
		sizes = []int{16}
	}
	for _, tt := range s.available() {
		if fewPipelines() && tt.DType != attention.F16 {
			continue // the handling of the last keys does not depend on the type
		}
		for _, size := range sizes {
			c := cases.Case{
				Name: "infinite", D: 32, Dv: 32, Shape: attention.Shape{Hq: 4, Hkv: 2}, LSE: true, Layout: cases.Packed, PageSize: size,
				PackedQ: true, Seqs: []cases.Seq{{ID: 0, Rows: 70, Keys: 133}, {ID: 1, Rows: 40, Keys: 21}, {ID: 2, Rows: 1, Keys: 15}},
			}
			c.PackedK = size == 0
			t.Run(c.String()+"/"+tt.String(), func(t *testing.T) {
				t.Parallel()
				p, err := cases.NewProblem(c, tt.DType)
				require.NoError(t, err)
				after := s.withValues(t, p, tt, func(values []float32) {
					for i := range values {
						values[i] = inf
					}
				})
				o, _ := p.Gather(after, p.SampleRows())
				for i, x := range o {
					require.Truef(t, math.IsInf(float64(x), 1), "element %d of O is %v", i, x)
				}
			})
		}
	}
}

// withValues returns the memory after the call with changed elements of V, of 16 or 32 bits.
func (s *session) withValues(t *testing.T, p *cases.Problem, tt cases.Target, change func(values []float32)) [][]byte {
	v := p.HostArgs(p.Image).V.Host
	if p.Case.ValueType == attention.KVFP8 { // a byte an element
		values := make([]float32, len(v))
		change(values)
		for i, x := range values {
			if x != 0 {
				v[i] = 0x7f // NaN
			}
		}
	} else {
		values := widened(v, tt.DType)
		change(values)
		tt.DType.Encode(v, values)
	}
	e := s.newEngine(tt)
	j := &job{Problem: p, cfg: attention.Config(p.Config(tt)), before: p.Image}
	require.NoError(t, e.run([]*job{j}))
	require.NoError(t, e.close())
	return j.after
}

// everyNumber returns a row with every finite number of a type, and their values.
func everyNumber(kv attention.KVType, d int, scale float32) (row []byte, want []float32) {
	row, want = make([]byte, kv.RowBytes(attention.F16, d)), make([]float32, d)
	if kv.Latent() {
		for i := range d {
			if row[i] = byte(i); i%128 == 127 { // NaN
				row[i] = 0
			}
			binary.LittleEndian.PutUint32(row[512+i/128*4:], math.Float32bits(scale*float32(1-2*(i/128%2))))
		}
		for i, x := range cases.DecodeRow(kv, row, attention.F16, d, 0) {
			want[i] = float32(x)
		}
		return row, want
	}
	numbers, minimum := cases.BlockNumbers(kv)
	size := kv.RowBytes(attention.F16, 32)
	for i := range d {
		block := row[i/32*size:][:size]
		switch {
		case kv.Scaled():
			row[i] = byte(i)
			if x := cases.DecodeRow(kv, row[i:], attention.F16, 1, 1)[0]; math.IsNaN(x) || math.IsInf(x, 0) {
				row[i] = 0
			}
			continue
		case numbers == nil:
			block[2+i%32] = byte(i)
		default:
			code := (i*13 + i/32) % len(numbers)
			block[size-16+i%16] |= byte(code) & 15 << (i % 32 / 16 * 4)
			if code > 15 {
				block[size-20+i%32/8] |= 1 << (i % 8)
			}
		}
		binary.LittleEndian.PutUint16(block, half.F16FromFloat32(scale))
		if minimum {
			binary.LittleEndian.PutUint16(block[2:], half.F16FromFloat32(-3.25*scale))
		}
	}
	for i, x := range cases.DecodeRow(kv, row, attention.F16, d, scale) {
		want[i] = float32(x)
	}
	return row, want
}

// infiniteMinimums returns a row of everyNumber with blocks of which a minimum, a scale or both are infinite, and its values.
func infiniteMinimums(kv attention.KVType, of []byte, d int) (row []byte, want []float32) {
	row, want = slices.Clone(of), make([]float32, d)
	size := kv.RowBytes(attention.F16, 32)
	for i, x := range [...][2]float32{{0.375, inf}, {-0.375, -inf}, {0, inf}, {inf, 0.5}, {inf, inf}, {inf, -inf}, {-inf, -inf}, {nan, inf}} {
		block := row[i*size:]
		binary.LittleEndian.PutUint16(block, half.F16FromFloat32(x[0]))
		binary.LittleEndian.PutUint16(block[2:], half.F16FromFloat32(x[1]))
	}
	for i, x := range cases.DecodeRow(kv, row, attention.F16, d, 1) {
		want[i] = float32(x)
	}
	return row, want
}

func widened(b []byte, dtype attention.DType) []float32 {
	x := make([]float32, len(b)/dtype.Size())
	dtype.Decode(x, b)
	return x
}

func rounded(x float32, dtype attention.DType) float32 {
	switch dtype {
	case attention.F16:
		return half.F16ToFloat32(half.F16FromFloat32(x))
	case attention.BF16:
		return half.BF16ToFloat32(half.BF16FromFloat32(x))
	}
	return x
}
