package plan

import (
	"fmt"
	"math/bits"
	"slices"

	"vkattn/attention/score"
	"vkattn/internal/arith"
	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// Gradients of the tables of a score modifier: for each a kernel that leaves sums of each workgroup in scratch memory, and one
// that adds them up.

// tableVariant is what the kernel of a table's gradient depends on.
type tableVariant struct {
	places, entries uint32 // see shaders/constants.glsl
}

// TableRequest is a table whose gradient a request wants.
type TableRequest struct {
	Heads, Entries int // of the table: with entries of their own, and of each; 0: the gradient is not wanted
}

// TablesOf are the tables whose gradients a call wants.
func TablesOf(cfg *problem.Config, a *problem.Args, want *tensors.GradientSet) (list [score.MaxTables]TableRequest) {
	for i, wanted := range want.Tables {
		if wanted {
			list[i].Heads, list[i].Entries = tensors.TableGradient(cfg, i).Sizes(tensors.TableDims(cfg, a, i))
		}
	}
	return list
}

// WantsTables reports whether the request wants the gradient of a table, whose kernels take descriptors.
func (r *BackwardRequest) WantsTables() bool { return slices.Contains(r.Want.Tables[:], true) }

// wantedTablesOf are the tables whose gradients a request wants.
func wantedTablesOf(cfg *problem.Config, r *BackwardRequest) (list []score.Table) {
	for i, wanted := range r.Want.Tables {
		if wanted {
			list = append(list, tensors.Tables(cfg)[i])
		}
	}
	return list
}

// mostTableGroups is about how many workgroups sum for a table: some for each multiprocessor of a large GPU. Each leaves a
// number per entry. Heads have one workgroup at least.
const mostTableGroups = 1024

// tableGroups is the grid of the kernel of a table with tiles of that many rows.
func (r *BackwardRequest) tableGroups(tileRows uint32) (groups [3]uint64) {
	s := &r.Shape
	heads := uint64(s.Hq)
	batches := min(uint64(s.B), arith.CeilDiv64(mostTableGroups, heads))
	rows := min(arith.CeilDiv64(uint64(s.Sq), uint64(tileRows)), arith.CeilDiv64(mostTableGroups, heads*batches))
	return [3]uint64{max(rows, 1), heads, max(batches, 1)}
}

// wantedTables lists the kernels of tables. They run last.
func wantedTables(cfg *problem.Config, r *BackwardRequest) (list []wantedKernel) {
	for i, wanted := range r.Want.Tables {
		if wanted {
			outputs := fmt.Sprintf("dTables[%s]", tensors.Tables(cfg)[i].Name())
			list = append(list, wantedKernel{KernelDTable, outputs, backwardRowTiles, nil, i}, wantedKernel{KernelTableSum, outputs, nil, nil, i})
		}
	}
	return list
}

// ofTable fills in what the kernel of a table depends on.
func (v *BackwardVariant) ofTable(cfg *problem.Config, r *BackwardRequest, i int) {
	g := tensors.TableGradient(cfg, i)
	v.table = tableVariant{uint32(g.Places), 1 << bits.Len(uint(r.Tables[i].Entries-1))}
	v.modifiers.Gradient = tensors.Tables(cfg)[i]
}

// TableBytes are the bytes of the sums that the workgroups of a kernel leave.
func (k *BackwardKernel) TableBytes() uint64 {
	if k.Variant.Kernel != KernelDTable {
		return 0
	}
	return hostmem.Product(k.Workgroups, uint64(k.Variant.table.entries), 4)
}

// TableStride is the distance of the sums of two workgroups.
func (k *BackwardKernel) TableStride() uint32 { return k.Variant.table.entries }
