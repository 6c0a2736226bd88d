package cudapath

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/problem"
)

// Decode kernels refuse strides, grids and numbers of keys that they would count wrong, when a call is launched: no plan knows them.
func TestDecodeRefusesWhatItWouldCountWrong(t *testing.T) {
	for want, change := range map[string]func(p *decodeParams, a *problem.CUDACall){
		"": func(*decodeParams, *problem.CUDACall) {},
		"strides of 4294967296 bytes between rows": func(p *decodeParams, _ *problem.CUDACall) { p.v.row = 1 << 32 },
		"4294967296 between pages":                 func(p *decodeParams, _ *problem.CUDACall) { p.pageSize, p.k.batch = 16, 1<<32 },
		"a grid of":                                func(_ *decodeParams, a *problem.CUDACall) { a.Hkv = maxGridY + 1 },
		"1073741825 keys":                          func(_ *decodeParams, a *problem.CUDACall) { a.Sk = 1<<30 + 1 },
		"2147483647 keys":                          func(_ *decodeParams, a *problem.CUDACall) { a.TotalK = math.MaxInt32 },
	} {
		a := problem.CUDACall{Shape: attention.Shape{B: 1, Hq: 8, Hkv: 1, Sq: 1, Sk: 1 << 30}}
		p := decodeParams{k: tensorParams{batch: 1 << 40, row: math.MaxUint32}}
		change(&p, &a)
		if want == "" {
			require.Empty(t, p.beyond(&a))
		} else {
			require.Contains(t, p.beyond(&a), want)
		}
	}
	err := notComputed("why")
	require.ErrorIs(t, err, attention.ErrUnsupported)
	require.ErrorContains(t, err, "why")
}

// A tensor without rows, of which no copy reads any, has a map of one row of one head: the driver refuses strides that no element needs.
func TestMappedTensorsWithoutRows(t *testing.T) {
	p := generalParams{totalQ: 9, cuQ: 1, cuK: 1}
	p.q.base, p.k.base, p.v.base, p.o.base = 0x1000, 0x2008, 0x3008, 0x4000
	got := p.mapped(&attention.Shape{B: 3, Hq: 4, Hkv: 2, Sq: 9, Sk: 5})
	for i, want := range []struct {
		base        uint64
		rows, heads int
	}{{0x1000, 9, 4}, {0x1000, 1, 1}, {0x1000, 1, 1}, {0x4000, 9, 4}} {
		require.Equal(t, want.base, got[i].base, "tensor %d", i)
		require.Equal(t, want.rows, got[i].rows, "tensor %d", i)
		require.Equal(t, want.heads, got[i].heads, "tensor %d", i)
	}
}
