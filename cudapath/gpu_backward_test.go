//go:build !windows

package cudapath

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// The tables of cases on the GPU, by the rules of TestBackwardKernelsOnTheCPU: all of them at
// level all, a share of them otherwise. fa3 and fa2 compute all that they take.
func TestGPUBackward(t *testing.T) {
	for _, kernel := range []string{"fa3", "fa2", "ref"} {
		t.Run(kernel, func(t *testing.T) { testGPUBackward(t, kernel) })
	}
}

// takenBackward reports whether tier cuda takes the gradients of a case.
func takenBackward(c *cases.Case) bool {
	return computesBackward(c) && c.FixedSplit == 0 && c.Mods == 0
}

// alignedForFA3 reports whether offsets and strides of a case are multiples of 8 elements, if its head dims are.
func alignedForFA3(x *cases.Case) bool {
	if x.Layout == cases.Window { // rows of K and V overlap: their stride is half a row
		return x.D%16 == 0 && x.Dv%16 == 0
	}
	return x.Layout != cases.Odd && x.Layout != cases.Even
}

// takenByFA3 reports whether fa3 has backward kernels for a case.
func takenByFA3(x *cases.Case, dtype attention.DType) bool {
	return alignedForFA3(x) && dtype != attention.F32 && x.D <= 256 && x.Dv <= 256 && x.D%8 == 0 && x.Dv%8 == 0
}

// takenByFA2 reports whether fa2 has backward kernels for a case.
func takenByFA2(x *cases.Case, dtype attention.DType) bool {
	return dtype != attention.F32 && x.D <= 256 && x.Dv <= 256
}

func testGPUBackward(t *testing.T, kernel string) {
	c := needGPU(t)
	s := newVulkanStream(t, c)
	for which, dtype := range attention.DTypes() {
		t.Run(dtype.String(), func(t *testing.T) {
			table := append(cases.Brief(which), cases.DealOptions(cases.BriefOptions(), 3)[which]...)
			if testlevel.IsExhaustive() || testlevel.Get() == testlevel.All {
				table = append(cases.Brief(which), cases.AllOptions()...)
			}
			n := 0
			for _, x := range table {
				if !takenBackward(&x) || x.Flops() > 1<<28 {
					continue
				}
				if taken := map[string]func(*cases.Case, attention.DType) bool{"fa3": takenByFA3, "fa2": takenByFA2}[kernel]; taken != nil {
					if !taken(&x, dtype) {
						continue
					}
				} else if n++; !testlevel.Share(n%8 == which) {
					continue
				}
				t.Run(x.String(), func(t *testing.T) {
					b, err := cases.NewBackward(x, dtype)
					require.NoError(t, err)
					first := gradientsByCUDA(t, c, s, kernel, b, b.Image)
					require.NoError(t, b.BackwardTrespass(b.Image, first))
					require.NoError(t, b.BackwardJudge(first))
					spoiled := b.BackwardSpoiled()
					second := gradientsByCUDA(t, c, s, kernel, b, spoiled)
					require.NoError(t, b.BackwardTrespass(spoiled, second))
					require.NoError(t, b.BackwardSame(first, second))
				})
			}
		})
	}
}

// gpuBackward is a backward call on zeroed buffers, and its operation.
func gpuBackward(t *testing.T, c *Context, s *vk.Stream, kernel string, headDim int, shape attention.Shape) (*attention.Op, attention.BackwardArgs) {
	t.Helper()
	op, err := attention.New(attention.On(c.dev), attention.Config{HeadDim: headDim, Tier: attention.TierCUDA, Kernel: kernel})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, op.Close()) })
	p := newProblem(t, c, s, op.Config(), shape)
	a := attention.BackwardArgs{Args: p.device}
	size := uint64(2 * headDim)
	rows, keys := uint64(shape.Rows())*size, uint64(shape.B*shape.KVHeads()*shape.Sk)*size
	a.DO.Buffer = p.device.Q.Buffer
	a.DQ.Buffer, a.DK.Buffer, a.DV.Buffer = newBuffer(t, c, rows), newBuffer(t, c, keys), newBuffer(t, c, keys)
	return op, a
}

// 1,000 runs give the same bits, of each family and of each other kernel of fa3.
func TestGPUBackwardRepeats(t *testing.T) {
	for _, kernel := range []string{"fa3", "fa2", "ref"} {
		t.Run(kernel, func(t *testing.T) { testGPUBackwardRepeats(t, kernel, 64) })
	}
	for _, headDim := range []int{128, 192, 256} {
		t.Run(fmt.Sprint("fa3 d", headDim), func(t *testing.T) { testGPUBackwardRepeats(t, "fa3", headDim) })
	}
}

func testGPUBackwardRepeats(t *testing.T, kernel string, headDim int) {
	c := needGPU(t)
	s := newVulkanStream(t, c)
	op, a := gpuBackward(t, c, s, kernel, headDim, attention.Shape{B: 2, Hq: 6, Hkv: 2, Sq: 333, Sk: 500})
	require.NoError(t, op.Forward(attention.OnStream(s), a.Args))
	var first [3][]byte
	runs := 1000
	if testing.Short() {
		runs = 50
	}
	for run := range runs {
		require.NoError(t, op.Backward(attention.OnStream(s), a))
		for i, x := range []*vk.Buffer{a.DQ.Buffer, a.DK.Buffer, a.DV.Buffer} {
			got := make([]byte, x.Size())
			require.NoError(t, s.Download(background(t), got, x, 0))
			if run == 0 {
				first[i] = got
			}
			require.Equal(t, first[i], got, "run %d, gradient %d", run, i)
		}
	}
}

// Streams with a backward call, created and closed, leave neither descriptors nor memory.
func TestGPUBackwardLeaks(t *testing.T) {
	c := needGPU(t)
	own := newVulkanStream(t, c)
	op, a := gpuBackward(t, c, own, "ref", 64, attention.Shape{B: 1, Hq: 2, Sq: 100, Sk: 100})
	require.NoError(t, op.Forward(attention.OnStream(own), a.Args))
	require.NoError(t, own.Wait(background(t)))
	cycles := 1000
	if testing.Short() {
		cycles = 100
	}
	flat(t, cycles, func(int) {
		s, err := c.dev.NewStream("")
		require.NoError(t, err)
		require.NoError(t, op.Backward(attention.OnStream(s), a))
		require.NoError(t, s.Close())
	})
}

// The PTX of the backward kernels is compiled by the driver where there is no cubin.
func TestGPUBackwardCompilesPTX(t *testing.T) {
	c := needGPU(t)
	c.info.Major, c.info.Minor = 8, 6 // as if
	s := newVulkanStream(t, c)
	b, err := cases.NewBackward(cases.Case{Name: "ptx", D: 40, Dv: 24, Shape: attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 70, Sk: 100},
		Causal: attention.BottomRight}, attention.BF16)
	require.NoError(t, err)
	for _, kernel := range []string{"fa2", "ref"} {
		require.NoError(t, b.BackwardJudge(gradientsByCUDA(t, c, s, kernel, b, b.Image)))
	}
}
