package tests

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/testdevice"
	"vkattn/internal/testdevices"
	"vkattn/vk"
)

// A missing barrier between Forward and the Backward that reads its O and LSE: synchronization validation finds
// it where kernels take descriptors, and only with the setting that makes it look at what shaders access. It
// does not find it where they take addresses; docs/library.md says so.
func TestSynchronizationValidationFindsAMissingBarrier(t *testing.T) {
	s := openDevice(t)
	if s.name != "lavapipe" {
		t.Skip("the layers are those that deps.sh fetches with lavapipe, and look at no driver")
	}
	for _, x := range []struct {
		tier      attention.Tier
		access    attention.Access
		heuristic bool
		barrier   bool
		id, text  string // of the first message
	}{
		{attention.TierScalar, attention.AccessDescriptors, true, true, "", ""},
		{attention.TierScalar, attention.AccessDescriptors, true, false, "SYNC-HAZARD-READ-AFTER-WRITE", "[backward_delta_ssbo"}, // its first kernel, which reads O
		{attention.TierScalar, attention.AccessDescriptors, false, false, "", ""},
		{attention.TierScalar, attention.AccessAddresses, true, false, "", ""},
		// The kernel of dK and dV could write dS, and in this call does not.
		{attention.TierCoopMat, attention.AccessDescriptors, true, true, "SYNC-HAZARD-WRITE-AFTER-READ", "[scratch]"},
	} {
		t.Run(fmt.Sprintf("%v %v heuristic %v barrier %v", x.tier, x.access, x.heuristic, x.barrier), func(t *testing.T) {
			t.Setenv("VK_KHRONOS_VALIDATION_SYNCVAL_SHADER_ACCESSES_HEURISTIC", map[bool]string{true: "1", false: "0"}[x.heuristic])
			var messages []vk.Message
			dev, err := vk.Open(vk.Options{SyncValidation: true, PipelineCache: "off", OnMessage: func(m vk.Message) { messages = append(messages, m) }})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, dev.Close()) })
			d := attention.On(dev)
			t.Cleanup(func() { require.NoError(t, d.Close()) })
			op := testdevices.Op(t, d, attention.Config{HeadDim: 64, Tier: x.tier, Access: x.access})
			tensor := func(dtype attention.DType, shape ...int) attention.Tensor {
				x, err := d.Tensor(dtype, shape...)
				require.NoError(t, err)
				return x
			}
			rows := func() attention.Tensor { return tensor(attention.F16, 1, 1, 64, 64) }
			a := attention.BackwardArgs{Args: attention.Args{Q: rows(), K: rows(), V: rows(), O: rows(), LSE: tensor(attention.F32, 1, 1, 64)},
				DO: rows(), DQ: rows(), DK: rows(), DV: rows()}
			require.NoError(t, d.Wait(t.Context())) // they are zeroed
			stream := testdevice.Stream(t, dev, "barrier")
			stream.NoBarrier = !x.barrier // the stream orders the two
			require.NoError(t, op.Forward(attention.OnStream(stream), a.Args))
			require.NoError(t, op.Backward(attention.OnStream(stream), a))
			require.NoError(t, stream.Wait(t.Context()))
			if x.id == "" {
				require.Empty(t, messages)
				return
			}
			require.NotEmpty(t, messages)
			require.Equal(t, x.id, messages[0].ID)
			require.Contains(t, messages[0].Text, x.text)
		})
	}
}
