package plan

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/attention/problem"
	"vkattn/vk"
)

// The answer of an H200 with driver 580.159, for the first lanes of A and of B.
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

// testDevice opens the driver under test.
func testDevice(t *testing.T) *vk.Device {
	t.Helper()
	if name := os.Getenv("VKATTN_DRIVER"); name == "" || name == "none" {
		t.Skip("no Vulkan driver under test (VKATTN_DRIVER)")
	}
	dev, err := vk.Open(vk.Options{PipelineCache: "off", Validation: os.Getenv("VKATTN_VALIDATION") == "1"})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, dev.Close())
		require.Empty(t, dev.ValidationMessages())
	})
	return dev
}

// On a GPU whose fragments have the kernel's size, every element is found exactly once, in
// any order. A driver on the CPU is not asked. NVIDIA's order must be the one that the
// kernel assumes: with another order decode would be slow there, and no other test would
// fail.
func TestProbeFragments(t *testing.T) {
	if strings.HasPrefix(os.Getenv("VKATTN_DRIVER"), "radv-") {
		t.Skip("a null device answers nothing")
	}
	const vendorNVIDIA = 0x10de
	dev := testDevice(t)
	for _, dt := range []problem.DType{problem.F16, problem.BF16} {
		f, reason := pickFragment(dev.Caps(), problem.TierCoopMat, dt)
		if reason != "" || dev.Info().Type == vk.DeviceCPU {
			continue
		}
		nvidia := dev.Info().VendorID == vendorNVIDIA && strings.Contains(dev.Info().DriverName, "NVIDIA")
		if f.M != decodeFragment || f.N != decodeFragment || f.Subgroup != decodeLanes {
			require.False(t, nvidia, "%v fragments of %+v", dt, f)
			continue
		}
		answer, err := probeFragments(dev, dt, f)
		require.NoError(t, err)
		for _, half := range [][]uint32{answer[:256], answer[256:512]} {
			sorted := slices.Sorted(slices.Values(half))
			for i, x := range sorted {
				require.EqualValues(t, i, x, "%v", dt)
			}
		}
		unknown := fragmentsUnordered(dev, dt, f)
		t.Logf("%v on %s: %s", dt, dev.Info().Name, cmp.Or(unknown, "the order the kernel knows"))
		assert.Equal(t, isFragmentOrder(answer, f.SumN), unknown == "")
		if nvidia {
			require.Empty(t, unknown, "%v: %v", dt, answer)
		}
	}
}
