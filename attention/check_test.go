package attention_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/vk"
)

// goodCall is a call that CheckArgs accepts: f16, B2 H4/2 S8x16, 32/16.
func goodCall() (attention.Config, attention.Args) {
	cfg := attention.Config{HeadDim: 32, HeadDimV: 16}
	s := attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 8, Sk: 16}
	return cfg, attention.Args{
		Shape: s,
		Q:     attention.Tensor{Host: make([]byte, 2*4*8*32*2)},
		K:     attention.Tensor{Host: make([]byte, 2*2*16*32*2)},
		V:     attention.Tensor{Host: make([]byte, 2*2*16*16*2)},
		O:     attention.Tensor{Host: make([]byte, 2*4*8*16*2)},
		LSE:   attention.Tensor{Host: make([]byte, 2*4*8*4)},
	}
}

func TestCheckArgsAccepts(t *testing.T) {
	for name, change := range map[string]func(*attention.Config, *attention.Args){
		"packed":          func(*attention.Config, *attention.Args) {},
		"no LSE":          func(_ *attention.Config, a *attention.Args) { a.LSE = attention.Tensor{} },
		"LSE strides":     func(_ *attention.Config, a *attention.Args) { a.LSE.Strides = attention.BHSD(4, 8, 1) },
		"BSHD":            func(_ *attention.Config, a *attention.Args) { a.O.Strides = attention.BSHD(4, 8, 16) },
		"K shared by all": func(_ *attention.Config, a *attention.Args) { a.K.Strides.Seq = 32 },
		"K and V shared":  func(_ *attention.Config, a *attention.Args) { a.V.Host = a.K.Host },
		"one row, any stride": func(_ *attention.Config, a *attention.Args) {
			a.B, a.Sq = 1, 1
			a.O.Strides = attention.Strides{Head: 16}
		},
		"exactly to the end": func(_ *attention.Config, a *attention.Args) {
			a.B = 1
			a.O.Offset = 4 * 8 * 16
		},
		"O in the columns after Q in wider rows": func(_ *attention.Config, a *attention.Args) {
			a.Q.Host = make([]byte, 2*4*8*48*2)
			a.Q.Strides = attention.BHSD(4, 8, 48)
			a.O = a.Q
			a.O.Offset = 32
		},
		"Q in the columns after O in wider rows": func(_ *attention.Config, a *attention.Args) {
			a.Q.Host = make([]byte, 2*4*8*48*2)
			a.Q.Strides = attention.BHSD(4, 8, 48)
			a.O = a.Q
			a.Q.Offset = 16
		},
		"O after Q in one memory": func(_ *attention.Config, a *attention.Args) {
			a.Q.Host = make([]byte, 2*4*8*(32+16)*2)
			a.O = a.Q
			a.O.Offset = 2 * 4 * 8 * 32
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, a := goodCall()
			change(&cfg, &a)
			require.NoError(t, attention.CheckArgs(cfg, a))
			require.NoError(t, attention.ForwardCPU(cfg, a), "and it runs")
		})
	}
}

func TestCheckArgsRefuses(t *testing.T) {
	type change func(*attention.Config, *attention.Args)
	nan := float32(math.NaN())
	for _, c := range []struct {
		name, field, says string
		change            change
	}{
		{"head dim 0", "HeadDim", "is 0", func(c *attention.Config, _ *attention.Args) { c.HeadDim = 0 }},
		{"head dim 257", "HeadDim/HeadDimV", "257/16", func(c *attention.Config, _ *attention.Args) { c.HeadDim = 257 }},
		{"wide pair unknown", "HeadDim/HeadDimV", "576/576", func(c *attention.Config, _ *attention.Args) { c.HeadDim, c.HeadDimV = 576, 0 }},
		{"negative HeadDimV", "HeadDimV", "-1", func(c *attention.Config, _ *attention.Args) { c.HeadDimV = -1 }},
		{"dtype", "DType", "DType(9)", func(c *attention.Config, _ *attention.Args) { c.DType = 9 }},
		{"causal", "Causal", "Causal(9)", func(c *attention.Config, _ *attention.Args) { c.Causal = 9 }},
		{"tier", "Tier", "Tier(9)", func(c *attention.Config, _ *attention.Args) { c.Tier = 9 }},
		{"scale NaN", "Scale", "NaN", func(c *attention.Config, _ *attention.Args) { c.Scale = attention.ScaleOf(nan) }},
		{"scale Inf", "Scale", "-Inf", func(c *attention.Config, _ *attention.Args) {
			c.Scale = attention.ScaleOf(float32(math.Inf(-1)))
		}},
		{"negative batch", "B", "is -1", func(_ *attention.Config, a *attention.Args) { a.B = -1 }},
		{"no heads", "Hq", "is 0", func(_ *attention.Config, a *attention.Args) { a.Hq, a.Hkv = 0, 0 }},
		{"negative Sq", "Sq", "-8", func(_ *attention.Config, a *attention.Args) { a.Sq = -8 }},
		{"no keys", "Sk", "is 0", func(_ *attention.Config, a *attention.Args) { a.Sk = 0 }},
		{"heads do not divide", "Hkv", "divisor of Hq (4)", func(_ *attention.Config, a *attention.Args) { a.Hkv = 3 }},
		{"rows overflow", "B*Hq*Sq", "2^63", func(_ *attention.Config, a *attention.Args) {
			a.B, a.Hq, a.Hkv, a.Sq = attention.MaxLength, attention.MaxLength, 1, attention.MaxLength
		}},
		{"extent overflows", "Q", "2^63", func(_ *attention.Config, a *attention.Args) {
			a.B, a.Hq, a.Hkv, a.Sq = 1<<30, 1<<30, 1, 1
		}},
		{"Q missing", "Q", "missing", func(_ *attention.Config, a *attention.Args) { a.Q = attention.Tensor{} }},
		{"O missing", "O", "missing", func(_ *attention.Config, a *attention.Args) { a.O = attention.Tensor{} }},
		{"LSE offset without memory", "LSE", "missing", func(_ *attention.Config, a *attention.Args) {
			a.LSE = attention.Tensor{Offset: 3}
		}},
		{"K in both memories", "K", "both", func(_ *attention.Config, a *attention.Args) { a.K.Buffer = &vk.Buffer{} }},
		{"K a byte short", "K", "4095 bytes, want at least 4096", func(_ *attention.Config, a *attention.Args) {
			a.K.Host = a.K.Host[:4095]
		}},
		{"V offset past the end", "V", "at least 2050", func(_ *attention.Config, a *attention.Args) { a.V.Offset = 1 }},
		{"LSE short", "LSE", "255 bytes", func(_ *attention.Config, a *attention.Args) { a.LSE.Host = a.LSE.Host[:255] }},
		{"LSE strided", "LSE.Strides", "packed", func(_ *attention.Config, a *attention.Args) { a.LSE.Strides.Seq = 2 }},
		{"negative offset", "Q.Offset", "-1", func(_ *attention.Config, a *attention.Args) { a.Q.Offset = -1 }},
		{"negative stride", "V.Strides.Head", "-16", func(_ *attention.Config, a *attention.Args) {
			a.V.Strides = attention.Strides{Batch: 512, Head: -16, Seq: 16}
		}},
		{"stride overflows", "K", "2^63", func(_ *attention.Config, a *attention.Args) {
			a.K.Strides = attention.Strides{Batch: math.MaxInt64, Head: 1, Seq: 1}
		}},
		{"strides overflow together", "K", "2^63", func(_ *attention.Config, a *attention.Args) {
			a.K.Strides = attention.Strides{Batch: 1 << 62, Head: 1 << 62, Seq: 1}
		}},
		{"offset overflows", "K", "2^63", func(_ *attention.Config, a *attention.Args) { a.K.Offset = math.MaxInt64 }},
		{"bytes overflow", "K", "2^63", func(_ *attention.Config, a *attention.Args) { a.K.Offset = math.MaxInt64 / 2 }},
		{"rows of O overlap", "O.Strides", "do not overlap", func(_ *attention.Config, a *attention.Args) {
			a.O.Strides = attention.Strides{Batch: 512, Head: 128, Seq: 15}
		}},
		{"heads of O overlap", "O.Strides", "do not overlap", func(_ *attention.Config, a *attention.Args) {
			a.O.Strides = attention.Strides{Batch: 512, Head: 127, Seq: 16}
		}},
		{"O broadcast", "O.Strides", "do not overlap", func(_ *attention.Config, a *attention.Args) {
			a.O.Strides = attention.Strides{Head: 128, Seq: 16}
		}},
		{"O is Q", "O", "overlapping Q", func(_ *attention.Config, a *attention.Args) { a.O.Host = a.Q.Host }},
		{"O ends in V", "O", "overlapping V", func(_ *attention.Config, a *attention.Args) {
			both := make([]byte, 2*2048-1)
			a.O.Host, a.V.Host = both[:2048], both[2047:]
		}},
		{"LSE in O", "LSE", "overlapping O", func(_ *attention.Config, a *attention.Args) { a.LSE.Host = a.O.Host[1024:] }},
		{"O reaches into Q's rows", "O", "overlapping Q", func(_ *attention.Config, a *attention.Args) {
			a.Q.Host = make([]byte, 2*4*8*48*2)
			a.Q.Strides = attention.BHSD(4, 8, 48)
			a.O = a.Q
			a.O.Offset = 31
		}},
		{"Q reaches into O's rows", "O", "overlapping Q", func(_ *attention.Config, a *attention.Args) {
			a.Q.Host = make([]byte, 2*4*8*48*2)
			a.Q.Strides = attention.BHSD(4, 8, 48)
			a.O = a.Q
			a.Q.Offset = 15
		}},
		{"a stride wraps around to little", "K", "2^63", func(_ *attention.Config, a *attention.Args) {
			a.K.Strides = attention.Strides{Seq: 1229782938247303442} // 15 of them are 2^64 + 14
		}},
		{"strides wrap around to little together", "K", "2^63", func(_ *attention.Config, a *attention.Args) {
			// 1, 1 and 15 of them are 2^64 - 8.
			a.K.Strides = attention.Strides{Batch: 1 << 62, Head: 1 << 62, Seq: 614891469123651720}
		}},
		{"Q on the device, the rest not", "K", "in host memory, want in device memory", func(_ *attention.Config, a *attention.Args) {
			a.Q = attention.Tensor{Buffer: &vk.Buffer{}}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, a := goodCall()
			c.change(&cfg, &a)
			requireRefused(t, attention.CheckArgs(cfg, a), c.field, c.says)
		})
	}
}

// requireRefused requires a ShapeError that names a field, in one line that says something.
func requireRefused(t *testing.T, err error, field, says string) {
	t.Helper()
	var shape *attention.ShapeError
	require.ErrorAs(t, err, &shape)
	require.Equal(t, field, shape.Field, "%v", err)
	require.Contains(t, err.Error(), says)
	require.Equal(t, 1, strings.Count(err.Error()+"\n", "\n"), "one line")
}

func TestWideHeadDims(t *testing.T) {
	for _, d := range [][2]int{{1, 1}, {256, 1}, {1, 256}, {192, 128}, {320, 256}, {512, 512}, {576, 512}} {
		require.NoError(t, attention.Config{HeadDim: d[0], HeadDimV: d[1]}.Validate(), "%v", d)
	}
	require.NoError(t, attention.Config{HeadDim: 512}.Validate(), "HeadDimV defaults to HeadDim")
	for _, d := range [][2]int{{257, 256}, {256, 257}, {320, 320}, {512, 576}, {512, 256}} {
		require.Error(t, attention.Config{HeadDim: d[0], HeadDimV: d[1]}.Validate(), "%v", d)
	}
}

func TestErrUnsupportedIsThatOfVk(t *testing.T) {
	require.ErrorIs(t, attention.ErrUnsupported, vk.ErrUnsupported)
	cfg, a := goodCall()
	a.Q = attention.Tensor{Buffer: &vk.Buffer{}}
	require.True(t, errors.Is(attention.ForwardCPU(cfg, a), attention.ErrUnsupported), "the CPU reads no device memory")
}
