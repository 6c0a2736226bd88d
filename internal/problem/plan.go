package problem

// Plan has the fields of attention.Plan, which documents them; a value of one can be assigned to the other.
type Plan = struct {
	Tier           Tier        `json:"tier"`
	Kernel         string      `json:"kernel"`
	Tile           string      `json:"tile"`
	DecodeTile     string      `json:"decode_tile,omitempty"`
	Access         Access      `json:"-"`
	Tuning         string      `json:"tuning,omitempty"`
	Reason         string      `json:"reason"`
	Rejected       []Rejection `json:"rejected,omitempty"`
	Notes          []string    `json:"notes,omitempty"`
	ScoreMod       string      `json:"score_mod,omitempty"`
	MaskMod        string      `json:"mask_mod,omitempty"`
	Flops          uint64      `json:"flops"`
	Bytes          uint64      `json:"bytes"`
	SharedBytes    uint64      `json:"shared_bytes"`
	Workgroups     uint64      `json:"workgroups"`
	Splits         int         `json:"splits"`
	WorkspaceBytes uint64      `json:"workspace_bytes,omitempty"`
}

// Rejection is attention.Rejection: the same type, which documents its fields.
type Rejection = struct {
	Tier   Tier   `json:"tier"`
	Reason string `json:"reason"`
}

// BackwardPlan has the fields of attention.BackwardPlan, as Plan has those of attention.Plan.
type BackwardPlan = struct {
	Tier         Tier         `json:"tier"`
	Kernels      []PlanKernel `json:"kernels"`
	Access       Access       `json:"-"`
	Reason       string       `json:"reason"`
	Rejected     []Rejection  `json:"rejected,omitempty"`
	Notes        []string     `json:"notes,omitempty"`
	Flops        uint64       `json:"flops"`
	Bytes        uint64       `json:"bytes"`
	ScratchBytes uint64       `json:"scratch_bytes"`
}

// PlanKernel is attention.PlanKernel: the same type, which documents its fields.
type PlanKernel = struct {
	Outputs     string `json:"outputs"`
	Kernel      string `json:"kernel"`
	Tile        string `json:"tile"`
	Tuning      string `json:"tuning,omitempty"`
	SharedBytes uint64 `json:"shared_bytes"`
	Workgroups  uint64 `json:"workgroups"`
}

// TierStatus is attention.TierStatus: the same type, which documents its fields.
type TierStatus = struct {
	Tier      Tier   `json:"tier"`
	DType     DType  `json:"dtype"`
	Available bool   `json:"available"`
	Reason    string `json:"reason"`
}
