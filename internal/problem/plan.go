package problem

// Plan is attention.Plan, which documents its fields; the two convert into each other.
type Plan struct {
	Tier                                  Tier
	Kernel, Tile, DecodeTile              string
	Access                                Access
	Tuning, Reason                        string
	Rejected                              []Rejection
	Notes                                 []string
	ScoreMod, MaskMod                     string
	Flops, Bytes, SharedBytes, Workgroups uint64
	Splits                                int
	WorkspaceBytes                        uint64
}

// Rejection is attention.Rejection: the same type, which documents its fields.
type Rejection = struct {
	Tier   Tier   `json:"tier"`
	Reason string `json:"reason"`
}

// BackwardPlan is attention.BackwardPlan, as Plan is attention.Plan.
type BackwardPlan struct {
	Tier                       Tier
	Kernels                    []PlanKernel
	Access                     Access
	Reason                     string
	Rejected                   []Rejection
	Notes                      []string
	ScoreMod, MaskMod          string
	Flops, Bytes, ScratchBytes uint64
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
