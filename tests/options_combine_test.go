package tests

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/testdevice"
	"vkattn/internal/testdevices"
)

// A recorded call whose last workgroup combines the splits leaves its counters at zero. It
// may be executed any number of times, or never, and its scratch memory then serves others.
func TestOptionsRecordedSplitIsExecutedAgain(t *testing.T) {
	s := openDevice(t)
	c := cases.Case{Name: "recorded", D: 64, Dv: 64, Shape: attention.Shape{Hq: 4, Hkv: 2}, FixedSplit: 5, Layout: cases.Packed, Seed: 3,
		PackedQ: true, Seqs: []cases.Seq{{ID: 0, Rows: 2, Keys: 300}, {ID: 1, Rows: 0, Keys: 9}, {ID: 2, Rows: 1, Keys: 40}}}
	p, err := cases.NewProblem(c, attention.F16)
	require.NoError(t, err)
	op := testdevices.Op(t, attention.On(s.dev), attention.Config(c.Config(cases.OnMatrices(s.dev, attention.F16))))
	stream := testdevice.Stream(t, s.dev, "recorded")
	buffers := testdevice.Upload(t, stream, p.Image...)
	upload := func(image [][]byte) {
		for i, b := range image {
			require.NoError(t, stream.Upload(buffers[i], 0, b))
		}
		require.NoError(t, stream.Wait(t.Context()))
	}
	check := func(before [][]byte) {
		t.Helper()
		after := testdevice.Download(t, stream, buffers...)
		var x cases.Truth
		require.NoError(t, x.Judge(p, after))
		require.NoError(t, p.Trespass(before, after))
	}
	args := p.DeviceArgs(buffers)
	plan, err := op.PlanFor(args)
	require.NoError(t, err)
	t.Logf("%s, %d splits", plan.Kernel, plan.Splits)
	require.True(t, plan.Tier != attention.TierCoopMat2 || strings.Contains(plan.Kernel, "_decode"))

	never := newCallersCommands(t, s.dev)
	commands := never.begin(t)
	require.NoError(t, op.Record(commands, args))
	never.end(t)
	require.NoError(t, commands.Release())

	recorded := newCallersCommands(t, s.dev)
	commands = recorded.begin(t)
	require.NoError(t, op.Record(commands, args))
	require.NoError(t, commands.Barrier())
	require.NoError(t, op.Record(commands, args))
	require.NoError(t, commands.Barrier())
	recorded.end(t)
	for _, image := range [][][]byte{p.Image, p.Spoiled(), p.Image} {
		upload(image)
		recorded.submit(t)
		check(image)
		upload(image)
		require.NoError(t, op.Forward(attention.OnStream(stream), args)) // in between, with its own memory
		require.NoError(t, stream.Barrier())
		check(image)
	}
	require.NoError(t, commands.Release())
	upload(p.Image)
	require.NoError(t, op.Forward(attention.OnStream(stream), args))
	require.NoError(t, stream.Barrier())
	check(p.Image)
}
