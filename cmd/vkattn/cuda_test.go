//go:build cgo && !windows

package main

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/verify"
	"vkattn/cudapath"
)

// The command lists a CUDA device without Vulkan and computes on it. The driver is that of the tests of package cudapath,
// whose kernels add 1 to the first word of Q: run writes that, and verify finds it wrong.
func TestCommandsOnCUDAWithoutVulkan(t *testing.T) {
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("no compiler for the fake driver: %v", err)
	}
	dir := t.TempDir()
	lib := filepath.Join(dir, "libfakecuda.so")
	text, err := exec.Command(compiler, "-shared", "-fPIC", "-pthread", "-o", lib, "../../cudapath/testdata/fakecuda.c", "-lm").CombinedOutput()
	require.NoError(t, err, "%s", text)
	t.Setenv(cudapath.LibraryEnv, lib)

	stdout, _ := succeeds(t, "info", "--json")
	m := decoded[machine](t, stdout)
	require.Len(t, m.CUDA, 1)
	require.Contains(t, m.CUDA[0].Device, "fake (compute capability 9.0")
	stdout, _ = succeeds(t, "info")
	require.Contains(t, stdout, "\ncuda:0: fake (compute capability 9.0")

	problem := []string{"--headdim", "64", "--seqlen", "20", "--dtype", "f16", "--batch-size", "1", "--nheads", "1", "--causal", "none"}
	code, stdout, _ := call(append([]string{"verify", "--device", "cuda:0", "-o", "json"}, problem...)...)
	require.Equal(t, exitFailure, code)
	who := map[string]string{}
	for _, r := range documentRows[verify.Row](t, stdout) {
		require.Equal(t, "fake", r.Device)
		who[r.Who] = r.Entry
	}
	require.Contains(t, who["cuda fa3"], "attn_fa3_f16_d64_full")
	require.Contains(t, who, "cpu")

	q := make([]byte, 2*20*64)
	binary.LittleEndian.PutUint32(q, 0x3c003c00) // two ones
	files := []string{"run", "--device", "cuda"}
	for _, name := range []string{"q", "k", "v"} {
		path := filepath.Join(dir, name+".npy")
		require.NoError(t, os.WriteFile(path, npyBytes("<f2", false, []int{1, 1, 20, 64}, q), 0o600))
		files = append(files, "--"+name, path)
	}
	out := filepath.Join(dir, "o.npy")
	stdout, _ = succeeds(t, append(files, "--o", out)...)
	require.Contains(t, stdout, "tier cuda (attn_fa3_f16_d64_full")
	require.Contains(t, stdout, "fake\n")
	o := readFloats(t, out, []int{1, 1, 20, 64})
	require.Equal(t, []float32{1 + 1./1024, 1}, o[:2])

	t.Setenv("FAKECUDA_ATTENTION", "1")
	sizes := []string{"--headdim", "64", "--seqlen", "20", "--dtype", "f32", "--batch-size", "1", "--nheads", "2", "--causal", "none,bottom-right",
		"--repetitions", "2", "--warmup", "1ms", "-o", "json"}
	for _, device := range [][]string{{"--device", "cuda"}, {}, {"--tier", "all"}} { // without Vulkan auto takes it
		if len(device) == 0 && os.Getenv("VKATTN_DRIVER") != "none" {
			break
		}
		stdout, stderr := succeeds(t, slices.Concat([]string{"bench"}, device, sizes)...)
		rows := documentRows[bench.Row](t, stdout)
		require.Len(t, rows, 2)
		for _, r := range rows {
			require.Equal(t, "fake", r.Device)
			require.Equal(t, "cuda", r.Tier)
			require.Positive(t, r.TFLOPs)
		}
		require.Equal(t, !slices.Contains(device, "cuda"), strings.Contains(stderr, "computing on CUDA, fake"))
	}
	stdout, _ = succeeds(t, slices.Concat([]string{"bench", "--device", "cuda", "--against", "cuda-ref,plain,copy"}, sizes)...)
	require.Len(t, documentRows[bench.Row](t, stdout), 4, "only cuda-ref applies")

	refused(t, exitUnsupported, "tier scalar does not run on --device cuda", append(files, "--o", out, "--tier", "scalar")...)
	refused(t, exitUnsupported, "its forward kernels take no fixed splits", append(files, "--o", out, "--fixed-split", "2")...)
	refused(t, exitInput, "--device cuda:7: ", append(files[:2:2], append([]string{"cuda:7", "--o", out}, files[3:]...)...)...)
}
