package tests

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/vk"
)

// small returns a problem that any tier computes quickly.
var small = cases.Case{
	D: 16, Dv: 16, LSE: true, Layout: cases.Packed, Seed: 3, Causal: attention.BottomRight,
	Shape: attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 20, Sk: 33},
}

func smallProblem(t *testing.T, dtype attention.DType) *cases.Problem {
	t.Helper()
	p, err := cases.NewProblem(small, dtype)
	require.NoError(t, err)
	return p
}

// Each mistake of a caller of the CPU tier is an error that names the mistake.
func TestFaultsWithoutDevice(t *testing.T) {
	p := smallProblem(t, attention.F32)
	cfg := small.Config(cases.On(attention.TierCPU, attention.F32))

	t.Run("closed operation", func(t *testing.T) {
		op, err := attention.New(nil, attention.Config(cfg))
		require.NoError(t, err)
		require.NoError(t, op.Forward(nil, p.HostArgs(p.Image)))
		require.NoError(t, op.Close())
		require.NoError(t, op.Close(), "a second time")
		require.ErrorIs(t, op.Forward(nil, p.HostArgs(p.Image)), vk.ErrClosed)
	})
	t.Run("tiers that need a device", func(t *testing.T) {
		for _, tier := range []attention.Tier{attention.TierScalar, attention.TierCoopMat, attention.TierCoopMat2, attention.TierCubin, attention.TierCUDA} {
			cfg := cfg
			cfg.Tier = tier
			_, err := attention.New(nil, attention.Config(cfg))
			require.ErrorIs(t, err, attention.ErrUnsupported)
			require.ErrorIs(t, err, vk.ErrUnsupported)
			require.ErrorContains(t, err, tier.String())
		}
	})
	t.Run("a stream", func(t *testing.T) {
		op, err := attention.New(nil, attention.Config(cfg))
		require.NoError(t, err)
		require.Error(t, op.Forward(attention.OnStream(&vk.Stream{}), p.HostArgs(p.Image)))
		require.ErrorIs(t, op.Record(nil, p.HostArgs(p.Image)), attention.ErrUnsupported)
	})
	t.Run("no arguments", func(t *testing.T) {
		op, err := attention.New(nil, attention.Config(cfg))
		require.NoError(t, err)
		var shape *attention.ShapeError
		require.ErrorAs(t, op.Forward(nil, attention.Args{}), &shape)
		require.ErrorAs(t, op.Forward(nil, attention.Args{Shape: small.Shape}), &shape)
		_, err = op.Plan(attention.Shape{})
		require.ErrorAs(t, err, &shape)
		require.ErrorAs(t, op.Prepare(attention.Shape{B: 1, Hq: 3, Hkv: 2, Sq: 1, Sk: 1}), &shape)
		_, err = attention.New(nil, attention.Config{})
		require.ErrorAs(t, err, &shape)
	})
}

// Without a loader, or without a device, opening fails with an error that says so, and
// everything else works.
func TestFaultNoSuchDevice(t *testing.T) {
	s := open(t)
	_, err := vk.Open(vk.Options{Device: "no device has this name", PipelineCache: "off"})
	require.ErrorIs(t, err, vk.ErrNoDevice)
	_, err = vk.Open(vk.Options{Device: "4096", PipelineCache: "off"})
	require.ErrorIs(t, err, vk.ErrNoDevice)
	if s.dev == nil {
		_, err = vk.Open(vk.Options{PipelineCache: "off"})
		require.ErrorIs(t, err, vk.ErrNoDevice)
		var vkErr *vk.Error
		require.True(t, errors.As(err, &vkErr), "%T: %v", err, err)
	}
}
