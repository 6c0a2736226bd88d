//go:build !windows

package cudapath

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/vk"
)

// largeLatentCases are calls with work for every multiprocessor.
func largeLatentCases() (list []cases.Case) {
	for i, c := range []cases.Case{
		{Name: "128 heads", Shape: attention.Shape{B: 9, Hq: 128, Sq: 1, Sk: 1500}},
		{Name: "more row tiles than multiprocessors", Shape: attention.Shape{B: 2, Hq: 128, Sq: 70, Sk: 100}, Causal: attention.BottomRight},
		{Name: "one long sequence", Shape: attention.Shape{B: 1, Hq: 16, Sq: 1, Sk: 9000}, Data: cases.Rising},
		{Name: "pages", Shape: attention.Shape{Hq: 128}, PageSize: 64, LooseK: true, Causal: attention.BottomRight,
			Seqs: []cases.Seq{{Rows: 4, Keys: 2000}, {Rows: 4, Keys: 4}, {Rows: 4, Keys: 777}, {Rows: 4}, {Rows: 4, Keys: 1280}}},
	} {
		c.D, c.Dv, c.VInK, c.LSE, c.Hkv, c.Seed = 576, 512, true, true, 1, uint64(800+i)
		for j := range c.Seqs {
			c.Seqs[j].ID = 1 + j
		}
		list = append(list, c)
	}
	list = append(list, cases.Case{Name: "tokens of many rows", Shape: attention.Shape{Hq: 128}, PageSize: 64, Causal: attention.BottomRight, PackedQ: true, SparseRatio: 0.5,
		Seqs: []cases.Seq{{ID: 1, Rows: 300, Keys: 700}, {ID: 2, Rows: 5, Keys: 40}, {ID: 3, Keys: 9}}})
	list = append(list, cases.Case{Name: "tokens", Shape: attention.Shape{Hq: 128}, LooseK: true, SparseRatio: 0.7, Data: cases.Rising,
		Seqs: []cases.Seq{{ID: 1, Rows: 2, Keys: 3000}, {ID: 2, Rows: 2, Keys: 3000}, {ID: 3, Rows: 1, Keys: 100}}})
	for i := range 2 {
		c := &list[len(list)-1-i]
		c.D, c.Dv, c.VInK, c.LSE, c.Hkv, c.Seed, c.PerRow, c.TopK, c.Shuffled = 576, 512, true, true, 1, uint64(850+i), true, true, true
	}
	return list
}

// The kernels of latent attention, and the same bits through a Vulkan stream where the device is Vulkan's too.
func TestGPULatent(t *testing.T) {
	dev := needCUDA(t)
	var vulkan *Context
	if v, err := vk.Open(vk.Options{PipelineCache: "off"}); err == nil {
		t.Cleanup(func() { require.NoError(t, v.Close()) })
		vulkan, _ = Open(v)
	}
	t.Logf("%v, also by Vulkan: %v", dev, vulkan != nil)
	list, _ := latentCases()
	tokens, _ := latentTokenCases()
	offsets, _ := latentOffsetCases()
	list = slices.Concat(list, tokens, offsets, largeLatentCases())
	list = append(list, latentRowCases(list)...)
	for _, dtype := range []attention.DType{attention.F16, attention.BF16} {
		for _, c := range list {
			t.Run(fmt.Sprint(dtype, " ", c.String()), func(t *testing.T) {
				p, err := cases.NewProblem(c, dtype)
				require.NoError(t, err)
				memory, _ := memories(t, dev, p.Image)
				op, err := attention.New(dev, configOf(&p.Case, dtype, ""))
				require.NoError(t, err)
				plan, err := op.PlanFor(p.MemoryArgs(memory))
				require.NoError(t, err)
				require.NoError(t, op.Close())
				require.True(t, strings.HasSuffix(plan.Kernel, latentSuffix(&c)), "%+v", plan)
				judgeOptionsOnDevice(t, dev, "", p)
				after := forwardOnDevice(t, dev, "", p, p.Image)
				for range 10 {
					require.NoError(t, p.Same(after, forwardOnDevice(t, dev, "", p, p.Image)))
				}
				if vulkan != nil {
					require.NoError(t, p.Same(after, forwardByVulkan(t, vulkan, "", p, p.Image)))
				}
			})
		}
	}
}
