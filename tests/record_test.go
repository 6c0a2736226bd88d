package tests

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

// A program can record attention into a command buffer of its own and submit it to its own
// queue.
func TestRecordIntoTheCallersCommandBuffer(t *testing.T) {
	s := openDevice(t)
	for _, access := range []attention.Access{attention.AccessAddresses, attention.AccessDescriptors} {
		if access == attention.AccessAddresses && !s.dev.Caps().BufferDeviceAddress {
			continue
		}
		t.Run(access.String(), func(t *testing.T) {
			c := small
			c.Access = access
			d := newDeviceProblem(t, s.dev, c, scalarF16)
			recorded := newCallersCommands(t, s.dev)
			commands := recorded.begin(t)
			require.NoError(t, d.op.Record(commands, d.args))
			require.NoError(t, commands.Barrier())
			recorded.end(t)
			recorded.submit(t)
			require.NoError(t, commands.Release())
			d.result(t)
		})
	}
}
