package main

import (
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cudapath"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// few are options of a run of seconds.
var few = options{batch: 2, steps: 20, seed: 1, rate: 3e-3, dtype: attention.F32}

// The loss falls on whatever driver is under test, and on the CPU where there is none, and
// the gradients are right.
func TestTrainingLowersTheLoss(t *testing.T) {
	driver := os.Getenv("VKATTN_DRIVER")
	if testdevice.Null() {
		t.Skip("a null device computes nothing")
	}
	o, out := few, &strings.Builder{}
	o.check = true
	if driver != "" && driver != "none" && driver != "native" {
		o.tier = attention.TierScalar // auto takes the CPU tier in place of a driver of the CPU
	}
	losses, err := run(out, o)
	require.NoError(t, err, out)
	t.Log(out)
	require.Len(t, losses, o.steps)
	require.Less(t, losses[o.steps-1], losses[0]-0.5)
	require.Equal(t, 20+layers, strings.Count(out.String(), "check: "))
	if driver != "" {
		require.Equal(t, driver == "none", strings.Contains(out.String(), "backward: tier cpu"), out)
	}
}

// A seed gives the same losses in every run, whatever the number of CPUs.
func TestLossesAreThoseOfTheSeed(t *testing.T) {
	train := func(cpus int, seed uint64) []float64 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cpus))
		o := few
		o.tier, o.steps, o.seed = attention.TierCPU, 3, seed
		losses, err := run(io.Discard, o)
		require.NoError(t, err)
		return losses
	}
	losses := train(1, 1)
	require.Equal(t, losses, train(3, 1))
	require.NotEqual(t, losses, train(1, 2))
}

// The loss curves of tier cuda are those of the CPU within the rounding of the storage type.
func TestLossesOnCUDAAreThoseOfTheCPU(t *testing.T) {
	if err := cudapath.Available(); err != nil || os.Getenv("VKATTN_DRIVER") != "native" {
		t.Skipf("no CUDA device under test: %v", err)
	}
	for dtype, tolerance := range map[attention.DType]float64{attention.F32: 1e-3, attention.BF16: 3e-2} {
		o := few
		o.tier, o.dtype = attention.TierCUDA, dtype
		got, err := run(io.Discard, o)
		require.NoError(t, err)
		o.tier = attention.TierCPU
		want, err := run(io.Discard, o)
		require.NoError(t, err)
		require.InDeltaSlice(t, want, got, tolerance, dtype)
	}
}

// The check notices a wrong gradient.
func TestCheckNoticesAWrongGradient(t *testing.T) {
	at, err := newAttention(nil, attention.TierCPU, attention.F32, 1)
	require.NoError(t, err)
	defer at.close()
	m, err := newModel(at, 1, 1)
	require.NoError(t, err)
	input, target := newLanguage(1).batch(1)
	_, _, err = m.forward(input, target)
	require.NoError(t, err)
	require.NoError(t, m.backward(input))
	require.NoError(t, check(io.Discard, m, input, target))

	grad := m.layers[0].up.grad
	grad[largest(grad)] *= 1.01
	require.ErrorContains(t, check(io.Discard, m, input, target), "layer 0 up")
	dK := m.layers[1].attention.dQKV.host
	dK[len(dK)/2+3] ^= 0x80 // a sign
	require.ErrorContains(t, check(io.Discard, m, input, target), "attention in layer 1")
}

// A tier that needs a device is refused without one.
func TestTierWithoutADevice(t *testing.T) {
	if os.Getenv("VKATTN_DRIVER") != "none" {
		t.Skip("there may be a device")
	}
	o := few
	o.tier = attention.TierScalar
	_, err := run(io.Discard, o)
	require.True(t, errors.Is(err, vk.ErrNoDevice), err)
}
