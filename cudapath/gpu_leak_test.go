//go:build !windows

package cudapath

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/vk"
)

// usage is what must stay flat.
type usage struct {
	fds    int
	rss    int    // of the process, KiB
	device uint64 // bytes in use on the device, as nvidia-smi counts them; 0: unknown
}

func measure(t testing.TB) usage {
	t.Helper()
	u := usage{fds: openFDs(t)}
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmRSS:" {
			u.rss, _ = strconv.Atoi(f[1])
		}
	}
	if out, err := exec.Command("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits").Output(); err == nil {
		first, _, _ := strings.Cut(string(out), "\n")
		mib, _ := strconv.ParseUint(strings.TrimSpace(first), 10, 64)
		u.device = mib << 20
	}
	return u
}

// flat repeats a cycle and fails when file descriptors or memory grow. The first
// tenth is for what drivers set up once.
func flat(t *testing.T, cycles int, cycle func(i int)) {
	t.Helper()
	measure(t) // the first time, Go opens descriptors for what it starts
	start := time.Now()
	for i := range cycles / 10 {
		cycle(i)
	}
	before := measure(t)
	for i := cycles / 10; i < cycles; i++ {
		if i%(cycles/5) == 0 {
			t.Logf("after %d: %+v", i, measure(t))
		}
		cycle(i)
	}
	after := measure(t)
	t.Logf("%d cycles in %v: before %+v, after %+v", cycles, time.Since(start), before, after)
	require.Equal(t, before.fds, after.fds, "file descriptors")
	require.Less(t, after.rss-before.rss, 8<<10, "KiB of memory over %d cycles", cycles)
	require.Less(t, int64(after.device)-int64(before.device), int64(64<<20), "bytes of the device's memory")
}

// TestGPULeaks: 10,000 imports and exports of each kind.
func TestGPULeaks(t *testing.T) {
	c := needGPU(t)
	cycles := 10_000
	if testing.Short() {
		cycles = 200
	}
	t.Run("a Vulkan buffer imported into CUDA", func(t *testing.T) {
		flat(t, cycles, func(int) {
			b, err := c.dev.NewBuffer(64<<10, vk.BufferOptions{Exportable: true})
			require.NoError(t, err)
			_, err = c.Address(b)
			require.NoError(t, err)
			require.NoError(t, b.Close())
		})
	})
	t.Run("CUDA memory as a Vulkan buffer", func(t *testing.T) {
		flat(t, cycles, func(i int) {
			m, err := c.Alloc(64 << 10)
			require.NoError(t, err)
			b, err := m.Buffer(c.dev)
			require.NoError(t, err)
			if i%2 == 0 {
				require.NoError(t, m.Close())
				require.NoError(t, b.Close())
			} else {
				require.NoError(t, b.Close())
				require.NoError(t, m.Close())
			}
		})
	})
	t.Run("a timeline", func(t *testing.T) {
		flat(t, cycles, func(int) {
			shared, err := c.dev.NewTimeline(true)
			require.NoError(t, err)
			sem, err := c.ImportTimeline(shared)
			require.NoError(t, err)
			require.NoError(t, sem.Close())
			require.NoError(t, shared.Close())
		})
	})
	t.Run("a stream with its CUDA side", func(t *testing.T) {
		b := newBuffer(t, c, 4096)
		address, err := c.Address(b)
		require.NoError(t, err)
		flat(t, cycles/10, func(int) {
			s, err := c.dev.NewStream("")
			require.NoError(t, err)
			cs, err := c.Turn(s, b)
			require.NoError(t, err)
			require.NoError(t, cs.Fill(address, 1, 4096))
			require.NoError(t, s.Close())
		})
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	require.LessOrEqual(t, len(c.owned), 1, "things of CUDA's that nobody uses")
}

// A device that is closed with CUDA work in flight, and everything else still open.
func TestGPUCloseInAnyOrder(t *testing.T) {
	c := needGPU(t)
	c.dev.Close() // one of its own, below
	for i := range 6 {
		dev, err := vk.Open(vk.Options{PipelineCache: "off"})
		require.NoError(t, err)
		c, err := Open(dev)
		require.NoError(t, err)
		s, err := dev.NewStream("")
		require.NoError(t, err)
		op, err := attention.New(attention.On(dev), attention.Config{HeadDim: 128, Tier: attention.TierCUDA})
		require.NoError(t, err)
		m, err := c.Alloc(1 << 20)
		require.NoError(t, err)
		mb, err := m.Buffer(dev)
		require.NoError(t, err)
		cs, err := c.NewStream()
		require.NoError(t, err)
		e, err := c.NewEvent()
		require.NoError(t, err)
		shape := attention.Shape{B: 4, Hq: 8, Sq: 4096, Sk: 4096}
		var tensors [4]attention.Tensor
		for j := range tensors {
			tensors[j].Buffer, err = dev.NewBuffer(uint64(shape.Rows())*256, vk.BufferOptions{Exportable: true})
			require.NoError(t, err)
			require.NoError(t, s.Fill(vk.BufferRange{Buffer: tensors[j].Buffer}, 0))
		}
		args := attention.Args{Shape: shape, Q: tensors[0], K: tensors[1], V: tensors[2], O: tensors[3]}
		require.NoError(t, op.Forward(attention.OnStream(s), args))
		for _, x := range tensors {
			require.NoError(t, x.Buffer.Close(), "held by the work")
		}
		switch i {
		case 1:
			require.NoError(t, s.Close())
		case 2:
			_, err := s.Submit()
			require.NoError(t, err)
		case 3:
			require.NoError(t, m.Close())
		case 4:
			require.NoError(t, mb.Close())
			require.NoError(t, dev.WaitIdle())
		case 5:
			require.NoError(t, op.Close())
			require.NoError(t, s.Wait(background(t)))
		}
		require.NoError(t, dev.Close())
		require.NoError(t, dev.Close())
		require.ErrorIs(t, m.CopyFromHost(0, []byte{1}), vk.ErrClosed)
		_, err = c.Alloc(1)
		require.ErrorIs(t, err, vk.ErrClosed)
		_, err = c.Turn(s)
		require.ErrorIs(t, err, vk.ErrClosed)
		require.Error(t, op.Forward(attention.OnStream(s), args))
		require.NoError(t, m.Close())
		require.NoError(t, mb.Close())
		require.NoError(t, cs.Close())
		require.NoError(t, e.Close())
		require.NoError(t, s.Close())
		require.NoError(t, op.Close())
	}
}
