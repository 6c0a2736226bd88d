//go:build !windows

package cudapath

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// needCUDA opens the first CUDA device without Vulkan, or says why it skips.
func needCUDA(t testing.TB) *attention.Device {
	t.Helper()
	if err := Available(); err != nil {
		t.Skipf("no CUDA here: %v", err)
	}
	dev, err := OpenDevice(DeviceOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

// forwardByVulkan is forwardOnDevice on a Vulkan device that shares its memory with CUDA.
func forwardByVulkan(t testing.TB, c *Context, kernel string, p *cases.Problem, images [][]byte) (after [][]byte) {
	t.Helper()
	s := newVulkanStream(t, c)
	var buffers []*vk.Buffer
	for _, image := range images {
		x := newBuffer(t, c, uint64(len(image)+3)&^3)
		require.NoError(t, s.Upload(x, 0, image))
		buffers = append(buffers, x)
	}
	op, err := attention.New(attention.On(c.dev), configOf(&p.Case, p.DType, kernel))
	require.NoError(t, err)
	require.NoError(t, op.Forward(attention.OnStream(s), p.DeviceArgs(buffers)))
	for i, x := range buffers {
		after = append(after, make([]byte, len(images[i])))
		require.NoError(t, s.Download(background(t), after[i], x, 0))
	}
	require.NoError(t, op.Close())
	return after
}

// The tables of dense calls without Vulkan. Where the device is Vulkan's too, the bits are those of the kernels between
// the batches of a Vulkan stream.
func TestGPUDeviceForward(t *testing.T) {
	dev := needCUDA(t)
	var vulkan *Context
	if v, err := vk.Open(vk.Options{PipelineCache: "off"}); err == nil {
		t.Cleanup(func() { require.NoError(t, v.Close()) })
		vulkan, _ = Open(v)
	}
	t.Logf("%v, also by Vulkan: %v", dev, vulkan != nil)
	for _, kernel := range []string{"", "fa3", "fa2", "ref"} {
		for which, dtype := range attention.DTypes() {
			t.Run(fmt.Sprint(kernel, "/", dtype), func(t *testing.T) {
				table := slices.Concat(cases.Brief(which), cases.Notable())
				if testlevel.IsExhaustive() || testlevel.Get() == testlevel.All {
					table = cases.All()
				}
				n, refused := 0, 0
				for _, x := range table {
					if x.Flops() > 1<<30 {
						continue
					}
					if op, err := attention.New(dev, configOf(&x, dtype, kernel)); err != nil {
						require.ErrorIs(t, err, attention.ErrUnsupported)
						refused++
						continue
					} else if _, err := op.Plan(x.Bounds()); err != nil {
						require.ErrorIs(t, err, attention.ErrUnsupported)
						refused++
						continue
					}
					if kernel == "fa3" && (!alignedForFA3(&x) || x.D > 256 && !x.VInK) { // Plan takes wide ones for latent attention
						continue
					}
					n++
					t.Run(x.String(), func(t *testing.T) {
						p, err := cases.NewProblem(x, dtype)
						require.NoError(t, err)
						after := judgeForwardOnDevice(t, dev, kernel, p)
						if vulkan != nil && n%4 == 0 {
							require.NoError(t, p.Same(after, forwardByVulkan(t, vulkan, kernel, p, p.Image)))
						}
					})
				}
				t.Logf("%d cases computed, %d refused", n, refused)
			})
		}
	}
}

// The tables of options without Vulkan, by the general kernels of fa2 and fa3.
func TestGPUDeviceForwardOptions(t *testing.T) {
	dev := needCUDA(t)
	for which, dtype := range []attention.DType{attention.F16, attention.BF16} {
		t.Run(dtype.String(), func(t *testing.T) {
			table := cases.DealOptions(cases.BriefOptions(), 3)[which]
			if testlevel.IsExhaustive() || testlevel.Get() == testlevel.All {
				table = cases.AllOptions()
			}
			n := 0
			for _, x := range table {
				if !computesForward(&x) || x.Flops() > 1<<30 {
					continue
				}
				n++
				t.Run(x.String(), func(t *testing.T) {
					p, err := cases.NewProblem(x, dtype)
					require.NoError(t, err)
					judgeOptionsOnDevice(t, dev, "", p)
				})
			}
			t.Logf("%d cases", n)
		})
	}
}

// The fa3 kernels for lengths and windows compute the cases of their emulation, and the same bits a hundred times.
func TestGPUDeviceSequences(t *testing.T) {
	dev := needCUDA(t)
	for _, dtype := range []attention.DType{attention.F16, attention.BF16} {
		for _, x := range sequenceCases() {
			t.Run(fmt.Sprint(dtype, "/", x.String()), func(t *testing.T) {
				p, err := cases.NewProblem(x, dtype)
				require.NoError(t, err)
				judgeOptionsOnDevice(t, dev, "fa3", p)
				after := forwardOnDevice(t, dev, "fa3", p, p.Image)
				for range 100 {
					require.NoError(t, p.Same(after, forwardOnDevice(t, dev, "fa3", p, p.Image)))
				}
			})
		}
	}
}

// Decode without Vulkan, over K and V stored as Q and quantized: short and long caches, whose keys are split.
func TestGPUDeviceDecode(t *testing.T) {
	dev := needCUDA(t)
	var vulkan *Context
	if v, err := vk.Open(vk.Options{PipelineCache: "off"}); err == nil {
		t.Cleanup(func() { require.NoError(t, v.Close()) })
		vulkan, _ = Open(v)
	}
	t.Logf("%v, quantized K and V also by Vulkan: %v", dev, vulkan != nil)
	for _, dtype := range []attention.DType{attention.F16, attention.BF16} {
		for _, d := range []int{64, 128, 256} {
			for _, kv := range append([]attention.KVType{attention.KVSame}, decodeTypes...) {
				list := decodeCases(d, kv)
				if kv == attention.KVSame {
					list = asQCases(d)
				}
				long := cases.Case{Name: "long", D: d, Dv: d, KeyType: kv, LSE: true, LooseK: true, PageSize: 64, Causal: attention.BottomRight,
					Seqs: []cases.Seq{{ID: 1, Rows: 1, Keys: 9000}, {ID: 2, Rows: 1, Keys: 700}, {ID: 3, Rows: 1, Keys: 4097}}}
				long.Shape.Hq, long.Shape.Hkv = 8, 2
				for _, x := range append(list, long) {
					t.Run(fmt.Sprintf("%v/%v", dtype, x), func(t *testing.T) {
						p, err := cases.NewProblem(x, dtype)
						require.NoError(t, err)
						judgeDecodeOnDevice(t, dev, p)
						if vulkan != nil && kv != attention.KVSame {
							judgeDecode(t, p, forwardByVulkan(t, vulkan, "", p, p.Image))
						}
					})
				}
			}
		}
	}
}

// The tables of gradients without Vulkan, as TestGPUBackward has them with it.
func TestGPUDeviceBackward(t *testing.T) {
	dev := needCUDA(t)
	for _, kernel := range []string{"fa3", "fa2", "ref"} {
		for which, dtype := range attention.DTypes() {
			t.Run(fmt.Sprint(kernel, "/", dtype), func(t *testing.T) {
				table := append(cases.Brief(which), cases.DealOptions(cases.BriefOptions(), 3)[which]...)
				if testlevel.IsExhaustive() || testlevel.Get() == testlevel.All {
					table = append(cases.Brief(which), cases.AllOptions()...)
				}
				n := 0
				for _, x := range table {
					if !takenBackward(&x) || x.Flops() > 1<<28 {
						continue
					}
					if taken := map[string]func(*cases.Case, attention.DType) bool{"fa3": takenByFA3, "fa2": takenByFA2}[kernel]; taken != nil {
						if !taken(&x, dtype) {
							continue
						}
					} else if n++; !testlevel.Share(n%8 == which) {
						continue
					}
					t.Run(x.String(), func(t *testing.T) {
						b, err := cases.NewBackward(x, dtype)
						require.NoError(t, err)
						after := gradientsOnDevice(t, dev, kernel, b, b.Image)
						require.NoError(t, b.BackwardTrespass(b.Image, after))
						require.NoError(t, b.BackwardJudge(after))
						spoiled := b.BackwardSpoiled()
						again := gradientsOnDevice(t, dev, kernel, b, spoiled)
						require.NoError(t, b.BackwardTrespass(spoiled, again))
						require.NoError(t, b.BackwardSame(after, again))
					})
				}
			})
		}
	}
}

// A captured graph draws a mask of dropout at each replay, and stores the largest score of each head.
func TestGPUDeviceGraphDrawsMasks(t *testing.T) {
	dev := needCUDA(t)
	for _, dtype := range []attention.DType{attention.F16, attention.BF16} {
		t.Run(dtype.String(), func(t *testing.T) {
			replayOutputs(t, dev, dtype, attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 333, Sk: 700}, 50)
		})
	}
}

// A captured forward and backward call, launched 1,000 times with new contents, gives the bits of the calls.
func TestGPUDeviceGraph(t *testing.T) {
	dev := needCUDA(t)
	launches := 1000
	if testing.Short() {
		launches = 50
	}
	for _, x := range []struct {
		kernel  string
		headDim int
	}{{"fa3", 64}, {"fa3", 128}, {"fa3", 192}, {"fa3", 256}, {"fa2", 64}, {"fa2", 33}, {"ref", 64}} {
		t.Run(fmt.Sprint(x.kernel, " d", x.headDim), func(t *testing.T) {
			cfg := attention.Config{HeadDim: x.headDim, Causal: attention.BottomRight, Tier: attention.TierCUDA, Kernel: x.kernel}
			replay(t, dev, cfg, attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 200, Sk: 333}, launches, 5)
		})
	}
}

// A stream of the caller's that is CUDA's default one.
func TestGPUDeviceDefaultStream(t *testing.T) {
	dev := needCUDA(t)
	for _, handle := range []uint64{0, 1, 2} { // the legacy one by both names, and that of the thread
		s, err := WrapStream(dev, handle)
		require.NoError(t, err, handle)
		a := problemOn(t, dev, attention.F16, attention.Shape{B: 1, Hq: 2, Sq: 100, Sk: 100}, 64)
		require.NoError(t, dev.Wait(background(t)))
		op, err := attention.New(dev, attention.Config{HeadDim: 64})
		require.NoError(t, err)
		require.NoError(t, op.Forward(nil, a.Args))
		want, err := a.O.Bytes(background(t))
		require.NoError(t, err)
		require.NoError(t, a.O.SetBytes(make([]byte, len(want))))
		require.NoError(t, dev.Wait(background(t)))
		require.NoError(t, op.Forward(s, a.Args))
		require.NoError(t, op.Backward(s, a))
		require.NoError(t, s.Wait(background(t)))
		got, err := a.O.Bytes(background(t))
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.NoError(t, s.Close())
		closeAll(t, &a)
	}
}

// What a call and the launch of a graph cost the host.
func BenchmarkGPUDeviceCall(b *testing.B) {
	dev := needCUDA(b)
	c := ContextOf(dev)
	g := newGraphs(b, c)
	own, err := c.NewStream()
	require.NoError(b, err)
	defer own.Close()
	s, err := WrapStream(dev, own.Handle())
	require.NoError(b, err)
	a := problemOn(b, dev, attention.F16, attention.Shape{B: 1, Hq: 8, Sq: 128, Sk: 128}, 64)
	defer closeAll(b, &a)
	require.NoError(b, dev.Wait(background(b)))
	op, err := attention.New(dev, attention.Config{HeadDim: 64})
	require.NoError(b, err)
	require.NoError(b, op.Forward(s, a.Args))
	require.NoError(b, op.Backward(s, a))
	require.NoError(b, s.Wait(background(b)))
	launch := g.capture(b, own.Handle(), func() {
		for range 100 {
			require.NoError(b, op.Forward(s, a.Args))
		}
	})
	for _, x := range []struct {
		name string
		call func() error
	}{{"forward", func() error { return op.Forward(s, a.Args) }}, {"backward", func() error { return op.Backward(s, a) }},
		{"graph of 100 forward calls", func() error { launch(); return nil }}} {
		b.Run(x.name, func(b *testing.B) {
			b.ReportAllocs()
			start, host := time.Now(), time.Duration(0)
			for i := range b.N {
				if i%500 == 499 { // the driver's queue is finite
					host += time.Since(start)
					require.NoError(b, s.Wait(background(b)))
					start = time.Now()
				}
				if err := x.call(); err != nil {
					b.Fatal(err)
				}
			}
			host += time.Since(start)
			require.NoError(b, s.Wait(background(b)))
			b.ReportMetric(float64(host.Nanoseconds())/float64(b.N), "host-ns/op")
		})
	}
}

// Rows whose scores are all -Inf count as rows with nothing to attend to, in the kernels that compute calls without options and in
// those of latent attention.
func TestGPUDeviceRowsWithoutAFiniteScore(t *testing.T) {
	dev := needCUDA(t)
	for _, c := range []cases.Case{
		{D: 64, Dv: 64}, {D: 128, Dv: 128, Causal: attention.TopLeft}, {D: 192, Dv: 128}, {D: 256, Dv: 256},
		{D: 576, Dv: 512, VInK: true}, {D: 576, Dv: 512, VInK: true, Causal: attention.BottomRight},
	} {
		c.LSE, c.Seed, c.Shape = true, 7, attention.Shape{B: 2, Hq: 4, Hkv: 1, Sq: 70, Sk: 300}
		for _, dtype := range []attention.DType{attention.F16, attention.BF16} {
			t.Run(fmt.Sprint(dtype, " ", c.String()), func(t *testing.T) {
				p, err := cases.NewProblem(c, dtype)
				require.NoError(t, err)
				requireNothing(t, p, forwardOnDevice(t, dev, "", p, withoutFiniteScores(t, p)))
			})
		}
	}
}
