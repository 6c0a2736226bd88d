package attention

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

// RegisterCUDA makes tier cuda available; package cudapath calls it. A later
// registration replaces an earlier one.
func RegisterCUDA(c problem.CUDA) { cuda.Store(&c) }

// registeredCUDA returns the registered backend, or nil.
func registeredCUDA() problem.CUDA {
	if p := cuda.Load(); p != nil {
		return *p
	}
	return nil
}

// cudaBar is what keeps tier cuda from a call, other than the problem: 0 for nothing, 1
// to 5 for the tensor that CUDA cannot reach, or one of the constants below.
type cudaBar uint8

const (
	cudaRecords cudaBar = 6 + iota // into a caller's command buffer
	cudaTunes                      // tiles of the other tiers
)

var cudaBars = [...]string{"",
	notShared + "Q", notShared + "K", notShared + "V", notShared + "O", notShared + "LSE",
	"it cannot record into a command buffer, since CUDA has its own stream: use Forward",
	"it has no tiles to tune",
}

const notShared = "CUDA does not reach the buffer (made without Exportable?) of "

// cudaBarOf returns the first tensor that CUDA cannot reach.
func cudaBarOf(l *tensors.Layouts) cudaBar {
	c := registeredCUDA()
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
func planCUDA(plan *chosen, dev *vk.Device, cfg *problem.Config, r *request) error {
	c := registeredCUDA()
	switch {
	case c == nil:
		return noCUDA("it is not part of this program: import vkattn/cudapath")
	case r.experiment != (problem.Experiment{}):
		return noCUDA("variants and ablations are those of the cooperative-matrix kernels")
	case r.bar != 0:
		return noCUDA(cudaBars[r.bar])
	case r.options.any() || cfg.FixedSplit != 0:
		return noCUDA("its kernels compute dense attention only: no lengths, pages, lists, modifiers, quantised K and V, or fixed splits")
	}
	choice, err := c.Choose(dev, problem.CUDAProblem{Shape: r.shape, DType: cfg.DType, HeadDim: cfg.HeadDim, HeadDimV: cfg.ValueDim(),
		Causal: cfg.Causal != problem.CausalNone, Align: slices.Min(r.align[:]), LSE: r.lse, Kernel: cfg.Kernel})
	switch {
	case err != nil:
		return err
	case choice.Validation && cfg.Tier != problem.TierCUDA:
		return noCUDA(strings.Join(append(choice.Rejected, "only the slow kernel for validation remains"), "; "))
	}
	for _, why := range choice.Rejected {
		plan.Rejected = append(plan.Rejected, problem.Rejection{Tier: problem.TierCUDA, Reason: why})
	}
	plan.Tier, plan.Kernel, plan.Tile = problem.TierCUDA, choice.Name, fmt.Sprintf("%dx%d", choice.Rows, choice.Cols)
	plan.SharedBytes, plan.Workgroups, plan.cuda = choice.SharedBytes, choice.Workgroups, choice.Kernel
	plan.Reason = "allowed, and the device has the kernel"
	if cfg.Tier == problem.TierCUDA {
		plan.Reason = "asked for"
	}
	return nil
}

// noCUDA is the reason why tier cuda does not compute a problem.
type noCUDA string

func (e noCUDA) Error() string { return string(e) }
func (noCUDA) Unwrap() error   { return problem.ErrUnsupported }

// mayCUDA reports whether the Config allows tier cuda.
func mayCUDA(c *problem.Config) bool {
	return c.Tier == problem.TierCUDA || c.Tier == problem.TierAuto && c.AllowCUDA
}
