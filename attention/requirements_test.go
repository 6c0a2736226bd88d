package attention

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// The requirements of a tier are met where the device reports the tier. A device with nothing else enabled
// computes, forward and backward, and one without any of them does not.
func TestRequirementsSufficeAndAreNeeded(t *testing.T) {
	dev := testdevice.Open(t)
	for _, status := range TierReport(dev) {
		if !slices.Contains([]Tier{TierScalar, TierCoopMat, TierCoopMat2}, status.Tier) {
			continue
		}
		t.Run(fmt.Sprint(status.Tier, status.DType), func(t *testing.T) {
			cfg := Config{DType: status.DType, HeadDim: 64, Tier: status.Tier}
			need, err := Requirements(status.Tier, Config{DType: status.DType, HeadDim: 64})
			require.NoError(t, err)
			require.Equal(t, status.Available, need.Missing(dev.Info()) == "", "%s; %s", status.Reason, need.Missing(dev.Info()))
			if !status.Available {
				return
			}
			enabled := func(c vk.Caps) *vk.Device {
				queue, family := dev.VulkanQueue()
				d, err := vk.Wrap(vk.External{Instance: dev.VulkanInstance(), PhysicalDevice: dev.VulkanPhysicalDevice(), Device: dev.VulkanDevice(),
					Queue: queue, QueueFamily: family, APIVersion: need.APIVersion, Enabled: c, PipelineCache: "off"})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, d.Close()) })
				return d
			}
			op, err := New(On(enabled(need.Enabled)), cfg)
			require.NoError(t, err)
			s := Shape{B: 1, Hq: 1, Hkv: 1, Sq: 64, Sk: 64}
			require.NoError(t, op.Prepare(s))
			require.NoError(t, op.PrepareBackward(s))
			require.NoError(t, op.Close())

			on := reflect.ValueOf(&need.Enabled).Elem()
			for _, caps := range []reflect.Value{on, on.FieldByName("CoopMat2")} {
				for i, name := range reflect.VisibleFields(caps.Type()) {
					feature := caps.Field(i)
					if feature.Kind() != reflect.Bool || !feature.Bool() || name.Name == "TimelineSemaphore" { // Wrap refuses that
						continue
					}
					feature.SetBool(false)
					op, err := New(On(enabled(need.Enabled)), cfg)
					if err == nil {
						err = op.Prepare(s)
					}
					if err == nil {
						err = op.PrepareBackward(s)
					}
					feature.SetBool(true)
					require.ErrorIs(t, err, ErrUnsupported, name.Name)
					require.ErrorContains(t, err, "not enabled", name.Name)
				}
			}
		})
	}
}

func TestRequirementsOfOtherTiersAndConfigs(t *testing.T) {
	for _, tier := range []Tier{TierAuto, TierCPU, TierCUDA} {
		_, err := Requirements(tier, Config{HeadDim: 64})
		require.ErrorIs(t, err, ErrUnsupported, tier)
	}
	without, err := Requirements(TierScalar, Config{HeadDim: 64})
	if errors.Is(err, vk.ErrNoDevice) {
		t.Skip(err) // the build
	}
	require.NoError(t, err)
	_, err = Requirements(TierScalar, Config{})
	var shape *ShapeError
	require.ErrorAs(t, err, &shape)
	_, err = Requirements(TierCoopMat, Config{DType: F32, HeadDim: 320, HeadDimV: 256})
	require.ErrorIs(t, err, ErrUnsupported, "on any device")
	with, err := Requirements(TierScalar, Config{HeadDim: 64, Access: AccessAddresses})
	require.NoError(t, err)
	require.False(t, without.Enabled.BufferDeviceAddress)
	require.True(t, with.Enabled.BufferDeviceAddress)
}
