//go:build !cgo

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A build without Vulkan computes on the CPU, and says why in one line.
func TestABuildWithoutVulkanComputesOnTheCPU(t *testing.T) {
	stdout, stderr := succeeds(t, "bench", "--seqlen", "33", "--headdim", "16", "--nheads", "1", "--batch-size", "1", "--warmup", "1ms", "-o", "jsonl")
	require.Contains(t, stdout, `"tier":"cpu"`)
	first, rest, _ := strings.Cut(stderr, "\n")
	require.Contains(t, first, "this build has no Vulkan")
	require.True(t, strings.HasSuffix(first, "; computing on the CPU"), first)
	require.NotContains(t, rest, "Vulkan")
	stdout, _ = succeeds(t, "info")
	require.Contains(t, stdout, "no Vulkan device: ")
}
