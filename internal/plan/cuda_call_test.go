package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// wrapped is memory of a device's at an address.
type wrapped uint64

func (w wrapped) Device() any     { return nil }
func (w wrapped) Address() uint64 { return uint64(w) }
func (w wrapped) Size() uint64    { return 1 << 50 }
func (w wrapped) Close() error    { return nil }

// What tensors of a call on a CUDA device without Vulkan add to its request.
func TestCUDADeviceRequest(t *testing.T) {
	cfg := problem.Config{DType: problem.F16, HeadDim: 64}
	request := func(change func(a *problem.Args)) Request {
		tensor := func(i uint64) problem.Tensor { return problem.Tensor{Memory: problem.NewMemory(wrapped(i << 52))} }
		a := problem.Args{Shape: problem.Shape{B: 3, Hq: 2, Hkv: 1, Sq: 1, Sk: 32}, Q: tensor(1), K: tensor(2), V: tensor(3), O: tensor(4)}
		change(&a)
		var l tensors.Layouts
		require.NoError(t, l.Check(&cfg, &a))
		return new(CUDADevice).Request(&cfg, &a, &l)
	}
	vector := problem.Vector{Memory: problem.NewMemory(wrapped(5 << 52))}
	packed := func(rows, total int) Request {
		return request(func(a *problem.Args) { a.Sq, a.Varlen = rows, &problem.Varlen{CuQ: vector, TotalQ: total} })
	}
	require.NotEqual(t, packed(problem.MaxCUDADecodeRows, 9), packed(problem.MaxCUDADecodeRows, 10), "other splits")
	require.Equal(t, packed(problem.MaxCUDADecodeRows+1, 9), packed(problem.MaxCUDADecodeRows+1, 10), "the same plan")

	const far = 1 << 31 // elements of 2 bytes
	for _, x := range []struct {
		name    string
		strides problem.Strides
		pages   bool
		far     bool
	}{
		{"near rows", problem.Strides{Batch: 32 * (far - 8), Head: 64, Seq: far - 8}, false, false},
		{"far rows", problem.Strides{Batch: 32 * far, Head: 64, Seq: far}, false, true},
		{"far sequences", problem.Strides{Batch: far, Head: 64, Seq: 64}, false, false},
		{"near pages", problem.Strides{Batch: far - 8, Head: 64, Seq: 64}, true, false},
		{"far pages", problem.Strides{Batch: far, Head: 64, Seq: 64}, true, true},
	} {
		for which := range 2 {
			r := request(func(a *problem.Args) {
				*[]*problem.Tensor{&a.K, &a.V}[which] = problem.Tensor{Memory: problem.NewMemory(wrapped(6 << 52)), Strides: x.strides}
				if x.pages {
					a.Pages, a.Varlen = &problem.Pages{Table: vector, Count: 3, PageSize: 32}, &problem.Varlen{UsedK: vector}
				}
			})
			require.Equal(t, x.far, r.FarKV, x.name)
			require.Equal(t, x.far, notInDecodeAsQ(&cfg, &r) == "its decode kernels take "+nearKV, x.name)
		}
	}
}

// Every launch, on CUDA too, refuses more sparse tokens than kernels count.
func TestCheckSlotsLimitsSparseTokens(t *testing.T) {
	a := problem.Args{Shape: problem.Shape{B: 1, Hq: 16, Hkv: 1, Sq: 2, Sk: 32}, SparseTokens: &problem.SparseTokens{PerRow: true, TopK: maxGeneralLength / 2}}
	require.NoError(t, CheckSlots(&a))
	a.SparseTokens.TopK++
	require.ErrorIs(t, CheckSlots(&a), problem.ErrUnsupported)
	require.ErrorContains(t, CheckSlots(&a), "1073741826 sparse tokens, at most 2^30 are possible")
}
