package attention_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/half"
	"vkattn/internal/testdevice"
	"vkattn/internal/testdevices"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// openCombining opens a device whose decode kernel combines the splits itself, or skips.
func openCombining(t *testing.T) *vk.Device {
	t.Helper()
	driver := os.Getenv("VKATTN_DRIVER")
	if testdevice.Null() {
		t.Skip("a null device executes nothing")
	}
	dev, err := vk.Open(vk.Options{})
	if errors.Is(err, vk.ErrNoDevice) && (driver == "" || driver == "none") {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	op := testdevices.Op(t, attention.On(dev), attention.Config{HeadDim: 64, FixedSplit: 2, Tier: cases.OnMatrices(dev, attention.F16).Tier})
	plan, err := op.Plan(attention.Shape{B: 1, Hq: 1, Sq: 1, Sk: 64})
	require.NoError(t, err)
	if !strings.Contains(plan.Kernel, "_decode") {
		require.NotEqual(t, "lavapipe", driver, "it has the decode kernel: %v", plan)
		t.Skip("no decode kernel: " + plan.String())
	}
	return dev
}

// combining is a problem on a device, whose splits are combined in a kernel of their own or in the
// decode kernel, with the same bits.
type combining struct {
	*cases.Problem
	op       *attention.Op
	buffers  []*vk.Buffer
	withLSE  attention.Args
	together attention.Args // without LSE
	want     []byte         // O as the kernel of its own leaves it
	wantLSE  []byte
}

// o is the piece of memory that O is in.
func (c *combining) o() *vk.Buffer { return c.together.O.Buffer }

// newCombining makes a problem and computes it with a separate combine. If change changes its memory, the
// result is not compared with the reference.
func newCombining(t, keep *testing.T, dev *vk.Device, s *vk.Stream, c cases.Case, change func(a attention.Args)) *combining {
	t.Helper()
	c.LSE = true
	p, err := cases.NewProblem(c, attention.F16)
	require.NoError(t, err)
	if change != nil {
		change(p.HostArgs(p.Image))
	}
	x := &combining{Problem: p}
	cfg := c.Config(cases.OnMatrices(dev, attention.F16))
	x.op, err = attention.New(attention.On(dev), attention.Config(cfg))
	require.NoError(t, err)
	keep.Cleanup(func() { require.NoError(t, x.op.Close()) }) // and its pipelines, for the next problem
	x.buffers = testdevice.Upload(t, s, p.Image...)
	a := p.DeviceArgs(x.buffers)
	x.withLSE, x.together = a, a
	x.together.LSE = attention.Tensor{}
	splits, combinedLSE, err := attention.SplitsOf(x.op, a)
	require.NoError(t, err)
	require.NoError(t, attention.ForwardSeparately(x.op, s, a))
	require.NoError(t, s.Barrier())
	x.want, x.wantLSE = download(t, s, x.o()), download(t, s, a.LSE.Buffer)
	if change == nil {
		var truth cases.Truth
		require.NoError(t, truth.Judge(p, testdevice.Download(t, s, x.buffers...)))
	}
	again, combined, err := attention.SplitsOf(x.op, x.together)
	require.NoError(t, err)
	require.Equal(t, splits, again)
	plan, err := x.op.PlanFor(a)
	require.NoError(t, err)
	few := splits <= attention.SplitsPerRound || splits <= 2*attention.SplitsPerRound && c.Hq/c.Hkv <= 2 // rows: a round for each
	require.Equal(t, splits > 1 && few && strings.Contains(plan.Kernel, "_decode") && !dev.QueueIsUnguarded(), combined, "%v: the decode kernel combines a few splits", c)
	require.Equal(t, combined && !c.ALiBi, combinedLSE, "%v: with LSE as well, but not with slopes", c)
	return x
}

func download(t *testing.T, s *vk.Stream, from *vk.Buffer) []byte {
	return testdevice.Download(t, s, from)[0]
}

// clear restores what O and LSE held before.
func (c *combining) clear(t *testing.T, s *vk.Stream) {
	for i, b := range c.buffers {
		if b == c.o() || b == c.withLSE.LSE.Buffer {
			require.NoError(t, s.Upload(b, 0, c.Image[i]))
		}
	}
}

func (c *combining) forward(t *testing.T, s *vk.Stream) {
	require.NoError(t, c.op.Forward(attention.OnStream(s), c.together))
}

func (c *combining) check(t *testing.T, s *vk.Stream, when any) {
	t.Helper()
	got := download(t, s, c.o())
	if string(got) == string(c.want) {
		return
	}
	n := 0
	for i := range got {
		if got[i] != c.want[i] {
			n++
		}
	}
	require.Failf(t, "not the same bits", "%v, %v: %d of %d bytes of O", c, when, n, len(got))
}

// decodings are small decode problems with as few pipelines as possible: a driver on the
// CPU takes ten seconds for each of the two that a problem needs.
func decodings() []cases.Case {
	base := cases.Case{Name: "combine", D: 32, Dv: 64, Shape: attention.Shape{Hq: 4, Hkv: 2}, FixedSplit: 3, Layout: cases.Packed,
		Seqs: []cases.Seq{{ID: 0, Rows: 1, Keys: 300}, {ID: 1, Rows: 1, Keys: 300}}, Seed: 11}
	var list []cases.Case
	add := func(change func(c *cases.Case)) {
		c := base
		change(&c)
		list = append(list, c)
	}
	// Few splits, one and two rounds of them, and more; more splits than KV tiles; splits without weight.
	for _, splits := range []int{3, 2, 7, attention.SplitsPerRound, attention.SplitsPerRound + 1, 2 * attention.SplitsPerRound, 2*attention.SplitsPerRound + 1, 256} {
		add(func(c *cases.Case) { c.FixedSplit = splits })
	}
	add(func(c *cases.Case) { c.Data = cases.Rising })
	add(func(c *cases.Case) { c.ALiBi, c.Causal = true, attention.BottomRight }) // whose slopes take the place of LSE
	// Sequences without rows, without keys, and with fewer keys than splits.
	mixed := []cases.Seq{{ID: 0, Rows: 2, Keys: 300}, {ID: 1, Rows: 0, Keys: 30}, {ID: 2, Rows: 3, Keys: 0}, {ID: 3, Rows: 1, Keys: 33},
		{ID: 4, Rows: 3, Keys: 129}, {ID: 5, Rows: 0, Keys: 0}}
	add(func(c *cases.Case) {
		c.Seqs, c.PackedQ, c.PageSize, c.Causal = mixed, true, 16, attention.BottomRight
	})
	// Odd head dims; rows of O that share words.
	add(func(c *cases.Case) {
		c.D, c.Dv, c.FixedSplit = 17, 41, 11
		c.Access, c.Layout = attention.AccessDescriptors, cases.Odd
	})
	if testlevel.IsExhaustive() {
		// Every row of a fragment is used.
		for _, splits := range []int{6, attention.SplitsPerRound} {
			add(func(c *cases.Case) { c.Hq, c.Hkv, c.FixedSplit = 16, 1, splits })
		}
		add(func(c *cases.Case) {
			c.Seqs, c.LooseQ, c.LooseK, c.Sq, c.Sinks, c.FixedSplit = mixed, true, true, 4, true, 5
		})
	}
	return list
}

// A kernel that combines its splits itself gives the bits of the separate combine kernel.
func TestCombiningInTheKernelGivesTheSameBits(t *testing.T) {
	dev := openCombining(t)
	s, err := dev.NewStream("combine")
	require.NoError(t, err)
	keep := t
	for _, c := range decodings() {
		t.Run(c.String(), func(t *testing.T) {
			x := newCombining(t, keep, dev, s, c, nil)
			for again := range 3 { // in the same scratch memory
				x.clear(t, s)
				x.forward(t, s)
				require.NoError(t, s.Barrier())
				x.check(t, s, again)
			}
			x.clear(t, s)
			require.NoError(t, x.op.Forward(attention.OnStream(s), x.withLSE))
			require.NoError(t, s.Barrier())
			x.check(t, s, "with LSE")
			require.Equal(t, x.wantLSE, download(t, s, x.withLSE.LSE.Buffer), "%v: LSE", c)
		})
	}
}

// Rows whose LSE is NaN or +Inf are NaN in both kernels, and their neighbours are not.
func TestSplitsThatAreNotFiniteCombineInTheKernel(t *testing.T) {
	dev := openCombining(t)
	s, err := dev.NewStream("combine")
	require.NoError(t, err)
	c := decodings()[0]
	c.Sinks = true
	keep := t
	put := func(v *attention.Vector, at int, x float64) {
		half.EncodeF32(v.Host[4*(int(v.Offset)+at):][:4], []float32{float32(x)})
	}
	for name, change := range map[string]func(a attention.Args){
		"sink":   func(a attention.Args) { put(&a.Sinks, 1, math.NaN()); put(&a.Sinks, 2, math.Inf(1)) },
		"splits": func(a attention.Args) { put(&a.Sinks, 0, math.Inf(-1)); spoilRow(a.K, 3); spoilRow(a.K, 290) },
	} {
		t.Run(name, func(t *testing.T) {
			x := newCombining(t, keep, dev, s, c, change)
			view, err := attention.ViewHost(attention.Tensor{Host: x.want, Offset: x.together.O.Offset, Strides: x.together.O.Strides}, attention.F16, c.Hq, 1, c.Dv)
			require.NoError(t, err)
			row, bad := make([]float32, c.Dv), 0
			for b := range c.Seqs {
				for h := range c.Hq {
					if view.ReadRow(row, b, h, 0); math.IsNaN(float64(row[0])) {
						bad++
					}
				}
			}
			require.NotZero(t, bad)
			require.Less(t, bad, len(c.Seqs)*c.Hq)
			x.clear(t, s)
			x.forward(t, s)
			require.NoError(t, s.Barrier())
			x.check(t, s, name)
			require.NoError(t, x.op.Forward(attention.OnStream(s), x.withLSE))
			require.NoError(t, s.Barrier())
			require.Equal(t, x.wantLSE, download(t, s, x.withLSE.LSE.Buffer), "LSE")
		})
	}
}

// spoilRow puts NaN into a row of a tensor's first head.
func spoilRow(x attention.Tensor, row int) {
	at := 2 * (x.Offset + int64(row)*x.Strides.Seq)
	x.Host[at], x.Host[at+1] = 0xff, 0x7f
}

// Calls without a barrier between them have separate scratch memory and leave it ready for
// the next.
func TestManyCallsCombineAtOnce(t *testing.T) {
	dev := openCombining(t)
	for n := range 2 {
		t.Run(fmt.Sprintf("stream %d", n), func(t *testing.T) {
			t.Parallel()
			s, err := dev.NewStream("combine")
			require.NoError(t, err)
			var calls []*combining
			for i := range 12 {
				c := decodings()[0]
				c.FixedSplit, c.Seed = []int{2, 40, 3}[i%3], uint64(100*n+i+1)
				calls = append(calls, newCombining(t, t, dev, s, c, nil))
			}
			for batch := range 4 {
				for _, x := range calls {
					x.clear(t, s)
				}
				require.NoError(t, s.Barrier())
				for i := range calls {
					calls[(i*5+batch)%len(calls)].forward(t, s) // other memory each time
				}
				require.NoError(t, s.Barrier())
				if batch%2 == 0 {
					_, err := s.Submit()
					require.NoError(t, err)
				}
				for i, x := range calls {
					x.check(t, s, fmt.Sprintf("call %d of batch %d", i, batch))
				}
			}
			require.NoError(t, s.Close())
		})
	}
}

// wrapCombining wraps the objects of another device, with or without a lock for its queue.
func wrapCombining(t *testing.T, host *vk.Device, lock sync.Locker) *vk.Device {
	t.Helper()
	queue, family := host.VulkanQueue()
	e := vk.External{Instance: host.VulkanInstance(), PhysicalDevice: host.VulkanPhysicalDevice(), Device: host.VulkanDevice(),
		Queue: queue, QueueFamily: family, APIVersion: 1<<22 | 3<<12, Enabled: *host.Caps(), PipelineCache: "off"}
	if lock != nil {
		e.LockQueue, e.UnlockQueue = lock.Lock, lock.Unlock
	}
	dev, err := vk.Wrap(e)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

// If nothing may be submitted that the caller did not ask for, counters are not zeroed:
// such calls take two dispatches and give the same bits.
func TestCombineIsSeparateOnAQueueWithoutALock(t *testing.T) {
	dev := wrapCombining(t, openCombining(t), nil)
	s, err := dev.NewStream("separate combine")
	require.NoError(t, err)
	x := newCombining(t, t, dev, s, decodings()[0], nil)
	x.clear(t, s)
	x.forward(t, s)
	require.NoError(t, s.Barrier())
	x.check(t, s, "without a lock")
}

// A foreign command buffer may go to another queue than the one that zeroes the counters.
// Until the device has zeroed them, a separate kernel combines the splits.
func TestCombineIsSeparateUntilCountersAreZero(t *testing.T) {
	var queue sync.Mutex
	dev := wrapCombining(t, openCombining(t), &queue)
	c, again := (&recording{dev: dev}).wrap(t) // which skips without cgo: the queue is not busy yet
	s, err := dev.NewStream("busy")
	require.NoError(t, err)
	x := newCombining(t, t, dev, s, decodings()[0], nil)
	gate, err := dev.NewTimeline(false)
	require.NoError(t, err)
	require.NoError(t, s.WaitFor(gate, 1))
	_, err = s.Submit()
	require.NoError(t, err)
	one := len(attention.PipelinesOf(x.op)) // with a separate combine
	require.NoError(t, x.op.Record(c, x.together))
	require.Len(t, attention.PipelinesOf(x.op), one+1, "the new plan combines in the decode kernel")
	used := dev.Memory().Buffers
	require.NoError(t, gate.Signal(1))
	require.NoError(t, s.Wait(t.Context()))
	require.NoError(t, dev.WaitIdle())
	again()
	require.NoError(t, x.op.Record(c, x.together))
	require.Len(t, attention.PipelinesOf(x.op), one+1)
	require.Equal(t, used, dev.Memory().Buffers, "the same memory")
	require.NoError(t, gate.Close())
}

// A split with a small weight and large values counts: with scales of V the kernels keep a row sum of 2^-90 and a row max
// that is 90 too large, and the product of the sum and the weight is no float32.
func TestSplitsKeepSmallWeightsOfLargeScales(t *testing.T) {
	dev := openCombining(t)
	s, err := dev.NewStream("scales")
	require.NoError(t, err)
	const keys, dim, first, second = 512, 32, 3, 400 // the two keys that are attended to, in splits of their own
	buffer := func(x []byte) attention.Tensor {
		return attention.Tensor{Buffer: testdevice.Upload(t, s, x)[0]}
	}
	floats := func(n int, at func(i int) float32) attention.Tensor {
		x := make([]float32, n)
		for i := range x {
			x[i] = at(i)
		}
		b := make([]byte, 4*n)
		half.EncodeF32(b, x)
		return buffer(b)
	}
	v := make([]byte, keys*dim)
	for i := range dim {
		v[second*dim+i] = 127
	}
	want := float32(127.0 / 128)
	bias := floats(keys, func(key int) float32 {
		switch key {
		case first:
			return 0
		case second:
			return -97 * math.Ln2
		}
		return float32(math.Inf(-1))
	})
	scales := floats(keys, func(int) float32 { return 0x1p90 })
	for _, rows := range []int{1, 40} { // the decode kernel, and the general one
		for _, lse := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d rows, LSE %t", rows, lse), func(t *testing.T) {
				op := testdevices.Op(t, attention.On(dev), attention.Config{HeadDim: dim, KeyType: attention.KVInt8, ValueType: attention.KVInt8, FixedSplit: 2, Tier: cases.OnMatrices(dev, attention.F16).Tier})
				a := attention.Args{Shape: attention.Shape{B: 1, Hq: 1, Sq: rows, Sk: keys}, Q: buffer(make([]byte, 2*rows*dim)),
					K: buffer(make([]byte, keys*dim)), V: buffer(v), O: buffer(make([]byte, 2*rows*dim)),
					KScale: attention.Vector{Buffer: scales.Buffer}, VScale: attention.Vector{Buffer: scales.Buffer},
					Bias: &attention.Bias{Tensor: bias, DType: attention.F32, Batches: 1, Heads: 1, Rows: 1}}
				if lse {
					a.LSE = buffer(make([]byte, 4*rows))
				}
				require.NoError(t, op.Forward(attention.OnStream(s), a))
				require.NoError(t, s.Barrier())
				got := make([]float32, rows*dim)
				half.DecodeF16(got, download(t, s, a.O.Buffer))
				for i, x := range got {
					require.InDelta(t, want, x, 0.01, "O[%d]", i)
				}
			})
		}
	}
}
