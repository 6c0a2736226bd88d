package problem

import (
	"fmt"
	"strings"
)

// BackwardPlan says how the gradients of a problem will be computed and why.
type BackwardPlan struct {
	Tier     Tier         `json:"tier"`
	Kernels  []PlanKernel `json:"kernels"` // in the order in which they are recorded; empty for TierCPU
	Access   Access       `json:"-"`
	Reason   string       `json:"reason"`             // why this tier
	Rejected []Rejection  `json:"rejected,omitempty"` // better tiers and what they lack
	Notes    []string     `json:"notes,omitempty"`    // what the caller may want to know, such as a tuning cache that is ignored

	Flops uint64 `json:"flops"` // 2.5 times forward's, whatever the kernels compute twice
	Bytes uint64 `json:"bytes"` // of the tensors, each once

	// ScratchBytes is the device memory that a call takes in addition to its tensors: four
	// numbers for each row, and dS of a chunk of keys where tier coopmat2 stores it. The
	// device keeps it and lends it to the next call; for TierCUDA the stream does. The device
	// rounds it up by a quarter at most, and to 64 KiB at least.
	ScratchBytes uint64 `json:"scratch_bytes"`
}

// PlanKernel is one kernel of a [BackwardPlan].
type PlanKernel struct {
	Outputs     string `json:"outputs"`          // "stats", "LSE", "dQ", "dK dV", "dBias" or "dSinks"
	Kernel      string `json:"kernel"`           // name of the SPIR-V module, or of the CUDA entry point
	Tile        string `json:"tile"`             // query rows x keys; empty for kernels without tiles
	Tuning      string `json:"tuning,omitempty"` // source of the tile, as in Plan.Tuning, or TileNamed; empty for kernels without tiles
	SharedBytes uint64 `json:"shared_bytes"`
	Workgroups  uint64 `json:"workgroups"`
}

// String returns one line: what runs, and why the better tiers do not.
func (p BackwardPlan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "tier %v", p.Tier)
	for i, k := range p.Kernels {
		open := ", "
		if i == 0 {
			open = " ("
		}
		fmt.Fprintf(&b, "%s%s: %s", open, k.Outputs, strings.TrimSpace(k.Kernel+" "+k.Tile))
	}
	if len(p.Kernels) > 0 {
		b.WriteString(")")
	}
	fmt.Fprintf(&b, ": %s", p.Reason)
	for _, r := range p.Rejected {
		fmt.Fprintf(&b, "; not %v: %s", r.Tier, r.Reason)
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "; %s", n)
	}
	return b.String()
}
