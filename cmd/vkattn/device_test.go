//go:build !windows

package main

import (
	"bytes"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

// fakeLoader compiles the Vulkan loader of fake devices, see vk/testdata/fake_devices.c.
func fakeLoader(t *testing.T) string {
	t.Helper()
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("no C compiler: %v", err)
	}
	file := filepath.Join(t.TempDir(), "loader.so")
	text, err := exec.Command(compiler, "-shared", "-fPIC", "-O1", "-o", file, filepath.FromSlash("../../vk/testdata/fake_devices.c")).CombinedOutput()
	require.NoError(t, err, "%s", text)
	return file
}

// onFakes runs the command in a process of its own on fake devices.
func onFakes(t *testing.T, loader, environment string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := command(t, args...)
	cmd.Env = append(cmd.Env, "VKATTN_LIBVULKAN="+loader, "VKATTN_LIBCUDA=off", "VKATTN_CACHE_DIR="+t.TempDir(), environment)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// Drivers without a device, as radeon's without /dev/dri, and a device that does not open.
func TestTheCommandComputesOnTheCPUWhenDevicesFail(t *testing.T) {
	loader := fakeLoader(t)
	_, run := goodFiles(t)
	run = with(run, "--device", "auto")
	for environment, want := range map[string]string{
		"FAKE_ENUMERATE=-3":                              "vkEnumeratePhysicalDevices: VK_ERROR_INITIALIZATION_FAILED",
		"FAKE_DEVICES=2 create 32 32 32; 1 extensions":   "fake 0",
		"FAKE_DEVICES=4 extensions; 1 create 32 32 32":   "(vkCreateDevice: VK_ERROR_INITIALIZATION_FAILED)",
		"FAKE_DEVICES=1 create 32 32 32; 4 create 8 8 8": "VK_ERROR_INITIALIZATION_FAILED",
	} {
		for name, args := range map[string][]string{"run": run, "bench": tiny("-o", "jsonl"), "verify": tinyVerify("-o", "jsonl")} {
			code, stdout, stderr := onFakes(t, loader, environment, args...)
			require.Equal(t, exitOK, code, "%s %s: %s", environment, name, stderr)
			first, _, _ := strings.Cut(stderr, "\n")
			require.True(t, strings.HasPrefix(first, "vkattn: "), first)
			require.Contains(t, first, want)
			require.True(t, strings.HasSuffix(first, "; computing on the CPU"), first)
			if name != "run" {
				require.Contains(t, stdout, `"cpu"`)
			}
		}
		code, _, stderr := onFakes(t, loader, environment, tiny("--tier", "scalar")...)
		require.Equal(t, exitUnsupported, code, stderr)
		require.Contains(t, stderr, "tier scalar needs a Vulkan device")
	}
}

func TestInfoListsDevicesThatFail(t *testing.T) {
	code, stdout, stderr := onFakes(t, fakeLoader(t), "FAKE_DEVICES=2 extensions; 4 nothing 8 8 32", "info")
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stdout, "0: fake 0 (discrete)\n   not usable: vkEnumerateDeviceExtensionProperties: VK_ERROR_INITIALIZATION_FAILED\n\n1: fake 1 (cpu)\n")
}

func TestADeviceThatFailsIsPassedOverWithALine(t *testing.T) {
	loader := fakeLoader(t)
	const devices = "FAKE_DEVICES=2 create 32 32 32; 2 extensions; 1 nothing 32 32 32"
	_, _, stderr := onFakes(t, loader, devices, "tune", "--compile-only", "--seqlen", "16", "--headdim", "8")
	require.Contains(t, stderr, "vkattn: device 0 (fake 0) is passed over: vkCreateDevice: VK_ERROR_INITIALIZATION_FAILED\n"+
		"vkattn: device 1 (fake 1) is passed over: vkEnumerateDeviceExtensionProperties: VK_ERROR_INITIALIZATION_FAILED\n")
	code, _, stderr := onFakes(t, loader, devices, "tune", "--list", "--device", "fake 2")
	require.Equal(t, exitOK, code, stderr)
	require.Empty(t, stderr)
	for _, name := range []string{"0", "fake 1"} {
		code, _, stderr = onFakes(t, loader, devices, "tune", "--list", "--device", name)
		require.Equal(t, exitDevice, code, stderr)
		require.Contains(t, stderr, "VK_ERROR_INITIALIZATION_FAILED: fake ")
	}
}

// Tier cpu is 15 to 46 times as fast as lavapipe (B1 H4 S512 D64, two cores).
func TestDriversOfTheCPUComeAfterTierCPU(t *testing.T) {
	loader := fakeLoader(t)
	for _, c := range []struct {
		device string
		note   bool
		args   []string
	}{
		{"cpu", true, tiny()},
		{"cpu", true, tiny("--tier", "auto")},
		{"cpu", true, tiny("--tier", "auto,cpu")},
		{"cpu", false, tinyVerify("--tier", "cpu")},
		{"fake 0", false, tiny("--tier", "scalar")},
		{"fake 0", false, tiny("--tier", "cpu,scalar")},
		{"fake 0", false, tiny("--tier", "all")},
		{"fake 0", false, tiny("--device", "fake 0")},
		{"fake 0", false, tiny("--device", "0")},
		{"fake 0", false, tinyVerify()},
	} {
		_, stdout, stderr := onFakes(t, loader, "FAKE_DEVICES=4 nothing 8 8 32", append(c.args, "-o", "json")...)
		require.Contains(t, stdout, `"name": "`+c.device+`"`, "%v: %s", c.args, stderr)
		require.Equal(t, c.note, strings.Contains(stderr, "(a driver of the CPU); computing on the CPU\n"), stderr)
	}
}

// Ranks choose as one process does: the best GPUs first, the CPU without any.
func TestRanksChooseDevicesInTheSameOrder(t *testing.T) {
	loader := fakeLoader(t)
	args := []string{"bench", "--parallel", "ring", "--nheads", "4", "--seqlen", "60", "--headdim", "16", "--causal", "none", "--dtype", "f32", "-r", "1", "-o", "json"}
	for _, c := range []struct {
		environment, ranks, device string
	}{
		{"FAKE_ENUMERATE=-3", "2", "cpu"},
		{"FAKE_DEVICES=4 nothing 8 8 32", "2", "cpu"},
		{"FAKE_DEVICES=1 nothing 32 32 32; 2 nothing 32 32 32", "1", "fake 1"},
	} {
		_, stdout, stderr := onFakes(t, loader, c.environment, append(args, "--ranks", c.ranks)...)
		require.Contains(t, stdout, `"name": "`+c.device+`"`, stderr)
	}
}

func TestNeedsOfTiers(t *testing.T) {
	const auto, cpu, scalar, coopmat = attention.TierAuto, attention.TierCPU, attention.TierScalar, attention.TierCoopMat
	for _, c := range []struct {
		tiers []attention.Tier
		all   bool
		want  need
	}{
		{nil, false, needAny}, {nil, true, needTiers},
		{[]attention.Tier{auto}, true, needAny}, {[]attention.Tier{cpu}, true, needCPU}, {[]attention.Tier{scalar}, true, needVulkan},
		{[]attention.Tier{cpu, auto}, false, needAny}, {[]attention.Tier{cpu, cpu}, false, needCPU},
		{[]attention.Tier{auto, coopmat}, false, needTiers}, {[]attention.Tier{scalar, cpu}, false, needTiers}, {[]attention.Tier{scalar, coopmat}, false, needTiers},
	} {
		require.Equal(t, c.want, needOfTiers(c.tiers, c.all), c.tiers)
	}
}
