package ranks

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/parallel"
	"vkattn/vk"
)

// exports is a transport that moves exportable buffers.
type exports struct{ parallel.Transport }

func (exports) Buffers() vk.BufferOptions { return vk.BufferOptions{Exportable: true} }

// Only modes that move tensors have the buffers of the transport: calls in exportable memory are slower.
func TestBuffersOfAMode(t *testing.T) {
	s := &Session{Meter: &Meter{Transport: exports{}}}
	require.True(t, s.buffers(Mode{Mode: parallel.ModeRing}).Exportable)
	require.False(t, s.buffers(Mode{Decode: true}).Exportable)
	require.True(t, ownBuffers(attention.TierCUDA).Exportable)
	require.False(t, ownBuffers(attention.TierCoopMat2).Exportable)
}
