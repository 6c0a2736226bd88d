package attention

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/vk"
)

// What an H200 answers, driver 580.159: the first lanes of A and of B.
var h200FragmentOrder = [2][]uint32{
	{
		0, 1, 8, 9, 128, 129, 136, 137, 2, 3, 10, 11, 130, 131, 138, 139,
		4, 5, 12, 13, 132, 133, 140, 141, 6, 7, 14, 15, 134, 135, 142, 143,
		16, 17, 24, 25, 144, 145, 152, 153, 18, 19, 26, 27, 146, 147, 154, 155,
	},
	{
		0, 16, 128, 144, 8, 24, 136, 152, 32, 48, 160, 176, 40, 56, 168, 184,
		64, 80, 192, 208, 72, 88, 200, 216, 96, 112, 224, 240, 104, 120, 232, 248,
		1, 17, 129, 145, 9, 25, 137, 153, 33, 49, 161, 177, 41, 57, 169, 185,
	},
}

func TestFragmentOrder(t *testing.T) {
	var answer []uint32
	for lane := range uint32(32) {
		g, q := lane/4*16, lane%4*2
		answer = append(answer, g+q, g+q+1, g+q+8, g+q+9, g+q+128, g+q+129, g+q+136, g+q+137)
	}
	for lane := range uint32(32) {
		g, q := lane/4, lane%4*32
		answer = append(answer, q+g, q+16+g, q+128+g, q+144+g, q+g+8, q+24+g, q+136+g, q+152+g)
	}
	assert.Equal(t, h200FragmentOrder[0], answer[:48])
	assert.Equal(t, h200FragmentOrder[1], answer[256:256+48])
	wide := slices.Concat(answer, answer[256:], answer[:256])
	for lane := range uint32(32) {
		g, q := lane/4, lane%4*32
		answer = append(answer, q+g, q+16+g, q+128+g, q+144+g)
	}
	answer = append(answer, answer[:256]...)
	for sumN, answer := range map[uint32][]uint32{8: answer, 16: wide} {
		assert.True(t, isFragmentOrder(answer, sumN))
		assert.False(t, isFragmentOrder(answer, 24-sumN))
		assert.False(t, isFragmentOrder(answer[:len(answer)-1], sumN))
		assert.False(t, isFragmentOrder(make([]uint32, len(answer)), sumN))
		for i := range answer {
			other := slices.Clone(answer)
			other[i] ^= 1
			require.False(t, isFragmentOrder(other, sumN), "element %d", i)
		}
	}
}

// On a GPU whose fragments have the size, every element is found once, whatever the
// order; a driver on the CPU is not asked.
func TestProbeFragments(t *testing.T) {
	switch name := os.Getenv("VKATTN_DRIVER"); {
	case name == "", name == "none":
		t.Skip("no Vulkan driver under test (VKATTN_DRIVER)")
	case strings.HasPrefix(name, "radv-"):
		t.Skip("a null device answers nothing")
	}
	dev, err := vk.Open(vk.Options{PipelineCache: "off", Validation: os.Getenv("VKATTN_VALIDATION") == "1"})
	require.NoError(t, err)
	defer func() {
		require.NoError(t, dev.Close())
		require.Empty(t, dev.ValidationMessages())
	}()
	for _, dt := range []DType{F16, BF16} {
		f, reason := pickFragment(dev.Caps(), TierCoopMat, dt)
		if reason != "" || f.m != directSize || f.n != directSize || f.subgroup != directLanes || dev.Info().Type == vk.DeviceCPU {
			continue
		}
		answer, err := probeFragments(dev, dt, f.sumN)
		require.NoError(t, err)
		for _, half := range [][]uint32{answer[:256], answer[256:512]} {
			sorted := slices.Sorted(slices.Values(half))
			for i, x := range sorted {
				require.EqualValues(t, i, x, "%v", dt)
			}
		}
		t.Logf("%v: accumulator %v", dt, answer[len(answer)-256:][:48])
		known := fragmentsOrdered(dev, dt, f.sumN)
		t.Logf("%v, %d rows of O, on %s: the order the kernel knows: %v", dt, f.sumN, dev.Info().Name, known)
		assert.Equal(t, isFragmentOrder(answer, f.sumN), known)
	}
}
