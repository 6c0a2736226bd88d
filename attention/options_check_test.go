package attention_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/vk"
)

func vector(elements int) attention.Vector {
	return attention.Vector{Host: make([]byte, 4*elements)}
}

// Well-formed calls with every option: goodCall (B2 H4/2 S8x16, f16, 32/16) and more.
var optionCalls = map[string]func(*attention.Config, *attention.Args){
	"packed": func(_ *attention.Config, a *attention.Args) {
		a.Varlen = &attention.Varlen{CuQ: vector(3), CuK: vector(3), TotalQ: 11, TotalK: 20}
		a.Q.Host = make([]byte, 4*11*32*2)
		a.O.Host = make([]byte, 4*11*16*2)
		a.LSE.Host = make([]byte, 4*11*4)
		a.K.Host = make([]byte, 2*20*32*2)
		a.V.Host = make([]byte, 2*20*16*2)
	},
	"padded": func(_ *attention.Config, a *attention.Args) {
		a.Varlen = &attention.Varlen{UsedQ: vector(2), UsedK: vector(2)}
	},
	"paged": func(_ *attention.Config, a *attention.Args) {
		a.Pages = &attention.Pages{Table: vector(2 * 4), PageSize: 5, Count: 3}
		a.K.Host = make([]byte, 3*2*5*32*2)
		a.V.Host = make([]byte, 3*2*5*16*2)
	},
	"paged, wide table, lengths": func(_ *attention.Config, a *attention.Args) {
		a.Varlen = &attention.Varlen{UsedK: vector(2)}
		a.Pages = &attention.Pages{Table: vector(2 * 9), PageSize: 5, Count: 3, Stride: 9}
		a.K.Host = make([]byte, 3*2*5*32*2)
		a.V.Host = make([]byte, 3*2*5*16*2)
	},
	"sparse": func(_ *attention.Config, a *attention.Args) {
		a.SparseTokens = &attention.SparseTokens{Offsets: vector(2*2 + 1), Tokens: vector(7), Total: 7}
	},
	"blocks": func(_ *attention.Config, a *attention.Args) {
		a.Blocks = &attention.Blocks{Map: vector(2 * 4), BlockQ: 16, BlockK: 32}
	},
	"blocks for all": func(_ *attention.Config, a *attention.Args) {
		a.Blocks = &attention.Blocks{Map: vector(1), BlockQ: 16, BlockK: 16, Batches: 1, Heads: 1}
	},
	"bias": func(_ *attention.Config, a *attention.Args) {
		a.Bias = &attention.Bias{Tensor: attention.Tensor{Host: make([]byte, 2*4*8*16*4)}, DType: attention.F32}
	},
	"bias of a head": func(_ *attention.Config, a *attention.Args) {
		a.Bias = &attention.Bias{Tensor: attention.Tensor{Host: make([]byte, 4*16*2)}, Batches: 1, Rows: 1}
	},
	"bias with a stride that is not used": func(_ *attention.Config, a *attention.Args) {
		a.Bias = &attention.Bias{Tensor: attention.Tensor{Host: make([]byte, 8*16*2), Strides: attention.Strides{Batch: 1 << 40, Head: -1, Seq: 16}},
			Batches: 1, Heads: 1}
	},
	"mask": func(_ *attention.Config, a *attention.Args) {
		a.Mask = &attention.Mask{Tensor: attention.Tensor{Host: make([]byte, 2*8*20), Strides: attention.Strides{Batch: 160, Seq: 20}}, Heads: 1}
	},
	"ALiBi": func(c *attention.Config, a *attention.Args) {
		c.Align = attention.BottomRight
		a.ALiBi = vector(4)
	},
	"sinks": func(_ *attention.Config, a *attention.Args) { a.Sinks = vector(4) },
	"int8": func(c *attention.Config, a *attention.Args) {
		c.KeyType, c.ValueType = attention.KVInt8, attention.KVInt8
		a.K.Host, a.V.Host = make([]byte, 2*2*16*32), make([]byte, 2*2*16*16)
		a.KScale, a.VScale = vector(2*2*16), vector(2*2*16)
	},
	"fp8, blocks of 5 keys, paged": func(c *attention.Config, a *attention.Args) {
		c.KeyType, c.ValueType, c.KVBlock = attention.KVFP8, attention.KVFP8, 5
		a.Pages = &attention.Pages{Table: vector(2 * 2), PageSize: 8, Count: 3}
		a.K.Host, a.V.Host = make([]byte, 3*2*8*32), make([]byte, 3*2*8*16)
		a.KScale, a.VScale = vector(3*2*2), vector(3*2*2)
	},
	"fp8, blocks of 3 keys, packed": func(c *attention.Config, a *attention.Args) {
		c.KeyType, c.ValueType, c.KVBlock = attention.KVFP8, attention.KVFP8, 3
		a.Varlen = &attention.Varlen{CuK: vector(3), TotalK: 20}
		a.K.Host, a.V.Host = make([]byte, 2*20*32), make([]byte, 2*20*16)
		a.KScale, a.VScale = vector(2*7), vector(2*7)
	},
	"q8_0": func(c *attention.Config, a *attention.Args) {
		c.KeyType, c.ValueType, c.HeadDimV = attention.KVQ8_0, attention.KVQ8_0, 64
		a.K.Host, a.V.Host = make([]byte, 2*2*16*34), make([]byte, 2*2*16*2*34)
		a.O.Host = make([]byte, 2*4*8*64*2)
	},
	"q4_0": func(c *attention.Config, a *attention.Args) {
		c.KeyType, c.ValueType, c.HeadDimV = attention.KVQ4_0, attention.KVQ4_0, 32
		a.K.Host, a.V.Host = make([]byte, 2*2*16*18+18), make([]byte, 2*2*16*18)
		a.K.Offset = 32
		a.O.Host = make([]byte, 2*4*8*32*2)
	},
}

func TestCheckArgsAcceptsOptions(t *testing.T) {
	for name, change := range optionCalls {
		t.Run(name, func(t *testing.T) {
			cfg, a := goodCall()
			change(&cfg, &a)
			require.NoError(t, attention.CheckArgs(cfg, a))
			require.NoError(t, attention.ForwardCPU(cfg, a), "and it runs")
		})
	}
}

func TestCheckArgsRefusesOptions(t *testing.T) {
	type change func(*attention.Config, *attention.Args)
	short := func(v *attention.Vector) { v.Host = v.Host[:len(v.Host)-1] }
	device := attention.Vector{Buffer: &vk.Buffer{}}
	for _, c := range []struct {
		from, field, says string
		change            change
	}{
		{"packed", "Varlen.TotalQ", "is -1", func(_ *attention.Config, a *attention.Args) { a.Varlen.TotalQ = -1 }},
		{"packed", "Varlen.TotalK", "0 to", func(_ *attention.Config, a *attention.Args) { a.Varlen.TotalK = attention.MaxLength + 1 }},
		{"padded", "Varlen.TotalK", "without Varlen.CuK", func(_ *attention.Config, a *attention.Args) { a.Varlen.TotalK = 3 }},
		{"packed", "Varlen.CuQ", "11 bytes, want at least 12", func(_ *attention.Config, a *attention.Args) { short(&a.Varlen.CuQ) }},
		{"packed", "Varlen.CuK", "missing", func(_ *attention.Config, a *attention.Args) { a.Varlen.CuK = attention.Vector{Offset: 1} }},
		{"packed", "Varlen.CuK.Offset", "-1", func(_ *attention.Config, a *attention.Args) { a.Varlen.CuK.Offset = -1 }},
		{"packed", "Varlen.CuK", "2^63", func(_ *attention.Config, a *attention.Args) { a.Varlen.CuK.Offset = math.MaxInt64 }},
		{"packed", "Q", "at least 2816", func(_ *attention.Config, a *attention.Args) { a.Q.Host = a.Q.Host[2:] }},
		{"packed", "K", "at least 2560", func(_ *attention.Config, a *attention.Args) { a.K.Host = a.K.Host[2:] }},
		{"packed", "LSE", "175 bytes", func(_ *attention.Config, a *attention.Args) { a.LSE.Host = a.LSE.Host[1:] }},
		{"packed", "O", "overlapping Varlen.CuQ", func(_ *attention.Config, a *attention.Args) { a.Varlen.CuQ.Host = a.O.Host }},
		{"padded", "Varlen.UsedQ", "at least 8", func(_ *attention.Config, a *attention.Args) { short(&a.Varlen.UsedQ) }},
		{"padded", "Varlen.UsedK", "in device memory", func(_ *attention.Config, a *attention.Args) { a.Varlen.UsedK = device }},
		{"padded", "Varlen.UsedK", "both", func(_ *attention.Config, a *attention.Args) { a.Varlen.UsedK.Buffer = device.Buffer }},
		{"paged", "Varlen.CuK", "together with Pages", func(_ *attention.Config, a *attention.Args) {
			a.Varlen = &attention.Varlen{CuK: vector(3), TotalK: 20}
		}},
		{"paged", "Pages.PageSize", "is 0", func(_ *attention.Config, a *attention.Args) { a.Pages.PageSize = 0 }},
		{"paged", "Pages.Count", "is -1", func(_ *attention.Config, a *attention.Args) { a.Pages.Count = -1 }},
		{"paged", "Pages.Stride", "at least 4", func(_ *attention.Config, a *attention.Args) { a.Pages.Stride = 3 }},
		{"paged", "Pages.Stride", "is -1", func(_ *attention.Config, a *attention.Args) { a.Pages.Stride = -1 }},
		{"paged", "B*Pages.Stride", "2*1073741824", func(_ *attention.Config, a *attention.Args) { a.Pages.Stride = 1 << 30 }},
		{"paged", "Pages.Table", "missing", func(_ *attention.Config, a *attention.Args) { a.Pages.Table = attention.Vector{} }},
		{"paged", "Pages.Table", "31 bytes", func(_ *attention.Config, a *attention.Args) { short(&a.Pages.Table) }},
		{"paged", "K", "1919 bytes", func(_ *attention.Config, a *attention.Args) { a.K.Host = a.K.Host[1:] }},
		{"fp8, blocks of 5 keys, paged", "Pages.Count*PageSize", "1073741824*8", func(_ *attention.Config, a *attention.Args) {
			a.Pages.Count = 1 << 30
		}},
		{"sparse", "SparseTokens.Total", "is -1", func(_ *attention.Config, a *attention.Args) { a.SparseTokens.Total = -1 }},
		{"sparse", "SparseTokens.Offsets", "at least 20", func(_ *attention.Config, a *attention.Args) { short(&a.SparseTokens.Offsets) }},
		{"sparse", "SparseTokens.Tokens", "missing", func(_ *attention.Config, a *attention.Args) { a.SparseTokens.Tokens = attention.Vector{} }},
		{"sparse", "LSE", "overlapping SparseTokens.Tokens", func(_ *attention.Config, a *attention.Args) { a.SparseTokens.Tokens.Host = a.LSE.Host[228:] }},
		{"sparse", "SparseTokens.TopK", "is -1", func(_ *attention.Config, a *attention.Args) { a.SparseTokens.TopK = -1 }},
		{"sparse", "SparseTokens.TopK", "of each of 4 lists", func(_ *attention.Config, a *attention.Args) { a.SparseTokens.TopK = 1 << 30 }},
		{"sparse", "SparseTokens.Offsets", "together with SparseTokens.TopK", func(_ *attention.Config, a *attention.Args) { a.SparseTokens.TopK = 1 }},
		{"sparse", "SparseTokens.Total", "is 7", func(_ *attention.Config, a *attention.Args) {
			a.SparseTokens.TopK, a.SparseTokens.Offsets = 1, attention.Vector{}
		}},
		{"sparse", "SparseTokens.Tokens", "at least 16", func(_ *attention.Config, a *attention.Args) {
			a.SparseTokens = &attention.SparseTokens{TopK: 1, Tokens: vector(3)}
		}},
		{"sparse", "SparseTokens.Tokens", "at least 256", func(_ *attention.Config, a *attention.Args) {
			a.SparseTokens = &attention.SparseTokens{TopK: 2, Tokens: a.SparseTokens.Tokens, PerRow: true}
		}},
		{"sparse", "SparseTokens.Offsets", "at least", func(_ *attention.Config, a *attention.Args) { a.SparseTokens.PerRow = true }},
		{"blocks", "Blocks.BlockQ", "is 8", func(_ *attention.Config, a *attention.Args) { a.Blocks.BlockQ = 8 }},
		{"blocks", "Blocks.BlockK", "is 48", func(_ *attention.Config, a *attention.Args) { a.Blocks.BlockK = 48 }},
		{"blocks", "Blocks.Heads", "1, or Hq (4), or 0 for Hq", func(_ *attention.Config, a *attention.Args) { a.Blocks.Heads = 2 }},
		{"blocks", "Blocks.Map", "at least 32", func(_ *attention.Config, a *attention.Args) { short(&a.Blocks.Map) }},
		{"bias", "Bias.DType", "DType(9)", func(_ *attention.Config, a *attention.Args) { a.Bias.DType = 9 }},
		{"bias", "Bias.Batches", "is 3", func(_ *attention.Config, a *attention.Args) { a.Bias.Batches = 3 }},
		{"bias", "Bias.Rows", "is -1", func(_ *attention.Config, a *attention.Args) { a.Bias.Rows = -1 }},
		{"bias", "Bias", "4095 bytes", func(_ *attention.Config, a *attention.Args) { a.Bias.Host = a.Bias.Host[1:] }},
		{"bias", "Bias.Strides.Head", "-1", func(_ *attention.Config, a *attention.Args) { a.Bias.Strides.Head = -1 }},
		{"bias", "Bias", "2^63", func(_ *attention.Config, a *attention.Args) {
			a.Bias.Strides = attention.Strides{Batch: math.MaxInt64, Head: 1, Seq: 1}
		}},
		{"bias", "Bias", "missing", func(_ *attention.Config, a *attention.Args) { a.Bias.Host = nil }},
		{"bias", "O", "overlapping Bias", func(_ *attention.Config, a *attention.Args) { a.O.Host = a.Bias.Host }},
		{"mask", "Mask.Heads", "is 3", func(_ *attention.Config, a *attention.Args) { a.Mask.Heads = 3 }},
		{"mask", "Mask", "at least 316", func(_ *attention.Config, a *attention.Args) { a.Mask.Host = a.Mask.Host[:315] }},
		{"ALiBi", "Align", "for ALiBi", func(c *attention.Config, _ *attention.Args) { c.Align = attention.CausalNone }},
		{"ALiBi", "ALiBi", "at least 16", func(_ *attention.Config, a *attention.Args) { short(&a.ALiBi) }},
		{"sinks", "Sinks", "15 bytes", func(_ *attention.Config, a *attention.Args) { short(&a.Sinks) }},
		{"sinks", "Sinks", "missing", func(_ *attention.Config, a *attention.Args) { a.Sinks = attention.Vector{Offset: 2} }},
		{"int8", "KScale", "missing", func(_ *attention.Config, a *attention.Args) { a.KScale = attention.Vector{} }},
		{"int8", "VScale", "at least 256", func(_ *attention.Config, a *attention.Args) { short(&a.VScale) }},
		{"sinks", "KScale", "none where K and V are same", func(_ *attention.Config, a *attention.Args) { a.KScale = vector(64) }},
		{"q8_0", "VScale", "none where K and V are q8_0", func(_ *attention.Config, a *attention.Args) { a.VScale = vector(64) }},
		{"q8_0", "V.Offset", "is 16", func(_ *attention.Config, a *attention.Args) { a.V.Offset = 16 }},
		{"q8_0", "K.Strides.Head", "is 500", func(_ *attention.Config, a *attention.Args) {
			a.K.Strides = attention.Strides{Batch: 1024, Head: 500, Seq: 32}
		}},
		{"q8_0", "K", "2175 bytes", func(_ *attention.Config, a *attention.Args) { a.K.Host = a.K.Host[1:] }},
		{"fp8, blocks of 3 keys, packed", "KScale", "at least 56", func(_ *attention.Config, a *attention.Args) { short(&a.KScale) }},
		{"sinks", "HeadDim/HeadDimV", "multiples of 32", func(c *attention.Config, _ *attention.Args) {
			c.KeyType, c.ValueType = attention.KVQ4_0, attention.KVQ4_0
		}},
		{"sinks", "Align", "for a Window", func(c *attention.Config, _ *attention.Args) { c.Window = attention.WindowOf(3, 0) }},
	} {
		t.Run(c.from+"/"+c.field+" "+c.says, func(t *testing.T) {
			cfg, a := goodCall()
			optionCalls[c.from](&cfg, &a)
			c.change(&cfg, &a)
			requireRefused(t, attention.CheckArgs(cfg, a), c.field, c.says)
		})
	}
}

func TestCombinationsRefusedByName(t *testing.T) {
	for _, c := range []struct{ one, other, says string }{
		{"sparse", "blocks", "SparseTokens is given together with Blocks"},
	} {
		cfg, a := goodCall()
		optionCalls[c.one](&cfg, &a)
		optionCalls[c.other](&cfg, &a)
		err := attention.CheckArgs(cfg, a)
		require.ErrorIs(t, err, attention.ErrUnsupported)
		require.Contains(t, err.Error(), c.says)
	}
}

func TestChecksAllocateNothing(t *testing.T) {
	for name, change := range optionCalls {
		cfg, a := goodCall()
		require.Zero(t, testing.AllocsPerRun(10, func() { _ = attention.CheckArgs(cfg, a) }), "without options")
		change(&cfg, &a)
		require.Zero(t, testing.AllocsPerRun(10, func() { _ = attention.CheckArgs(cfg, a) }), name)
	}
}
