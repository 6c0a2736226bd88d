package cudapath

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/inputs"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// needGPU opens a Vulkan device that is also a CUDA device, or says why it skips.
func needGPU(t testing.TB) *Context {
	t.Helper()
	if err := Available(); err != nil {
		t.Skipf("no CUDA here: %v", err)
	}
	t.Setenv("VKATTN_VALIDATION", "")
	dev, err := vk.Open(vk.Options{PipelineCache: "off"})
	if err != nil {
		t.Skipf("no Vulkan device here: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	c, err := Open(dev)
	if err != nil {
		t.Skipf("the Vulkan device is none of CUDA's: %v", err)
	}
	return c
}

func background(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func newVulkanStream(t testing.TB, c *Context) *vk.Stream {
	t.Helper()
	s, err := c.dev.NewStream(t.Name())
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() }) // which repeats what was wrong with the peer
	return s
}

func newBuffer(t testing.TB, c *Context, bytes uint64) *vk.Buffer {
	t.Helper()
	b, err := c.dev.NewBuffer(bytes, vk.BufferOptions{Exportable: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7) ^ byte(i>>8) ^ seed
	}
	return b
}

// A Vulkan buffer is the same memory in CUDA, in both directions.
func TestGPUVulkanBufferInCUDA(t *testing.T) {
	c := needGPU(t)
	t.Logf("%v, memory of %d MiB", &c.info, c.info.Memory>>20)
	s := newVulkanStream(t, c)
	for _, size := range []int{16, 4096, 100_003, 40 << 20} {
		b := newBuffer(t, c, uint64(size))
		t.Logf("%d bytes: %+v", size, b.Allocation())
		want := pattern(size, 1)
		require.NoError(t, s.Upload(b, 0, want))
		address, err := c.Address(b)
		require.NoError(t, err)
		cs, err := c.Turn(s, b)
		require.NoError(t, err)
		got := make([]byte, size)
		require.NoError(t, cs.CopyToHost(got, address))
		require.Equal(t, want, got, "what Vulkan wrote, in CUDA")
		want = pattern(size, 2)
		require.NoError(t, cs.CopyFromHost(address, want))
		require.NoError(t, s.Download(background(t), got, b, 0))
		require.Equal(t, want, got, "what CUDA wrote, in Vulkan")
		again, err := c.Address(b)
		require.NoError(t, err)
		require.Equal(t, address, again)
	}
	plain, err := c.dev.NewBuffer(4096, vk.BufferOptions{})
	require.NoError(t, err)
	defer plain.Close()
	_, err = c.Address(plain)
	require.ErrorIs(t, err, vk.ErrUnsupported)
}

// CUDA memory is a Vulkan buffer, and each end may go first.
func TestGPUCUDAMemoryInVulkan(t *testing.T) {
	c := needGPU(t)
	s := newVulkanStream(t, c)
	for _, size := range []int{16, 4096, 3 << 20, 100_003} {
		m, err := c.Alloc(uint64(size))
		require.NoError(t, err)
		want := pattern(size, 3)
		require.NoError(t, m.CopyFromHost(0, want))
		b, err := m.Buffer(c.dev)
		require.NoError(t, err)
		got := make([]byte, size)
		require.NoError(t, s.Download(background(t), got, b, 0))
		require.Equal(t, want, got, "what CUDA wrote, in Vulkan")
		want = pattern(size, 4)
		require.NoError(t, s.Upload(b, 0, want))
		require.NoError(t, s.Wait(background(t)))
		require.NoError(t, m.CopyToHost(got, 0))
		require.Equal(t, want, got, "what Vulkan wrote, in CUDA")
		address, err := c.Address(b)
		require.NoError(t, err)
		require.Equal(t, m.Address(), address)
		require.ErrorIs(t, m.CopyToHost(got, 1), vk.ErrInvalid)
		if size%2 == 0 {
			require.NoError(t, m.Close())
			require.NoError(t, m.Close(), "a second time")
			require.NoError(t, s.Download(background(t), got, b, 0))
			require.Equal(t, want, got, "after the memory's owner closed it")
			require.NoError(t, b.Close())
			require.ErrorIs(t, m.CopyToHost(got, 0), vk.ErrClosed)
		} else {
			require.NoError(t, b.Close())
			require.NoError(t, m.CopyToHost(got, 0))
			require.Equal(t, want, got, "after the buffer was closed")
			require.NoError(t, m.Close())
		}
	}
	_, err := c.Alloc(1 << 50)
	require.ErrorIs(t, err, vk.ErrOutOfMemory)
	_, err = c.Alloc(c.info.Memory)
	require.ErrorIs(t, err, vk.ErrOutOfMemory, "the driver's word, not ours")
}

// Vulkan and CUDA take turns on one buffer; nobody waits on the host between.
func TestGPUTurnsAreInOrder(t *testing.T) {
	c := needGPU(t)
	s := newVulkanStream(t, c)
	const size, turns = 64 << 20, 50
	x, y := newBuffer(t, c, size), newBuffer(t, c, size)
	ax, err := c.Address(x)
	require.NoError(t, err)
	ay, err := c.Address(y)
	require.NoError(t, err)
	start := time.Now()
	for i := range uint32(turns) {
		require.NoError(t, s.Fill(vk.BufferRange{Buffer: x}, 2*i))
		cs, err := c.Turn(s, x, y)
		require.NoError(t, err)
		require.NoError(t, cs.Copy(ay, ax, size)) // y = 2i
		require.NoError(t, cs.Fill(ax, 2*i+1, size))
		require.NoError(t, s.Copy(vk.BufferRange{Buffer: y, Offset: 0, Size: 4 << 10}, vk.BufferRange{Buffer: x, Offset: size - 4<<10}))
		require.NoError(t, s.Barrier())
	}
	queued := time.Since(start)
	got := make([]byte, size)
	require.NoError(t, s.Download(background(t), got, y, 0))
	t.Logf("%d turns each: queued in %v, done in %v", turns, queued, time.Since(start))
	for i := 0; i < size; i += 4 {
		want := uint32(2 * (turns - 1))
		if i < 4<<10 {
			want++
		}
		if w := uint32(got[i]) | uint32(got[i+1])<<8 | uint32(got[i+2])<<16 | uint32(got[i+3])<<24; w != want {
			t.Fatalf("byte %d: %d, want %d", i, w, want)
		}
	}
}

// Streams of both sides wait for each other by a timeline of the caller's.
func TestGPUTimelinesBothWays(t *testing.T) {
	c := needGPU(t)
	s := newVulkanStream(t, c)
	shared, err := c.dev.NewTimeline(true)
	require.NoError(t, err)
	sem, err := c.ImportTimeline(shared)
	require.NoError(t, err)
	cs, err := c.NewStream()
	require.NoError(t, err)
	b := newBuffer(t, c, 1<<20)
	address, err := c.Address(b)
	require.NoError(t, err)
	// CUDA is given its work first, and has to wait.
	require.NoError(t, cs.WaitFor(sem, 1))
	require.NoError(t, cs.Fill(address, 2, 1<<19))
	require.NoError(t, cs.SignalTo(sem, 2))
	require.NoError(t, s.Fill(vk.BufferRange{Buffer: b}, 1))
	require.NoError(t, s.SignalTo(shared, 1))
	_, err = s.Submit()
	require.NoError(t, err)
	require.NoError(t, s.WaitFor(shared, 2))
	got := make([]byte, 1<<20)
	require.NoError(t, s.Download(background(t), got, b, 0))
	require.Equal(t, byte(2), got[0])
	require.Equal(t, byte(1), got[1<<19])
	require.NoError(t, shared.Wait(background(t), 2))
	require.NoError(t, cs.Wait(background(t)))
	require.NoError(t, sem.Close())
	require.NoError(t, shared.Close())
	require.NoError(t, cs.Close())
	plain, err := c.dev.NewTimeline(false)
	require.NoError(t, err)
	_, err = c.ImportTimeline(plain)
	require.ErrorIs(t, err, vk.ErrInvalid)
}

// gpuProblem is a call on the device and the same in host memory.
type gpuProblem struct {
	cfg          attention.Config
	device, host attention.Args
}

func newProblem(t testing.TB, c *Context, s *vk.Stream, cfg attention.Config, shape attention.Shape) *gpuProblem {
	t.Helper()
	p := &gpuProblem{cfg: cfg, device: attention.Args{Shape: shape}, host: attention.Args{Shape: shape}}
	tensor := func(i int, heads, seq, dim int) (onDevice, inHost attention.Tensor) {
		n := int64(shape.B) * int64(heads) * int64(seq) * int64(dim)
		inHost.Host = inputs.New(n, cfg.DType, inputs.Normal, uint64(i))
		onDevice.Buffer = newBuffer(t, c, uint64(len(inHost.Host)))
		require.NoError(t, s.Upload(onDevice.Buffer, 0, inHost.Host))
		return onDevice, inHost
	}
	p.device.Q, p.host.Q = tensor(1, shape.Hq, shape.Sq, cfg.HeadDim)
	p.device.K, p.host.K = tensor(2, shape.KVHeads(), shape.Sk, cfg.HeadDim)
	p.device.V, p.host.V = tensor(3, shape.KVHeads(), shape.Sk, cfg.ValueDim())
	p.device.O, p.host.O = tensor(4, shape.Hq, shape.Sq, cfg.ValueDim())
	p.host.LSE.Host = make([]byte, 4*shape.Rows())
	p.device.LSE.Buffer = newBuffer(t, c, uint64(len(p.host.LSE.Host)))
	return p
}

// run computes p, and returns what is wrong with the result.
func (p *gpuProblem) run(t testing.TB, op *attention.Op, s *vk.Stream) {
	t.Helper()
	require.NoError(t, op.Forward(attention.OnStream(s), p.device))
	require.NoError(t, s.Download(background(t), p.host.O.Host, p.device.O.Buffer, 0))
	require.NoError(t, s.Download(background(t), p.host.LSE.Host, p.device.LSE.Buffer, 0))
	verdict, err := accuracy.Verify(problem.Config(p.cfg), p.host, accuracy.Options{})
	require.NoError(t, err)
	require.True(t, verdict.Pass(), "%v %v: %v", p.cfg, p.device.Shape, verdict)
}

// Every family that the device has, on small problems of all kinds.
func TestGPUForward(t *testing.T) {
	c := needGPU(t)
	s := newVulkanStream(t, c)
	shape := attention.Shape{B: 1, Hq: 4, Hkv: 2, Sq: 130, Sk: 300}
	for _, family := range append([]string{""}, attention.CUDAKernels()...) {
		for _, dtype := range attention.DTypes() {
			for _, causal := range []attention.Causal{attention.CausalNone, attention.TopLeft, attention.BottomRight} {
				for _, dims := range [][2]int{{64, 64}, {128, 128}, {40, 72}, {33, 57}, {256, 256}, {192, 128}} {
					cfg := attention.Config{DType: dtype, HeadDim: dims[0], HeadDimV: dims[1], Causal: causal, Tier: attention.TierCUDA, Kernel: family}
					op, err := attention.New(attention.On(c.dev), cfg)
					if err != nil {
						require.ErrorIs(t, err, attention.ErrUnsupported)
						t.Logf("%v: %v", cfg, err)
						continue
					}
					plan, err := op.Plan(shape)
					require.NoError(t, err)
					if causal == attention.TopLeft {
						t.Log(plan)
					}
					newProblem(t, c, s, cfg, shape).run(t, op, s)
				}
			}
		}
	}
}

// Every tile of fa3, whichever the host would choose: with a CTA for each row block, with some, and with many for
// each. Tiles with the same keys give the same bits.
func TestGPUEveryTile(t *testing.T) {
	c := needGPU(t)
	s := newVulkanStream(t, c)
	all := c.table
	for _, shape := range []attention.Shape{
		{B: 1, Hq: 4, Hkv: 2, Sq: 130, Sk: 300}, {B: 1, Hq: 1, Hkv: 1, Sq: 1, Sk: 1}, {B: 1, Hq: 2, Hkv: 2, Sq: 700, Sk: 300},
		{B: 1, Hq: 6, Hkv: 6, Sq: 1600, Sk: 1600}, {B: 2, Hq: 40, Hkv: 8, Sq: 389, Sk: 389}, {B: 2, Hq: 40, Hkv: 8, Sq: 200, Sk: 1000},
	} {
		bits := map[string][]byte{} // by kind and keys
		for i := range all.kernels {
			k := &all.kernels[i]
			if k.Family != "fa3" || k.General || k.Latent {
				continue
			}
			one := *all
			one.kernels = []Kernel{*k}
			c.table = &one
			for _, causal := range []attention.Causal{attention.CausalNone, attention.TopLeft, attention.BottomRight} {
				if k.Causal != (causal != attention.CausalNone) {
					continue
				}
				dtype, err := attention.ParseDType(k.DType)
				require.NoError(t, err)
				cfg := attention.Config{DType: dtype, HeadDim: k.D, HeadDimV: k.DV, Causal: causal, Tier: attention.TierCUDA, Kernel: "fa3", Scale: attention.ScaleOf(-0.1)}
				op, err := attention.New(attention.On(c.dev), cfg)
				require.NoError(t, err)
				plan, err := op.Plan(shape)
				require.NoError(t, err)
				require.Equal(t, k.Entry, plan.Kernel)
				p := newProblem(t, c, s, cfg, shape)
				p.run(t, op, s)
				of := fmt.Sprintf("%v %d/%d %v %d", dtype, k.D, k.DV, causal, k.Cols)
				if bits[of] != nil {
					require.Equal(t, bits[of], p.host.O.Host, "%s: other bits", k.Entry)
				}
				bits[of] = p.host.O.Host
				require.NoError(t, op.Close())
			}
		}
	}
}

// The PTX of a module is compiled by the driver where there is no cubin for it.
func TestGPUCompilesPTX(t *testing.T) {
	c := needGPU(t)
	c.info.Major, c.info.Minor = 8, 6 // as if
	s := newVulkanStream(t, c)
	for _, family := range []string{"fa2", "ref"} {
		cfg := attention.Config{HeadDim: 64, Tier: attention.TierCUDA, Kernel: family}
		start := time.Now()
		op, err := attention.New(attention.On(c.dev), cfg)
		require.NoError(t, err)
		p := newProblem(t, c, s, cfg, attention.Shape{B: 1, Hq: 2, Sq: 200, Sk: 200})
		p.run(t, op, s)
		t.Logf("%s: first result after %v", family, time.Since(start))
	}
	_, err := attention.New(attention.On(c.dev), attention.Config{HeadDim: 64, Tier: attention.TierCUDA, Kernel: "fa3"})
	require.ErrorIs(t, err, attention.ErrUnsupported)
	t.Log(err)
}

func openFDs(t testing.TB) int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(list)
}
