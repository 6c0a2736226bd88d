//go:build !windows

package cudapath

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/testlevel"
)

// The fa3 backward kernels, run by the CPU with mbarriers, TMA and wgmma emulated, give the
// gradients of float64, the same bits for both orders of the threads, and the same bits if
// Inf and NaN are in rows and keys that do not matter. The emulation finds a barrier that
// nobody arrives at, but not an access that comes too early. Above head dim 128 dS of a launch has so few bytes that
// a call takes several.
func TestFA3BackwardKernelsOnTheCPU(t *testing.T) {
	testlevel.HostOnly(t)
	for _, variant := range []struct {
		name, dim, valueDim, bf16 string
		brief                     []string // cases of a brief run: 3 is causal, 4 is not
	}{
		{"f16 d64", "64", "64", "0", []string{"3", "4"}}, {"f16 d128", "128", "128", "0", nil}, {"bf16 d64", "64", "64", "1", nil}, {"bf16 d128", "128", "128", "1", nil},
		{"f16 d192x128", "192", "128", "0", []string{"3"}}, {"bf16 d192", "192", "192", "1", nil}, {"f16 d256", "256", "256", "0", nil},
	} {
		t.Run(variant.name, func(t *testing.T) {
			arguments := []string{}
			if !testlevel.IsExhaustive() {
				if variant.brief == nil {
					t.Skip("in make test-full")
				}
				arguments = variant.brief
			}
			kernels := emulation{kernel: "fa3_backward.cu", folder: "sm90"}
			dir := kernels.sources(t)
			program := filepath.Join(dir, "emulate")
			kernels.compile(t, dir, program, "-DATTN_D="+variant.dim, "-DATTN_DV="+variant.valueDim, "-DATTN_BF16="+variant.bf16, fmt.Sprintf("-DFA3_BACKWARD_DS=%d", emulatedDS))
			text, err := exec.Command(program, arguments...).CombinedOutput()
			t.Logf("%s", text)
			require.NoError(t, err)
		})
	}
}
