//go:build cgo

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	vulkan "github.com/goki/vulkan"
	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// The example computes the right thing on whatever driver is under test, on each tier that the driver has, and
// says that there is none where there is none. The validation layers have nothing to say.
func TestExampleRuns(t *testing.T) {
	name := os.Getenv("VKATTN_DRIVER")
	if testdevice.Null() {
		t.Skip("a null device computes nothing")
	}
	devices, err := vk.Devices()
	if name == "none" || name == "" && err != nil {
		require.ErrorIs(t, err, vk.ErrNoDevice)
		require.ErrorIs(t, run(new(strings.Builder), attention.TierAuto), vk.ErrNoDevice)
		return
	}
	require.NoError(t, err)
	var best attention.Tier
	for _, status := range attention.TierReportOf(&devices[0]) {
		if status.DType != config.DType || status.Tier != attention.TierScalar && status.Tier != attention.TierCoopMat && status.Tier != attention.TierCoopMat2 {
			continue
		}
		if status.Available && best == attention.TierAuto {
			best = status.Tier
		}
		t.Run(status.Tier.String(), func(t *testing.T) {
			var out strings.Builder
			log := validate(t, status.Tier)
			err := run(&out, status.Tier)
			t.Log(out.String())
			if !status.Available {
				require.ErrorIs(t, err, vk.ErrUnsupported)
				require.Contains(t, out.String(), "not supported")
				return
			}
			require.NoError(t, err)
			require.Contains(t, out.String(), "tier "+status.Tier.String())
			found := regexp.MustCompile(`(\w+) differs .* at most (\S+)\n`).FindAllStringSubmatch(out.String(), -1)
			require.Len(t, found, 4, "O, dQ, dK, dV")
			for _, m := range found {
				var worst float64
				_, err = fmt.Sscan(m[2], &worst)
				require.NoError(t, err)
				require.Less(t, worst, map[bool]float64{true: 1e-3, false: 4e-3}[m[1] == "O"], m[1])
			}
			require.Empty(t, log())
		})
	}
	c := config
	_, err = choose(new(strings.Builder), &devices[0], attention.TierAuto, &c)
	require.NoError(t, err)
	require.Equal(t, best, c.Tier)
}

// validate loads the validation layers into instances to come, and returns what they have said by then. On
// tier scalar synchronization validation looks at the descriptors of kernels too. It takes each binding that a
// kernel could write for one that it writes, which is not so on other tiers.
func validate(t *testing.T, tier attention.Tier) (log func() string) {
	t.Helper()
	_, err := os.Stat(filepath.Join(os.Getenv("VK_LAYER_PATH"), "VkLayer_khronos_validation.json"))
	if os.Getenv("VK_LAYER_PATH") == "" || errors.Is(err, os.ErrNotExist) {
		return func() string { return "" }
	}
	file, settings := filepath.Join(t.TempDir(), "messages"), filepath.Join(t.TempDir(), "settings")
	require.NoError(t, os.WriteFile(settings, fmt.Appendf(nil, `khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.log_filename = %s
khronos_validation.report_flags = error,warn
khronos_validation.validate_sync = true
khronos_validation.syncval_shader_accesses_heuristic = %v
`, file, tier == attention.TierScalar), 0o600))
	t.Setenv("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation")
	t.Setenv("VK_LAYER_SETTINGS_PATH", settings)
	return func() string {
		text, err := os.ReadFile(file)
		require.NoError(t, err, "the layers were not there")
		return string(text)
	}
}

// The layers of validate are heard.
func TestValidationIsHeard(t *testing.T) {
	if os.Getenv("VK_LAYER_PATH") == "" {
		t.Skip("no validation layers")
	}
	log := validate(t, attention.TierScalar)
	need, err := attention.Requirements(attention.TierScalar, config)
	require.NoError(t, err)
	own, err := openOwn(&need, apiVersion)
	require.NoError(t, err)
	var buffer vulkan.Buffer // of size 0
	vulkan.CreateBuffer(own.device, &vulkan.BufferCreateInfo{
		SType: vulkan.StructureTypeBufferCreateInfo, Usage: vulkan.BufferUsageFlags(vulkan.BufferUsageStorageBufferBit),
	}, nil, &buffer)
	vulkan.DestroyBuffer(own.device, buffer, nil)
	own.close()
	require.Contains(t, log(), "VUID-VkBufferCreateInfo-size-00912")
}
