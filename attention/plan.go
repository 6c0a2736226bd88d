package attention

import (
	"fmt"
	"strings"
)

// What a plan says. Package plan makes problem.Plan and problem.BackwardPlan, which have the same fields.

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
	Notes    []string    `json:"notes,omitempty"`    // why the tuning cache was ignored, why decode runs without the decode kernel, where quantized K and V are converted

	// ScoreMod and MaskMod are the texts of the modifiers, "" without.
	ScoreMod string `json:"score_mod,omitempty"`
	MaskMod  string `json:"mask_mod,omitempty"`

	Flops       uint64 `json:"flops"`        // 2*B*Hq*(Dqk+Dv)*unmasked cells
	Bytes       uint64 `json:"bytes"`        // of Q, K, V, O and LSE, each once
	SharedBytes uint64 `json:"shared_bytes"` // shared memory of a workgroup
	Workgroups  uint64 `json:"workgroups"`

	// Splits is the number of splits of each row's keys, whose states are then combined; 1
	// if one workgroup computes all keys of a row.
	Splits int `json:"splits"`
	// WorkspaceBytes is the scratch memory that holds the states of splits, and K and V that are
	// converted in front of the kernel, which Notes tell. The commands of
	// the call take it from the device; on a CUDA device without Vulkan it is the stream's
	// workspace. It is 0 without either. Latent attention on tier cuda may need it where
	// Splits is 1: it splits the keys of all sequences together.
	WorkspaceBytes uint64 `json:"workspace_bytes,omitempty"`
}

// Tiles lists the tiles of all kernels of the plan.
func (p Plan) Tiles() string {
	if p.DecodeTile == "" {
		return p.Tile
	}
	return p.Tile + " + " + p.DecodeTile
}

// String returns one line: what runs, and why the better tiers do not.
func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "tier %v", p.Tier)
	if p.Kernel != "" {
		fmt.Fprintf(&b, " (%s, tile %s, %d workgroups)", p.Kernel, strings.TrimSpace(p.Tiles()+" "+p.Tuning), p.Workgroups)
	}
	return b.String() + told(p.ScoreMod, p.MaskMod, p.Reason, p.Rejected, p.Notes)
}

// told is the end of the line of a plan: its modifiers, why its tier was chosen and others were not, and the notes.
func told(scoreMod, maskMod, reason string, rejected []Rejection, notes []string) (line string) {
	if scoreMod != "" {
		line += ", score-mod " + scoreMod
	}
	if maskMod != "" {
		line += ", mask-mod " + maskMod
	}
	line += ": " + reason
	for _, r := range rejected {
		line += fmt.Sprintf("; not %v: %s", r.Tier, r.Reason)
	}
	for _, n := range notes {
		line += "; note: " + n
	}
	return line
}

// Rejection is a tier that was not used.
type Rejection = struct {
	Tier   Tier   `json:"tier"`
	Reason string `json:"reason"`
}

// BackwardPlan says how the gradients of a problem will be computed and why.
type BackwardPlan struct {
	Tier     Tier         `json:"tier"`
	Kernels  []PlanKernel `json:"kernels"` // in the order in which they are recorded; empty for TierCPU
	Access   Access       `json:"-"`
	Reason   string       `json:"reason"`             // why this tier
	Rejected []Rejection  `json:"rejected,omitempty"` // better tiers and what they lack
	Notes    []string     `json:"notes,omitempty"`    // what the caller may want to know, such as a tuning cache that is ignored

	// ScoreMod and MaskMod are the texts of the modifiers, "" without.
	ScoreMod string `json:"score_mod,omitempty"`
	MaskMod  string `json:"mask_mod,omitempty"`

	Flops uint64 `json:"flops"` // 2.5 times forward's, whatever the kernels compute twice
	Bytes uint64 `json:"bytes"` // of the tensors, each once

	// ScratchBytes is the device memory that a call takes in addition to its tensors: four
	// numbers for each row, and dS of a chunk of keys where tier coopmat2 stores it. The
	// device keeps it and lends it to the next call; for TierCUDA the stream does. The device
	// rounds it up by a quarter at most, and to 64 KiB at least.
	ScratchBytes uint64 `json:"scratch_bytes"`
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
	return b.String() + told(p.ScoreMod, p.MaskMod, p.Reason, p.Rejected, p.Notes)
}

// PlanKernel is one kernel of a [BackwardPlan].
type PlanKernel = struct {
	Outputs     string `json:"outputs"`          // "stats", "LSE", "dQ", "dK dV", "dBias" or "dSinks"
	Kernel      string `json:"kernel"`           // name of the SPIR-V module, or of the CUDA entry point
	Tile        string `json:"tile"`             // query rows x keys; empty for kernels without tiles
	Tuning      string `json:"tuning,omitempty"` // source of the tile, as in Plan.Tuning, or TileNamed; empty for kernels without tiles
	SharedBytes uint64 `json:"shared_bytes"`
	Workgroups  uint64 `json:"workgroups"`
}

// TierStatus says whether a tier can run a storage type on a device.
type TierStatus = struct {
	Tier      Tier   `json:"tier"`
	DType     DType  `json:"dtype"`
	Available bool   `json:"available"`
	Reason    string `json:"reason"` // what is missing, or the fragment shape used
}
