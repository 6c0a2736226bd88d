//go:build !windows

package cudapath

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/testlevel"
)

// hostParams are the parameters of a call in host memory, without the workspace.
func hostParams(cfg attention.Config, a attention.BackwardArgs) (p backwardParams) {
	size := cfg.DType.Size()
	rows, keys := a.Sq, a.Sk
	p = backwardParams{b: int32(a.B), hq: int32(a.Hq), hkv: int32(a.KVHeads()), sq: int32(a.Sq), sk: int32(a.Sk), d: int32(cfg.HeadDim), dv: int32(cfg.ValueDim()),
		left: math.MaxInt32, right: math.MaxInt32, scale: cfg.ScaleValue(), softcap: cfg.Softcap}
	if v := a.Varlen; v != nil {
		p.cuQ, p.cuK = hostAddress(v.CuQ.Host, v.CuQ.Offset, 4), hostAddress(v.CuK.Host, v.CuK.Offset, 4)
		p.usedQ, p.usedK = hostAddress(v.UsedQ.Host, v.UsedQ.Offset, 4), hostAddress(v.UsedK.Host, v.UsedK.Offset, 4)
		p.totalQ, p.totalK = int32(v.TotalQ), int32(v.TotalK)
		if v.CuQ.Given() {
			rows = v.TotalQ
		}
		if v.CuK.Given() {
			keys = v.TotalK
		}
	}
	for _, x := range []struct {
		to              *tensorParams
		x               attention.Tensor
		heads, seq, dim int
	}{
		{&p.q, a.Q, a.Hq, rows, cfg.HeadDim}, {&p.k, a.K, a.KVHeads(), keys, cfg.HeadDim}, {&p.v, a.V, a.KVHeads(), keys, cfg.ValueDim()},
		{&p.o, a.O, a.Hq, rows, cfg.ValueDim()}, {&p.dO, a.DO, a.Hq, rows, cfg.ValueDim()}, {&p.dQ, a.DQ, a.Hq, rows, cfg.HeadDim},
		{&p.dK, a.DK, a.KVHeads(), keys, cfg.HeadDim}, {&p.dV, a.DV, a.KVHeads(), keys, cfg.ValueDim()},
	} {
		*x.to = hostTensor(x.x, size, x.heads, x.seq, x.dim)
	}
	p.lse, p.dLSE = hostAddress(a.LSE.Host, a.LSE.Offset, 4), hostAddress(a.DLSE.Host, a.DLSE.Offset, 4)
	if cfg.Causal != attention.CausalNone {
		p.right = 0
	}
	if cfg.Causal == attention.BottomRight || cfg.Causal == attention.CausalNone && cfg.Align == attention.BottomRight {
		p.bottomRight = 1
	}
	if w := cfg.Window; w.Given() {
		if w.Left() >= 0 {
			p.left = int32(w.Left())
		}
		if w.Right() >= 0 {
			p.right = min(p.right, int32(w.Right()))
		}
	}
	if a.PartialKeys {
		p.accumulate |= lseOfMoreKeys
	}
	if a.Accumulate {
		p.accumulate |= 1
	}
	return p
}

// hostWorkspace is a workspace in host memory that holds NaN.
func hostWorkspace(n uint64) []byte { return bytes.Repeat([]byte{0xff}, int(max(n, 1))) }

// guardedWorkspace is a workspace in host memory that holds NaN. check reports a byte behind it that was changed.
func guardedWorkspace(n uint64) (address uint64, check func() error) {
	const behind = 1 << 16
	space := hostWorkspace(n + 16 + behind)
	address = hostAddress(space, 0, 1)
	aligned := -address % 16
	return address + aligned, func() error {
		if i := slices.IndexFunc(space[aligned+n:], func(x byte) bool { return x != 0xff }); i >= 0 {
			return fmt.Errorf("byte %d behind a workspace of %d was written", i, n)
		}
		return nil
	}
}

// emulateBackward computes the gradients of a call in host memory by the CUDA kernels.
func emulateBackward(e *emulator, cfg attention.Config, a attention.BackwardArgs, reversed bool) error {
	p, dtype := hostParams(cfg, a), cfg.DType.String()
	var check func() error
	p.stats, check = guardedWorkspace(statsBytes(&a.Shape, int(p.totalQ)))
	tiles := func(n int) uint32 { return uint32((n + 63) / 64) }
	for _, k := range []struct {
		step   string
		wanted bool
		grid   [3]uint32
	}{
		{"stats", true, [3]uint32{tiles(a.Sq), uint32(a.Hq), uint32(a.B)}},
		{"dq", a.DQ.Given(), [3]uint32{tiles(a.Sq), uint32(a.Hq), uint32(a.B)}},
		{"dkdv", a.DK.Given() || a.DV.Given(), [3]uint32{tiles(a.Sk), uint32(a.KVHeads()), uint32(a.B)}},
	} {
		if k.wanted {
			if err := e.launch("attn_ref_"+dtype+"_backward_"+k.step, &p, k.grid, 256, reversed); err != nil {
				return err
			}
		}
	}
	runtime.KeepAlive(a)
	return check()
}

// computesBackward reports whether the kernels take a case.
func computesBackward(c *cases.Case) bool {
	return c.HasGradients() && c.SparseRatio == 0 && c.BlockQ == 0 && !c.Bias.On && !c.Mask.On && !c.ALiBi && !c.Sinks && c.Dropout == 0 && c.AttentionChunk == 0
}

// emulatedTiles is what a case costs: tiles of 64 rows and 64 keys, for each 128 columns of a
// gradient. The CPU takes about 10 ms for one.
func emulatedTiles(c *cases.Case) int {
	tiles := func(n int) int { return (n + 63) / 64 }
	n := c.B * tiles(c.Sq) * tiles(c.Sk)
	for _, s := range c.Seqs {
		n += tiles(s.Rows) * tiles(s.Keys)
	}
	return n * c.Hq * ((max(c.D, c.Dv) + 127) / 128)
}

// The kernels' code, run by the CPU, gives the gradients of the tables of cases by the rules
// of every other tier: judged against float64, writing nothing but the outputs, and with the
// same bits if everything is spoiled that must not matter. The second run has the opposite
// order of threads and CTAs, which changes the bits of a kernel that lacks a barrier.
func TestBackwardKernelsOnTheCPU(t *testing.T) {
	testlevel.HostOnly(t)
	for which, dtype := range attention.DTypes() {
		t.Run(dtype.String(), func(t *testing.T) {
			e := newEmulator(t, dtype.String())
			n := 0
			for _, c := range append(cases.Brief(which), cases.DealOptions(cases.BriefOptions(), 3)[which]...) {
				if !computesBackward(&c) || emulatedTiles(&c) > 64 {
					continue
				}
				if n++; !testlevel.IsExhaustive() && n%12 != which {
					continue
				}
				t.Run(c.String(), func(t *testing.T) {
					b, err := cases.NewBackward(c, dtype)
					require.NoError(t, err)
					cfg := c.Config(cases.On(attention.TierCPU, dtype))
					require.NoError(t, conformEmulated(b, attention.Config(cfg), func(a attention.BackwardArgs, reversed bool) error {
						return emulateBackward(e, attention.Config(cfg), a, reversed)
					}))
				})
			}
			t.Logf("%d cases", n)
		})
	}
}

// The validation kernels normalize blocks as those of fa2 do (TestFA2BackwardNormalizesBlocks).
func TestBackwardKernelsNormalizeBlocks(t *testing.T) {
	testlevel.HostOnly(t)
	for _, dtype := range attention.DTypes() {
		b, err := cases.NewBackward(cancelling, dtype)
		require.NoError(t, err)
		e, cfg := newEmulator(t, dtype.String()), cancelling.Config(cases.On(attention.TierCPU, dtype))
		require.NoError(t, conformEmulated(b, attention.Config(cfg), withOtherLSE(t)(func(a attention.BackwardArgs, reversed bool) error {
			return emulateBackward(e, attention.Config(cfg), a, reversed)
		})), dtype)
	}
}

// With PartialKeys an LSE of more keys than the call has is taken as it is: if it is of twice the weight, P is half of what it
// is otherwise, and so is dV.
func TestBackwardKernelsOfPartialKeys(t *testing.T) {
	testlevel.HostOnly(t)
	c := cancelling
	c.Data, c.Scale = cases.Normal, attention.ScaleOf(3)
	b, err := cases.NewBackward(c, attention.F32)
	require.NoError(t, err)
	e, cfg := newEmulator(t, "f32"), attention.Config(c.Config(cases.On(attention.TierCPU, attention.F32)))
	gradient := func(more float32, partial bool) []float32 {
		a, _, err := callOf(b, cfg, b.Image)
		require.NoError(t, err)
		lse := floatsOf(a.LSE.Host)[a.LSE.Offset:][:2]
		require.Greater(t, math.Abs(float64(lse[0])), 16.0, "the pass over the keys is not made")
		lse[0], lse[1] = lse[0]+more, lse[1]+more
		a.PartialKeys = partial
		require.NoError(t, emulateBackward(e, cfg, a, false))
		return floatsOf(a.DV.Host)[a.DV.Offset:][:2*c.Dv]
	}
	whole, half := gradient(0, false), gradient(math.Ln2, true)
	for i := range whole {
		require.InDelta(t, whole[i]/2, half[i], 1e-4*max(1, math.Abs(float64(whole[i]))), i)
	}
}

// conformEmulated judges the gradients that compute makes of a case.
func conformEmulated(b *cases.Backward, cfg attention.Config, compute func(a attention.BackwardArgs, reversed bool) error) error {
	var afters [2][][]byte
	for i, before := range [2][][]byte{b.Image, b.BackwardSpoiled()} {
		a, images, err := callOf(b, cfg, before)
		if err != nil {
			return err
		}
		if err := compute(a, i == 1); err != nil {
			return err
		}
		if err := b.BackwardTrespass(before, images); err != nil {
			return fmt.Errorf("run %d: %w", i+1, err)
		}
		afters[i] = images
	}
	if err := b.BackwardJudge(afters[0]); err != nil {
		return err
	}
	return b.BackwardSame(afters[0], afters[1])
}

// callOf is a backward call in a copy of memory, with O and LSE of tier cpu, and the copy.
func callOf(b *cases.Backward, cfg attention.Config, memory [][]byte) (a attention.BackwardArgs, images [][]byte, err error) {
	for _, image := range memory {
		images = append(images, bytes.Clone(image))
	}
	a = b.BackwardHostArgs(images)
	cfg.Access = attention.AccessAuto
	op, err := attention.New(nil, cfg)
	if err == nil {
		err = op.Forward(nil, a.Args)
	}
	return a, images, err
}

// floatsOf are the float32 elements of a tensor's memory, NaN where it has none.
func floatsOf(host []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(host))), len(host)/4)
}

// Gradients are added to what the outputs hold, which keep the rows and keys past the end of
// a sequence. Each gradient alone has the bits that it has among the others.
func TestBackwardKernelsAccumulate(t *testing.T) {
	testlevel.HostOnly(t)
	e := newEmulator(t, "f32")
	c := cases.Case{Name: "accumulate", D: 20, Dv: 12, Shape: attention.Shape{Hq: 4, Hkv: 2}, Causal: attention.BottomRight,
		Seqs: []cases.Seq{{ID: 1, Rows: 70, Keys: 90}, {ID: 2, Rows: 9, Keys: 66}}, LooseQ: true, LooseK: true}
	b, err := cases.NewBackward(c, attention.F32)
	require.NoError(t, err)
	cfg := b.Config(cases.On(attention.TierCPU, attention.F32))
	image := func() attention.BackwardArgs {
		a, _, err := callOf(b, attention.Config(cfg), b.Image)
		require.NoError(t, err)
		return a
	}
	plain, held, added := image(), image(), image()
	require.NoError(t, emulateBackward(e, attention.Config(cfg), plain, false))
	outputs := func(a *attention.BackwardArgs) []*attention.Tensor { return []*attention.Tensor{&a.DQ, &a.DK, &a.DV} }
	for i, x := range outputs(&held) {
		for j := range floatsOf(x.Host) {
			floatsOf(x.Host)[j] = float32(j%17) - 8
		}
		copy(outputs(&added)[i].Host, x.Host)
	}
	added.Accumulate = true
	require.NoError(t, emulateBackward(e, attention.Config(cfg), added, false))
	for i, x := range outputs(&plain) {
		before, after, changed := floatsOf(outputs(&held)[i].Host), floatsOf(outputs(&added)[i].Host), 0
		for j, gradient := range floatsOf(x.Host) {
			if gradient != gradient || gradient == 0 { // outside of the tensor, or past the end
				require.Equal(t, before[j], after[j], "output %d, element %d", i, j)
				continue
			}
			require.InDelta(t, before[j]+gradient, after[j], 1e-5, "output %d, element %d", i, j)
			changed++
		}
		require.NotZero(t, changed)
	}
	for i, x := range outputs(&plain) {
		alone := image()
		for j, other := range outputs(&alone) {
			if i != j {
				*other = attention.Tensor{}
			}
		}
		require.NoError(t, emulateBackward(e, attention.Config(cfg), alone, true))
		require.Equal(t, x.Host, outputs(&alone)[i].Host, "output %d alone", i)
	}
}
