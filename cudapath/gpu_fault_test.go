//go:build !windows

package cudapath

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/vk"
)

const faultEnv = "VKATTN_TEST_CUDA_FAULT"

// TestGPUFault: a kernel that goes wrong takes CUDA from the process, so it runs in
// one of its own. Nothing may hang, and every call says what happened.
func TestGPUFault(t *testing.T) {
	needGPU(t)
	for _, how := range []string{"wait", "batch", "close"} {
		t.Run(how, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestGPUFaultChild$", "-test.v", "-test.timeout=40s")
			cmd.Env = append(os.Environ(), faultEnv+"="+how)
			start := time.Now()
			text, err := cmd.CombinedOutput()
			t.Logf("%v: %s", time.Since(start), text)
			require.NoError(t, err)
		})
	}
}

func TestGPUFaultChild(t *testing.T) {
	how := os.Getenv(faultEnv)
	if how == "" {
		t.Skip("a process of TestGPUFault")
	}
	r := newRival(t, attention.Shape{B: 1, Hq: 1, Sq: 64, Sk: 64})
	s := r.vulkan
	b := newBuffer(t, r.c, 4096)
	faulty := func() {
		var v invocation
		require.NoError(t, r.kernel.bind(&v, &r.call))
		v.params.lse = 1 << 62 // nothing is there
		cs, err := r.c.Turn(s, v.held[:v.n]...)
		require.NoError(t, err)
		require.NoError(t, r.kernel.launch(cs, &v))
	}
	faulty()
	switch how {
	case "wait":
		err := s.Wait(background(t))
		require.ErrorIs(t, err, vk.ErrDeviceLost)
		t.Log(err)
	case "batch": // Vulkan waits for what never comes, twice
		require.NoError(t, s.Fill(vk.BufferRange{Buffer: b}, 1))
		_, err := s.Submit()
		if err == nil {
			if _, err = r.c.Turn(s); err == nil {
				require.NoError(t, s.Fill(vk.BufferRange{Buffer: b}, 1))
			}
			err = s.Wait(background(t))
		}
		require.ErrorIs(t, err, vk.ErrDeviceLost)
	case "close":
		_, _ = s.Submit()
		require.NoError(t, r.c.dev.Close())
		return
	}
	require.ErrorIs(t, s.Wait(background(t)), vk.ErrDeviceLost, "it stays so")
	require.ErrorIs(t, r.op.Forward(attention.OnStream(s), r.args), vk.ErrDeviceLost)
	_, err := r.c.Alloc(4096)
	require.ErrorIs(t, err, vk.ErrDeviceLost)
	// Vulkan itself is well.
	other, err := r.c.dev.NewStream("other")
	require.NoError(t, err)
	require.NoError(t, other.Fill(vk.BufferRange{Buffer: b}, 3))
	got := make([]byte, 4)
	require.NoError(t, other.Download(background(t), got, b, 0))
	require.Equal(t, byte(3), got[0])
	require.NoError(t, other.Close())
}
