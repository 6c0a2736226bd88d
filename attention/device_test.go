package attention_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/testdevices"
	"vkattn/vk"
)

// drawn makes a tensor of random numbers and returns them.
func drawn(t *testing.T, dev *attention.Device, seed uint64, shape ...int) (attention.Tensor, []float32) {
	t.Helper()
	x, err := dev.Tensor(attention.F16, shape...)
	require.NoError(t, err)
	n := 1
	for _, size := range shape {
		n *= size
	}
	r, numbers := rand.New(rand.NewPCG(seed, 0)), make([]float32, n)
	for i := range numbers {
		numbers[i] = float32(r.NormFloat64())
	}
	require.NoError(t, x.SetFloats(numbers))
	return x, numbers
}

// The same program computes on the CPU and on a device: each call sees what those before it wrote, without a
// stream, a barrier or a Shape.
func TestOneProgramOnEveryDevice(t *testing.T) {
	for _, dev := range testdevices.All(t) {
		t.Run(dev.String(), func(t *testing.T) {
			cfg := attention.Config{HeadDim: 32, Causal: attention.BottomRight}
			op := testdevices.Op(t, dev, cfg)
			a := attention.BackwardArgs{}
			a.Q, _ = drawn(t, dev, 1, 2, 4, 20, 32)
			a.K, _ = drawn(t, dev, 2, 2, 2, 30, 32)
			a.V, _ = drawn(t, dev, 3, 2, 2, 30, 32)
			a.O, _ = drawn(t, dev, 4, 2, 4, 20, 32)
			a.DO, _ = drawn(t, dev, 5, 2, 4, 20, 32)
			a.DQ, _ = drawn(t, dev, 6, 2, 4, 20, 32)
			var err error
			a.LSE, err = dev.Tensor(attention.F32, 2, 4, 20)
			require.NoError(t, err)
			require.NoError(t, op.Forward(nil, a.Args))
			require.NoError(t, op.Backward(nil, a))
			require.NoError(t, dev.Wait(t.Context()))

			host := a
			for to, from := range map[*attention.Tensor]attention.Tensor{&host.Q: a.Q, &host.K: a.K, &host.V: a.V, &host.DO: a.DO} {
				b, err := from.Bytes(t.Context())
				require.NoError(t, err)
				*to = attention.Tensor{Host: b}
			}
			host.Shape = attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 20, Sk: 30}
			host.O = attention.Tensor{Host: make([]byte, 2*2*4*20*32)}
			host.LSE = attention.Tensor{Host: make([]byte, 4*2*4*20)}
			host.DQ = attention.Tensor{Host: make([]byte, 2*2*4*20*32)}
			wantO, wantLSE, err := attention.Reference(cfg, host.Args)
			require.NoError(t, err)
			o, err := a.O.Floats(t.Context())
			require.NoError(t, err)
			require.InDeltaSlice(t, wantO, o, 4e-3)
			lse, err := a.LSE.Floats(t.Context())
			require.NoError(t, err)
			require.InDeltaSlice(t, wantLSE, lse, 1e-3)
			want, err := attention.ReferenceBackward(cfg, host)
			require.NoError(t, err)
			dq, err := a.DQ.Floats(t.Context())
			require.NoError(t, err)
			require.InDeltaSlice(t, want.DQ, dq, 2e-2)
		})
	}
}

// A tensor knows what it holds: another type, another shape or too few numbers are errors that name it.
func TestTensorsKnowWhatTheyHold(t *testing.T) {
	for _, dev := range testdevices.All(t) {
		t.Run(dev.String(), func(t *testing.T) {
			op := testdevices.Op(t, dev, attention.Config{HeadDim: 8})
			var err error
			good := attention.Args{}
			for i, x := range []*attention.Tensor{&good.Q, &good.K, &good.V, &good.O} {
				*x, _ = drawn(t, dev, uint64(i), 1, 2, 5, 8)
			}
			require.NoError(t, op.Forward(nil, good))
			check := func(want string, change func(a *attention.Args)) {
				t.Helper()
				a := good
				change(&a)
				err := op.Forward(nil, a)
				require.ErrorIs(t, err, attention.ErrInvalid)
				require.ErrorContains(t, err, want)
			}
			check("Q is a tensor of f32, want f16", func(a *attention.Args) { a.Q, err = dev.Tensor(attention.F32, 1, 2, 5, 8) })
			check("V is a tensor of bf16, want f16", func(a *attention.Args) { a.V, err = dev.Tensor(attention.BF16, 1, 2, 5, 8) })
			check("O is a tensor of [1 5 2 8], want [1 2 5 8]", func(a *attention.Args) { a.O, err = dev.Tensor(attention.F16, 1, 5, 2, 8) })
			check("K is a tensor of [2 2 5 8], want the batch of Q", func(a *attention.Args) { a.K, err = dev.Tensor(attention.F16, 2, 2, 5, 8) })
			check("LSE is a tensor of f16, want f32", func(a *attention.Args) { a.LSE, err = dev.Tensor(attention.F16, 1, 2, 5) })
			require.ErrorContains(t, good.Q.SetFloats(make([]float32, 79)), "79 numbers, want 80")
			require.ErrorContains(t, good.Q.SetBytes(make([]byte, 80)), "80 bytes, want 160")
			_, err = attention.Tensor{Host: make([]byte, 160)}.Floats(t.Context())
			require.ErrorIs(t, err, attention.ErrInvalid)
			for _, shape := range [][]int{{}, {1, 2, 3, 4, 5}, {-1}, {1 << 31, 1 << 31, 1 << 31}} {
				_, err := dev.Tensor(attention.F16, shape...)
				require.ErrorIs(t, err, attention.ErrInvalid, "%v", shape)
			}
			_, err = dev.Tensor(attention.DType(9), 1)
			require.ErrorIs(t, err, attention.ErrInvalid)
		})
	}
}

// Memory of the caller has a type and a shape too, if he says so: float32 bytes in a float16 call are an error.
func TestWrappedMemoryKnowsWhatItHolds(t *testing.T) {
	for _, dev := range testdevices.All(t) {
		t.Run(dev.String(), func(t *testing.T) {
			x, numbers := drawn(t, dev, 3, 3, 2, 5, 8)
			memory := attention.Tensor{Buffer: x.Buffer, Host: x.Host, Offset: 2 * 5 * 8} // the last two batches
			wrapped, err := dev.Wrap(memory, attention.F16, 2, 2, 5, 8)
			require.NoError(t, err)
			got, err := wrapped.Floats(t.Context())
			require.NoError(t, err)
			all, err := x.Floats(t.Context())
			require.NoError(t, err)
			require.Equal(t, all[2*5*8:], got)
			require.NoError(t, wrapped.SetFloats(numbers[:2*2*5*8]))
			require.NoError(t, wrapped.Close())
			all, err = x.Floats(t.Context())
			require.NoError(t, err)
			require.Equal(t, all[:2*5*8], all[2*5*8:][:2*5*8], "the memory is the caller's")
			memory.Strides = attention.BSHD(2, 5, 8)
			_, err = dev.Wrap(memory, attention.F16, 2, 2, 5, 8)
			require.NoError(t, err)

			op := testdevices.Op(t, dev, attention.Config{HeadDim: 8})
			memory = attention.Tensor{Buffer: x.Buffer}
			if x.Host != nil {
				memory = attention.Tensor{Host: x.Host[:320]}
			}
			f32, err := dev.Wrap(memory, attention.F32, 1, 2, 5, 8)
			require.NoError(t, err)
			one, err := wrapped.Slice(0, 0, 1)
			require.NoError(t, err)
			require.ErrorContains(t, op.Forward(nil, attention.Args{Q: f32, K: one, V: one, O: one}), "Q is a tensor of f32, want f16")
			_, err = dev.Wrap(memory, attention.F16, 4, 2, 5, 8)
			require.ErrorContains(t, err, "at least")
			_, err = dev.Wrap(attention.Tensor{}, attention.F16, 1)
			require.ErrorContains(t, err, "missing")
			if dev.Vulkan() == nil {
				_, err = dev.Wrap(attention.Tensor{Host: make([]byte, 320)}, attention.F16, 1, 2, 5, 8)
				require.ErrorContains(t, err, "320 bytes, want 160", "float32 bytes")
			} else {
				_, err = dev.Wrap(attention.Tensor{Host: make([]byte, 160)}, attention.F16, 1, 2, 5, 8)
				require.ErrorContains(t, err, "the operation's device")
			}
		})
	}
}

// Views share memory: a call over some batches, heads or rows reads and writes those alone.
func TestViewsShareMemory(t *testing.T) {
	for _, dev := range testdevices.All(t) {
		t.Run(dev.String(), func(t *testing.T) {
			x, numbers := drawn(t, dev, 7, 2, 3, 4, 8)
			require.NoError(t, x.SetFloats(numbers))
			all, err := x.Floats(t.Context())
			require.NoError(t, err)
			v, err := x.Slice(1, 1, 3)
			require.NoError(t, err)
			v, err = v.Slice(2, 2, 3)
			require.NoError(t, err)
			require.Equal(t, []int{2, 2, 1, 8}, v.Shape())
			got, err := v.Floats(t.Context())
			require.NoError(t, err)
			var want []float32
			for _, row := range []int{1*4 + 2, 2*4 + 2, 4*4 + 2, 5*4 + 2} {
				want = append(want, all[8*row:][:8]...)
			}
			require.Equal(t, want, got)
			require.NoError(t, v.SetFloats(make([]float32, 32)))
			for _, row := range []int{1*4 + 2, 2*4 + 2, 4*4 + 2, 5*4 + 2} {
				clear(all[8*row:][:8])
			}
			got, err = x.Floats(t.Context())
			require.NoError(t, err)
			require.Equal(t, all, got)
			for _, bad := range [][3]int{{4, 0, 1}, {-1, 0, 1}, {0, -1, 1}, {0, 1, 3}, {0, 2, 1}} {
				_, err := x.Slice(bad[0], bad[1], bad[2])
				require.ErrorIs(t, err, attention.ErrInvalid, "%v", bad)
			}
			_, err = x.Slice(3, 0, 4)
			require.ErrorIs(t, err, attention.ErrUnsupported)
		})
	}
}

// The default stream is locked: goroutines compute on one device, each with tensors of its own.
func TestGoroutinesShareTheDefaultStream(t *testing.T) {
	for _, dev := range testdevices.All(t) {
		t.Run(dev.String(), func(t *testing.T) {
			op := testdevices.Op(t, dev, attention.Config{HeadDim: 16})
			results := make([][]float32, 4)
			var wg sync.WaitGroup
			for i := range results {
				wg.Go(func() {
					for range 3 {
						a := attention.Args{}
						for seed, x := range []*attention.Tensor{&a.Q, &a.K, &a.V, &a.O} {
							*x, _ = drawn(t, dev, uint64(seed), 1, 1, 9, 16)
						}
						if err := op.Forward(nil, a); err != nil {
							t.Error(err)
							return
						}
						o, err := a.O.Floats(t.Context())
						if err != nil {
							t.Error(err)
						}
						results[i] = o
						for _, x := range []attention.Tensor{a.Q, a.K, a.V, a.O} {
							if err := x.Close(); err != nil {
								t.Error(err)
							}
						}
					}
				})
			}
			wg.Wait()
			for i := range results {
				require.Equal(t, results[0], results[i], fmt.Sprint(i))
			}
		})
	}
}

// Without a usable GPU Open takes the CPU and says why; a device that is named must be there.
func TestOpenSaysWhyItTakesTheCPU(t *testing.T) {
	if driver := os.Getenv("VKATTN_DRIVER"); driver != "none" {
		t.Skip("for a machine without a Vulkan driver")
	}
	dev, err := attention.Open(attention.Options{})
	require.NoError(t, err)
	require.Nil(t, dev.Vulkan())
	require.NotEmpty(t, dev.WhyCPU())
	_, err = attention.Open(attention.Options{Vulkan: vk.Options{Device: "no such device"}})
	require.ErrorIs(t, err, vk.ErrNoDevice)
}

// The gradient of a sum has one row: expanded over batches, heads and rows it gives the gradients of the same numbers
// written out, and so does a row of V.
func TestExpandedTensors(t *testing.T) {
	for _, dev := range testdevices.All(t) {
		t.Run(dev.String(), func(t *testing.T) {
			op := testdevices.Op(t, dev, attention.Config{HeadDim: 16})
			one, numbers := drawn(t, dev, 3, 1, 1, 1, 16)
			var all []float32
			for range 2 * 2 * 9 {
				all = append(all, numbers...)
			}
			whole, err := dev.Tensor(attention.F16, 2, 2, 9, 16)
			require.NoError(t, err)
			require.NoError(t, whole.SetFloats(all))
			expanded, err := one.Expand(2, 2, 9, 16)
			require.NoError(t, err)
			got, err := expanded.Floats(t.Context())
			require.NoError(t, err)
			want, err := whole.Floats(t.Context())
			require.NoError(t, err)
			require.Equal(t, want, got)
			var results [2][3][]float32
			for i, x := range []attention.Tensor{whole, expanded} {
				a := attention.BackwardArgs{DO: x}
				a.V = x
				a.Q, _ = drawn(t, dev, 1, 2, 2, 9, 16)
				a.K, _ = drawn(t, dev, 2, 2, 2, 9, 16)
				a.O, _ = drawn(t, dev, 4, 2, 2, 9, 16)
				a.DQ, _ = drawn(t, dev, 5, 2, 2, 9, 16)
				a.DV, _ = drawn(t, dev, 6, 2, 2, 9, 16)
				a.LSE, err = dev.Tensor(attention.F32, 2, 2, 9)
				require.NoError(t, err)
				require.NoError(t, op.Forward(nil, a.Args))
				require.NoError(t, op.Backward(nil, a))
				for j, y := range []attention.Tensor{a.O, a.DQ, a.DV} {
					results[i][j], err = y.Floats(t.Context())
					require.NoError(t, err)
				}
			}
			require.Equal(t, results[0], results[1])
			require.ErrorIs(t, expanded.SetFloats(all), attention.ErrInvalid)
			for _, bad := range [][]int{{2, 2, 9}, {2, 2, 9, 17}, {-1, 2, 9, 16}} {
				_, err := one.Expand(bad...)
				require.ErrorIs(t, err, attention.ErrInvalid, "%v", bad)
			}
			_, err = whole.Expand(4, 2, 9, 16)
			require.ErrorIs(t, err, attention.ErrInvalid)
			// As an output its rows overlap.
			a := attention.Args{Q: whole, K: whole, V: whole, O: expanded}
			require.ErrorIs(t, op.Forward(nil, a), attention.ErrInvalid)
		})
	}
}
