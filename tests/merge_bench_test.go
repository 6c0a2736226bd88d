package tests

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/merge"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// BenchmarkMerge measures merges on a device, one after another: the time of one, and the
// rate of the bytes that it moves (every state once and the result once). States that all
// fit in a cache are faster than memory.
func BenchmarkMerge(b *testing.B) {
	s := openDevice(b)
	for _, c := range []struct {
		shape  attention.Shape
		states int
	}{
		{attention.Shape{B: 8, Hq: 32, Sq: 1}, 8},
		{attention.Shape{B: 8, Hq: 32, Sq: 1}, 64},
		{attention.Shape{B: 1, Hq: 32, Sq: 512}, 2},
		{attention.Shape{B: 8, Hq: 32, Sq: 4096}, 2},
		{attention.Shape{B: 1, Hq: 32, Sq: 8192}, 8},
	} {
		const dim, perSubmit = 128, 16
		rows := uint64(c.shape.Rows())
		if s.dev.Info().Type == vk.DeviceCPU && rows > 1<<16 {
			continue
		}
		b.Run(fmt.Sprintf("f16.d%d.B%d.H%d.S%d.%d", dim, c.shape.B, c.shape.Hq, c.shape.Sq, c.states), func(b *testing.B) {
			stream := testdevice.Stream(b, s.dev, "merge")
			tensor := func(states uint64, rowBytes uint64) attention.Tensor {
				buf := testdevice.Buffer(b, s.dev, states*rows*rowBytes)
				require.NoError(b, stream.Fill(vk.BufferRange{Buffer: buf}, 0x3c003c00))
				return attention.Tensor{Buffer: buf}
			}
			n := uint64(c.states)
			a := merge.MergeArgs{Shape: c.shape,
				First: merge.States{O: tensor(n, 2*dim), LSE: tensor(n, 4), Count: c.states},
				O:     tensor(1, 2*dim), LSE: tensor(1, 4)}
			m, err := merge.NewMerge(attention.On(s.dev), merge.MergeConfig{HeadDim: dim})
			require.NoError(b, err)
			defer m.Close()
			benchmarkCalls(b, stream, perSubmit, func() error { return m.Forward(attention.OnStream(stream), a) })
			merges := float64(b.N) * perSubmit
			b.ReportMetric(b.Elapsed().Seconds()*1e6/merges, "us/merge")
			b.ReportMetric(float64((n+1)*rows*(2*dim+4))*merges/b.Elapsed().Seconds()/1e9, "GB/s")
		})
	}
}
