package plan

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"vkattn/attention/internal/tensors"
	"vkattn/attention/problem"
	"vkattn/vk"
)

var cuda atomic.Pointer[problem.CUDA]

// RegisterCUDA is attention.RegisterCUDA, which documents it.
func RegisterCUDA(c problem.CUDA) { cuda.Store(&c) }

// RegisteredCUDA returns the registered backend, or nil.
func RegisteredCUDA() problem.CUDA {
	if p := cuda.Load(); p != nil {
		return *p
	}
	return nil
}

// cudaBar is what keeps tier cuda from a call, other than the problem: 0 for nothing, 1
// to 5 for the tensor that CUDA cannot reach, or one of the constants below.
type cudaBar uint8

const (
	CUDARecords cudaBar = 6 + iota // into a caller's command buffer
	CUDATunes                      // tiles of the other tiers
)

var cudaBars = [...]string{"",
	notShared + "Q", notShared + "K", notShared + "V", notShared + "O", notShared + "LSE",
	"it cannot record into a command buffer, since CUDA has its own stream: use Forward",
	"it has no tiles to tune",
}

const notShared = "CUDA does not reach the buffer (made without Exportable?) of "

// CUDABarOf returns the first tensor that CUDA cannot reach.
func CUDABarOf(l *tensors.Layouts) cudaBar {
	c := RegisteredCUDA()
	if c == nil {
		return 0
	}
	for i := range l.All() {
		if c.Reach(l.List[i].Tensor.Buffer) != nil {
			return cudaBar(1 + i)
		}
	}
	return 0
}

// planCUDA fills in plan for tier cuda, or reports why it cannot.
func planCUDA(plan *chosen, dev *vk.Device, cfg *problem.Config, r *Request) error {
	c := RegisteredCUDA()
	switch {
	case c == nil:
		return NoCUDA("it is not part of this program: import vkattn/cudapath")
	case r.Experiment != (problem.Experiment{}):
		return NoCUDA("variants and ablations are those of the cooperative-matrix kernels")
	case r.Bar != 0:
		return NoCUDA(cudaBars[r.Bar])
	case r.Options.Any() || cfg.FixedSplit != 0:
		return NoCUDA("its kernels compute dense attention only: no lengths, pages, lists, modifiers, dropout, quantised K and V, or fixed splits")
	}
	choice, err := c.Choose(dev, problem.CUDAProblem{Shape: r.Shape, DType: cfg.DType, HeadDim: cfg.HeadDim, HeadDimV: cfg.ValueDim(),
		Causal: cfg.Causal != problem.CausalNone, Align: slices.Min(r.Align[:]), LSE: r.LSE, Kernel: cfg.Kernel})
	switch {
	case err != nil:
		return err
	case choice.Validation && cfg.Tier != problem.TierCUDA:
		return NoCUDA(strings.Join(append(choice.Rejected, "only the slow kernel for validation remains"), "; "))
	}
	for _, why := range choice.Rejected {
		plan.Rejected = append(plan.Rejected, problem.Rejection{Tier: problem.TierCUDA, Reason: why})
	}
	plan.Tier, plan.Kernel, plan.Tile = problem.TierCUDA, choice.Name, fmt.Sprintf("%dx%d", choice.Rows, choice.Cols)
	plan.SharedBytes, plan.Workgroups, plan.CUDA = choice.SharedBytes, choice.Workgroups, choice.Kernel
	plan.Reason = "allowed, and the device has the kernel"
	if cfg.Tier == problem.TierCUDA {
		plan.Reason = "asked for"
	}
	return nil
}

// NoCUDA is the reason why tier cuda does not compute a problem.
type NoCUDA string

func (e NoCUDA) Error() string { return string(e) }
func (NoCUDA) Unwrap() error   { return problem.ErrUnsupported }

// MayCUDA reports whether the Config allows tier cuda.
func MayCUDA(c *problem.Config) bool {
	return c.Tier == problem.TierCUDA || c.Tier == problem.TierAuto && c.AllowCUDA
}
