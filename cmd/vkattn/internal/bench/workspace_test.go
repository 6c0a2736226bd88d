package bench

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// A forward row has a workspace if its keys are split, whatever its options: the states of
// the splits.
func TestTheWorkspaceOfForwardRowsIsThatOfTheirSplits(t *testing.T) {
	switch name := os.Getenv("VKATTN_DRIVER"); {
	case name == "", name == "none":
		t.Skip("no Vulkan driver under test (VKATTN_DRIVER)")
	case testdevice.Null():
		t.Skip("a null device computes nothing")
	case name == "swiftshader":
		t.Skip("it takes a minute to compile the kernels, which are those of the other drivers")
	}
	dev, err := vk.Open(vk.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	b := &Bench{Device: attention.On(dev), Label: "gpu", CPU: "cpu", Timing: Timing{Repeats: 1, Warmup: time.Millisecond, Once: true}}
	const batch, heads, rows, keys, dim = 2, 4, 5, 70, 16
	plain := Problem{Shape: attention.Shape{B: batch, Hq: heads, Hkv: 2, Sq: rows, Sk: keys}, Config: attention.Config{HeadDim: dim, HeadDimV: dim, DType: attention.F16}}
	for name, change := range map[string]func(*Problem){
		"none":   func(*Problem) {},
		"sinks":  func(p *Problem) { p.Sinks = true },
		"alibi":  func(p *Problem) { p.ALiBi, p.Config.Causal = true, attention.BottomRight },
		"paged":  func(p *Problem) { p.PageSize = 16 },
		"int8":   func(p *Problem) { p.Config.KeyType, p.Config.ValueType = attention.KVInt8, attention.KVInt8 },
		"sparse": func(p *Problem) { p.Options.SparseRatio = 0.5 },
		"blocks": func(p *Problem) { p.Blocks, p.BlockQ, p.BlockK = 0.5, 64, 64 },
		"packed": func(p *Problem) {
			p.Lengths, p.Packed = "3/70,2/20", true
			p.Lengths.bound(&p.Shape)
		},
	} {
		for _, splits := range []int{0, 3} {
			p := plain
			change(&p)
			p.Config.FixedSplit = splits
			for _, tier := range []attention.Tier{attention.TierScalar, attention.TierCoopMat} {
				if tier == attention.TierCoopMat && name != "none" && name != "packed" {
					continue // its kernels take long to compile on a CPU
				}
				b.Specs = []Spec{{Tier: tier}}
				list := measured(t, b, p)
				r := list[0]
				if r.Status == Unsupported {
					require.NotEqual(t, attention.TierScalar, tier, "%s: %s", name, r.Reason)
					continue
				}
				require.Equal(t, OK, r.Status, r.Reason)
				require.Equal(t, max(1, splits), r.Splits, name)
				total := uint64(p.Shape.B * p.Shape.Sq)
				if p.Packed {
					total = 5
				}
				states := total * heads * uint64(r.Splits)
				if r.Splits <= 1 {
					states = 0
				}
				require.GreaterOrEqual(t, r.WorkspaceBytes, states*(dim+1)*4, "%s, %v, %d splits: O and LSE", name, tier, r.Splits)
				require.LessOrEqual(t, r.WorkspaceBytes, states*(dim+2)*4+min(states, 1)*1024, "%s, %v, %d splits: and little else", name, tier, r.Splits)
				require.InDelta(t, r.InputBytes+r.OutputBytes+r.WorkspaceBytes, r.Memory, 64, "%s, %v", name, tier)
			}
		}
	}
}
