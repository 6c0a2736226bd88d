package attention

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/plan"
	"vkattn/vk"
)

func TestStatisticsOfDrivers(t *testing.T) {
	for name, c := range map[string]struct {
		list []vk.Statistic
		want compilerStats
	}{
		"nothing": {nil, compilerStats{}},
		// As driver 580.159 reports a kernel that declares 38928 bytes of shared memory, and one that spills nothing.
		"NVIDIA": {[]vk.Statistic{{Name: "Register Count", Value: 255}, {Name: "Binary Size", Value: 117504}, {Name: "Stack Size", Value: 0},
			{Name: "Local Memory Size", Value: 0x1000000000 + 192}, {Name: "Shared Memory Size", Value: 48144}},
			compilerStats{registers: 255, spills: 192 + 36, inShared: 36}},
		"NVIDIA, no spills": {[]vk.Statistic{{Name: "Register Count", Value: 225}, {Name: "Binary Size", Value: 91264}, {Name: "Stack Size", Value: 0},
			{Name: "Local Memory Size", Value: 0x1000000000}, {Name: "Shared Memory Size", Value: 38928}},
			compilerStats{registers: 225}},
		"NVIDIA, an older driver": {[]vk.Statistic{{Name: "Register Count", Value: 255}, {Name: "Local Memory Size", Value: 208}},
			compilerStats{registers: 255, spills: 208}},
		"RADV": {[]vk.Statistic{{Name: "SGPRs", Value: 108}, {Name: "VGPRs", Value: 192}, {Name: "Spilled SGPRs", Value: 3},
			{Name: "Spilled VGPRs", Value: 252, Description: "Number of VGPR registers spilled per subgroup"},
			{Name: "LDS size", Value: 32768}, {Name: "Scratch size", Value: 64640, Description: "Private memory in bytes per subgroup"}, {Name: "Subgroups per SIMD", Value: 4}},
			compilerStats{registers: 192, spills: 1010}},
		"ANV": {[]vk.Statistic{{Name: "Instruction Count", Value: 900}, {Name: "Spill count", Value: 0}, {Name: "Fill count", Value: 0}, {Name: "Scratch Memory Size", Value: 0}},
			compilerStats{}},
		// As Mesa 26.2.6 reports them.
		"NVK": {[]vk.Statistic{{Name: "Max warps/SM", Value: 8}, {Name: "Spills to memory", Value: 12}, {Name: "Fills from memory", Value: 14},
			{Name: "Spills to reg", Value: 3}, {Name: "Fills from reg", Value: 3}, {Name: "Number of GPRs", Value: 255}, {Name: "SLM size", Value: 48}},
			compilerStats{registers: 255, spills: 48}},
		"Turnip": {[]vk.Statistic{{Name: "Max Waves Per Core", Value: 16}, {Name: "Registers used", Value: 48}, {Name: "Half-registers used", Value: 8},
			{Name: "STP Count", Value: 10}, {Name: "LDP Count", Value: 30}},
			compilerStats{registers: 192, spills: 120}},
		"Honeykrisp": {[]vk.Statistic{{Name: "GPRs", Value: 255}, {Name: "Uniforms", Value: 24}, {Name: "Scratch", Value: 64}, {Name: "Threads", Value: 384},
			{Name: "Spills", Value: 8}, {Name: "Fills", Value: 9}},
			compilerStats{registers: 128, spills: 64}},
	} {
		require.Equal(t, c.want, readStats(c.list, 38928, 256, 64), name)
	}
}

func TestSpillsAreDroppedWhereOthersHaveNone(t *testing.T) {
	make := func(registers, spills int) *candidate {
		return &candidate{stats: compilerStats{registers: registers, spills: spills}}
	}
	heuristic, clean, few, many, silent := make(255, 4000), make(200, 0), make(255, plan.SpillSlack), make(255, plan.SpillSlack+4), make(0, 0)
	out := dropSpills([]*candidate{heuristic, clean, few, many, silent})
	require.Len(t, out, 1)
	require.Contains(t, out[many], "260 bytes")
	require.Empty(t, dropSpills([]*candidate{heuristic, few, many, silent}), "no candidate is known to spill less")
}

func TestResultsOfTwoTilesAgree(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		t    DType
		x, y float32
		same bool
	}{
		{F32, 1, 1.0001, true}, {F32, 1, 1.01, false}, {F16, 1, 1.01, true}, {F16, 1, 0.9, false}, {F16, 100, 101, true},
		{BF16, 0, 0.05, true}, {BF16, 0, -0.1, false}, {F16, 0, nan, false}, {F16, nan, 0, false}, {F16, nan, nan, false},
	} {
		err := agree(c.t, []float32{0, c.x}, []float32{0, c.y})
		if c.same {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "element 1", "%v", c)
		}
	}
}
