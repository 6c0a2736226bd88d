package plan

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"vkattn/internal/problem"
	"vkattn/internal/testdevice"
	"vkattn/shaders"
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

// The run of an accumulator's elements in one row, by the answers of drivers and by others.
func TestRowRun(t *testing.T) {
	answer := func(lanes, each uint32, element func(lane, e uint32) uint32) (list []uint32) {
		for lane := range lanes {
			for e := range each {
				list = append(list, element(lane, e))
			}
		}
		return list
	}
	nvidia := func(lane, e uint32) uint32 { return (lane/4+e/4*8)*16 + lane%4*2 + e%2 + e/2%2*8 }
	wide, narrow := fragment{M: 16, N: 16, K: 16, Subgroup: 32}, fragment{M: 8, N: 8, K: 8, Subgroup: 8}
	for name, c := range map[string]struct {
		of   fragment
		each uint32
		at   func(lane, e uint32) uint32
		run  uint32
	}{
		"NVIDIA":                 {wide, 8, nvidia, 4},
		"pairs":                  {wide, 8, func(lane, e uint32) uint32 { return (lane/4+e/2%2*8)*16 + lane%4*2 + e%2 + e/4*8 }, 2},
		"a column a lane":        {narrow, 8, func(lane, e uint32) uint32 { return 8*e + lane }, 1}, // lavapipe
		"a row a lane":           {narrow, 8, func(lane, e uint32) uint32 { return 8*lane + e }, 8},
		"half a row a lane":      {wide, 8, func(lane, e uint32) uint32 { return 8*lane + e }, 8},
		"one lane differs":       {wide, 8, func(lane, e uint32) uint32 { return nvidia(lane, (e+lane/31)%8) }, 1},
		"no answer":              {wide, 8, func(lane, e uint32) uint32 { return 0 }, 0},
		"an element twice":       {wide, 8, func(lane, e uint32) uint32 { return max(1, nvidia(lane, e)) }, 0},
		"elements that are none": {wide, 8, func(lane, e uint32) uint32 { return 1 + nvidia(lane, e) }, 0},
	} {
		require.Equal(t, c.run, rowRun(answer(c.of.Subgroup, c.each, c.at), c.of), name)
	}
	require.Zero(t, rowElements(nil, problem.F16, fragment{M: 32, N: 32, K: 32, Subgroup: 32}), "larger than what is asked for")
	require.Zero(t, rowElements(nil, problem.F16, fragment{M: 16, N: 8, K: 8, Subgroup: 32}), "not square")
}

// Only calls that need a float32 row sum ask the device, and the tile's estimate of registers
// has its sums.
func TestRowSumsOfVariants(t *testing.T) {
	tile := coopmatTile{fragment: fragment{16, 16, 16, 8, 32}, Subgroups: 8, MFrags: 2, KVTile: 32, KVStep: 16, QSmemChunks: 2, DvSlice: 128}
	v := Variant{module: "coopmat2_f16_ssbo", headDim: 128, headDimV: 128, Tile: tile}
	v.askDevice(nil) // a device would be asked
	require.Zero(t, v.constants()[shaders.ConstRowElements])
	without := tile.registers(&v)
	v.lse = true
	require.Equal(t, without+16, tile.registers(&v), "two fragments")
	v.rowRun = 4
	require.Equal(t, without+4, tile.registers(&v))
	require.EqualValues(t, 4, v.constants()[shaders.ConstRowElements])
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
	if testdevice.Null() {
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
			require.EqualValues(t, 4, rowElements(dev, dt, f), "%v: %v", dt, answer)
		}
	}
}

// lavapipe's lanes hold columns, so that its runs are single elements. It must run the sums of
// lanes all the same: no other driver without a GPU does.
func TestRowElementsOfTheDevice(t *testing.T) {
	dev := testDevice(t)
	for _, tier := range []problem.Tier{problem.TierCoopMat, problem.TierCoopMat2} {
		f, reason := pickFragment(dev.Caps(), tier, problem.F16)
		if reason != "" {
			continue
		}
		n := rowElements(dev, problem.F16, f)
		t.Logf("%v on %s: %d elements", tier, dev.Info().Name, n)
		if os.Getenv("VKATTN_DRIVER") == "lavapipe" {
			require.EqualValues(t, 1, n)
		}
		p, err := Make(dev, problem.Config{HeadDim: 64, Tier: tier}, Request{Shape: problem.Shape{B: 1, Hq: 1, Sq: 128, Sk: 128},
			Align: [4]uint32{8, 8, 8, 8}, Access: problem.AccessDescriptors, LSE: true}, nil)
		require.NoError(t, err)
		require.Equal(t, n, p.Variant.rowRun)
	}
}
