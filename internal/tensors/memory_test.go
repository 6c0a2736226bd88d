package tensors

import (
	"testing"
	"vkattn/internal/problem"

	"github.com/stretchr/testify/require"
)

func TestLargestAlignment(t *testing.T) {
	require.Equal(t, uint32(8), LargestAlignment(64, 0, 128))
	require.Equal(t, uint32(4), LargestAlignment(64, 12))
	require.Equal(t, uint32(2), LargestAlignment(64, 6))
	require.Equal(t, uint32(1), LargestAlignment(64, 31))
}

// The reference holds the keys of a row: with lists of one length they are known.
func TestKeysOfARow(t *testing.T) {
	a := &problem.Args{Shape: problem.Shape{B: 2, Hq: 4, Hkv: 1, Sq: 8192, Sk: 100}}
	require.Equal(t, uint64(100), RowKeys(a))
	a.SparseTokens = &problem.SparseTokens{TopK: 2048, PerRow: true}
	require.Equal(t, uint64(2048), RowKeys(a))
	a.SparseTokens.TopK = 5
	require.Equal(t, uint64(100), RowKeys(a), "tokens may repeat")
}

// wrapped is memory of a device's at an address.
type wrapped uint64

func (w wrapped) Device() any     { return nil }
func (w wrapped) Address() uint64 { return uint64(w) }
func (w wrapped) Size() uint64    { return 1 << 20 }
func (w wrapped) Close() error    { return nil }

// V is in K if both begin at one address, in one Memory or two.
func TestVInKByAddress(t *testing.T) {
	at := func(address uint64, offset int64) problem.Tensor {
		return problem.Tensor{Memory: problem.NewMemory(wrapped(address)), Offset: offset, Strides: problem.BHSD(1, 64, 576)}
	}
	cfg := problem.Config{HeadDim: 576, HeadDimV: 512}
	for _, x := range []struct {
		name string
		v    problem.Tensor
		inK  bool
	}{
		{"the same wrap", problem.Tensor{}, true},
		{"another wrap", at(4096, 0), true},
		{"a wrap with an offset", at(4064, 16), true},
		{"another address", at(8192, 0), false},
		{"another offset", at(4096, 8), false},
		{"other strides", problem.Tensor{Memory: problem.NewMemory(wrapped(4096)), Strides: problem.BHSD(1, 64, 512)}, false},
		{"memory of the host", problem.Tensor{Host: make([]byte, 1<<20)}, false},
	} {
		a := problem.Args{Shape: problem.Shape{B: 1, Hq: 16, Hkv: 1, Sq: 1, Sk: 64}, Q: at(1<<24, 0), K: at(4096, 0), V: x.v, O: at(2<<24, 0)}
		if !a.V.Given() {
			a.V = a.K
		}
		var l Layouts
		l.set(&cfg, &a)
		require.Equal(t, x.inK, l.VInK(), x.name)
		require.Zero(t, testing.AllocsPerRun(10, func() { l.VInK() }), x.name)
	}
}
