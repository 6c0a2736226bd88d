//go:build !windows

package cudapath

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// rival is one kernel launched in two ways: through an operation on a Vulkan stream,
// and on a CUDA stream with everything known beforehand.
type rival struct {
	c      *Context
	op     *attention.Op
	args   attention.Args
	vulkan *vk.Stream
	kernel *kernel
	call   problem.CUDACall
	cuda   *Stream
}

func newRival(t testing.TB, shape attention.Shape) *rival {
	t.Helper()
	c := needGPU(t)
	r := &rival{c: c, vulkan: newVulkanStream(t, c)}
	cfg := attention.Config{HeadDim: 128, Tier: attention.TierCUDA}
	var err error
	r.op, err = attention.New(attention.On(c.dev), cfg)
	require.NoError(t, err)
	r.args.Shape = shape
	r.call = problem.CUDACall{Shape: shape, HeadDim: 128, HeadDimV: 128, CausalOffset: problem.NoCausal,
		Scale: 0.088, ScaleLog2: 0.127, UnitHigh: 0.693}
	r.call.Hkv = shape.KVHeads()
	for i, x := range []*attention.Tensor{&r.args.Q, &r.args.K, &r.args.V, &r.args.O} {
		seq := int64(shape.Sq)
		if i == 1 || i == 2 {
			seq = int64(shape.Sk)
		}
		x.Buffer = newBuffer(t, c, uint64(shape.B*shape.Hq)*uint64(seq)*256)
		require.NoError(t, r.vulkan.Fill(vk.BufferRange{Buffer: x.Buffer}, 0))
		r.call.Tensors[i] = problem.CUDATensor{CUDAVector: problem.CUDAVector{Buffer: x.Buffer}, Row: 128, Head: 128 * seq, Batch: 128 * seq * int64(shape.Hq)}
	}
	require.NoError(t, r.op.Prepare(shape))
	require.NoError(t, r.vulkan.Wait(background(t)))
	k, _, err := c.table.choose(&c.info, &problem.CUDAProblem{Shape: r.call.Shape, HeadDim: 128, HeadDimV: 128, Align: 8})
	require.NoError(t, err)
	r.kernel = c.kernelOf(k)
	require.NoError(t, r.kernel.Load())
	plan, err := r.op.Plan(shape)
	require.NoError(t, err)
	require.Equal(t, k.Entry, plan.Kernel)
	r.cuda, err = c.NewStream()
	require.NoError(t, err)
	t.Logf("%v: %v", &c.info, plan)
	return r
}

func (r *rival) forward(t testing.TB) {
	require.NoError(t, r.op.Forward(attention.OnStream(r.vulkan), r.args))
}

// launch is what a program does that knows CUDA alone.
func (r *rival) launch(t testing.TB) {
	var v invocation
	require.NoError(t, r.kernel.bind(&v, &r.call))
	require.NoError(t, r.kernel.launch(r.cuda, &v))
}

func (r *rival) waitForward(t testing.TB) { require.NoError(t, r.vulkan.Wait(t.Context())) }
func (r *rival) waitLaunch(t testing.TB)  { require.NoError(t, r.cuda.Wait(t.Context())) }

// each is the time of one of n calls that follow each other, with the wait at the end.
func each(n int, call func(), wait func()) time.Duration {
	start := time.Now()
	for range n {
		call()
	}
	wait()
	return time.Since(start) / time.Duration(n)
}

func median(d []time.Duration) time.Duration { return at(d, 0.5) }

func at(d []time.Duration, quantile float64) time.Duration {
	return slices.Sorted(slices.Values(d))[int(quantile*float64(len(d)))]
}

// TestGPUCostOverLaunch is for information. It compares both ways, in turns: a call with a wait of its own,
// many calls in a row, and calls of a kernel that keeps the device busy.
func TestGPUCostOverLaunch(t *testing.T) {
	small := attention.Shape{B: 1, Hq: 1, Sq: 64, Sk: 64}
	large := attention.Shape{B: 4, Hq: 8, Sq: 4096, Sk: 4096}
	for _, c := range []struct {
		name          string
		shape         attention.Shape
		calls, rounds int
	}{
		{"one call and its wait", small, 1, 1001},
		{"1000 calls in a row", small, 1000, 21},
		{"10 calls of a large problem", large, 10, 21},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRival(t, c.shape)
			var pure, through []time.Duration
			for i := range c.rounds + 20 {
				a := each(c.calls, func() { r.launch(t) }, func() { r.waitLaunch(t) })
				b := each(c.calls, func() { r.forward(t) }, func() { r.waitForward(t) })
				if i >= 20 { // clocks and caches have settled
					pure, through = append(pure, a), append(through, b)
				}
			}
			keepSamples(t, map[string]any{"test": c.name, "device": r.c.info.String(), "shape": c.shape.String(), "kernel": r.kernel.Entry,
				"calls": c.calls, "ns_a_call_launched": pure, "ns_a_call_forward": through})
			p, q := median(pure), median(through)
			t.Logf("COST %s: pure launch %v, through the operation %v, difference %v (medians of %d; p10-p90 %v-%v and %v-%v)",
				c.name, p, q, q-p, c.rounds, at(pure, 0.1), at(pure, 0.9), at(through, 0.1), at(through, 0.9))
		})
	}
}

// keepSamples writes a line to $OUT/cuda-cost.jsonl, where there is a folder for
// results.
func keepSamples(t testing.TB, row map[string]any) {
	out := os.Getenv("OUT")
	if out == "" {
		return
	}
	line, err := json.Marshal(row)
	require.NoError(t, err)
	f, err := os.OpenFile(filepath.Join(out, "cuda-cost.jsonl"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	require.NoError(t, err)
	defer f.Close()
	_, err = f.Write(append(line, '\n'))
	require.NoError(t, err)
}

// TestGPUCostOfTurns is for information: what it costs when Vulkan and CUDA really
// alternate, which takes a submission and two changes of queue on the device.
func TestGPUCostOfTurns(t *testing.T) {
	r := newRival(t, attention.Shape{B: 1, Hq: 1, Sq: 64, Sk: 64})
	o := vk.BufferRange{Buffer: r.args.O.Buffer, Size: 4}
	turn := func() {
		require.NoError(t, r.vulkan.Fill(o, 1))
		r.forward(t)
	}
	vulkan := func() {
		require.NoError(t, r.vulkan.Fill(o, 1))
		_, err := r.vulkan.Submit()
		require.NoError(t, err)
	}
	var both, alone, waited []time.Duration
	for range 11 {
		both = append(both, each(100, turn, func() { r.waitForward(t) }))
		alone = append(alone, each(100, vulkan, func() { r.waitForward(t) }))
		waited = append(waited, each(100, func() { turn(); r.waitForward(t) }, func() {}))
	}
	keepSamples(t, map[string]any{"test": "turns of Vulkan and CUDA, 100 in a row", "device": r.c.info.String(), "kernel": r.kernel.Entry,
		"ns_a_turn_of_each": both, "ns_a_vulkan_submission": alone, "ns_a_turn_of_each_with_a_wait": waited})
	t.Logf("COST of a turn of each: %v; of a Vulkan submission alone: %v; of both with a wait each: %v", median(both), median(alone), median(waited))
}

func TestGPUForwardAllocatesNothing(t *testing.T) {
	r := newRival(t, attention.Shape{B: 1, Hq: 1, Sq: 64, Sk: 64})
	for range 100 {
		r.forward(t)
	}
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		if err := r.op.Forward(attention.OnStream(r.vulkan), r.args); err != nil {
			t.Error(err)
		}
	}))
	r.waitForward(t)
	barrier := func() {
		if err := r.vulkan.Barrier(); err != nil {
			t.Error(err)
		}
		if err := r.op.Forward(attention.OnStream(r.vulkan), r.args); err != nil {
			t.Error(err)
		}
		if err := r.vulkan.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for range 100 {
		barrier()
	}
	require.Zero(t, testing.AllocsPerRun(100, barrier), "with a turn of Vulkan's")
}

func BenchmarkGPU(b *testing.B) {
	r := newRival(b, attention.Shape{B: 1, Hq: 1, Sq: 64, Sk: 64})
	bench := func(name string, call, wait func(testing.TB), every int) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				call(b)
				if (i+1)%every == 0 {
					wait(b)
				}
			}
			wait(b)
		})
	}
	bench("launch", r.launch, r.waitLaunch, 256)
	bench("forward", r.forward, r.waitForward, 256)
	bench("launch-wait", r.launch, r.waitLaunch, 1)
	bench("forward-wait", r.forward, r.waitForward, 1)
}
