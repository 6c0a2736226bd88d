package problem

import (
	"fmt"
	"strings"
)

// Plan says how a problem will be computed and why.
type Plan struct {
	Tier   Tier   `json:"tier"`
	Kernel string `json:"kernel"` // name of the SPIR-V module, or of the entry point for TierCUDA; empty for TierCPU
	Tile   string `json:"tile"`   // query rows x keys of a workgroup, and its division
	// DecodeTile is the tile of the decode kernel if it computes the decode part of a mixed
	// batch; empty otherwise.
	DecodeTile string `json:"decode_tile,omitempty"`

	Access   Access      `json:"-"`
	Tuning   string      `json:"tuning,omitempty"`   // source of the tile: TileHeuristic, TileCached or TileTuned; empty for TierCPU and TierCUDA
	Reason   string      `json:"reason"`             // why this tier
	Rejected []Rejection `json:"rejected,omitempty"` // better tiers and what they lack; for TierCUDA also its better kernels
	Notes    []string    `json:"notes,omitempty"`    // why the tuning cache was ignored, or why decode runs without the decode kernel

	Flops       uint64 `json:"flops"`        // 2*B*Hq*(Dqk+Dv)*unmasked cells
	Bytes       uint64 `json:"bytes"`        // of Q, K, V, O and LSE, each once
	SharedBytes uint64 `json:"shared_bytes"` // shared memory of a workgroup
	Workgroups  uint64 `json:"workgroups"`

	// Splits is the number of splits of each row's keys, whose states are then combined; 1
	// if one workgroup computes all keys of a row.
	Splits int `json:"splits"`
	// WorkspaceBytes is the scratch memory that holds the states of the splits. The commands
	// of the call take it from the device. It is 0 without splits.
	WorkspaceBytes uint64 `json:"workspace_bytes,omitempty"`
}

// Tiles lists the tiles of all kernels of the plan.
func (p Plan) Tiles() string {
	if p.DecodeTile == "" {
		return p.Tile
	}
	return p.Tile + " + " + p.DecodeTile
}

// Rejection is a tier that was not used.
type Rejection struct {
	Tier   Tier   `json:"tier"`
	Reason string `json:"reason"`
}

// String returns one line: what runs, and why the better tiers do not.
func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "tier %v", p.Tier)
	if p.Kernel != "" {
		fmt.Fprintf(&b, " (%s, tile %s, %d workgroups)", p.Kernel, strings.TrimSpace(p.Tiles()+" "+p.Tuning), p.Workgroups)
	}
	fmt.Fprintf(&b, ": %s", p.Reason)
	for _, r := range p.Rejected {
		fmt.Fprintf(&b, "; not %v: %s", r.Tier, r.Reason)
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "; note: %s", n)
	}
	return b.String()
}

// TierStatus says whether a tier can run a storage type on a device.
type TierStatus struct {
	Tier      Tier   `json:"tier"`
	DType     DType  `json:"dtype"`
	Available bool   `json:"available"`
	Reason    string `json:"reason"` // what is missing, or the fragment shape used
}
