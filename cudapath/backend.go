package cudapath

import (
	"errors"
	"fmt"

	"vkattn/attention"
	"vkattn/internal/backend"
	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// tier implements problem.CUDA.
type tier struct{}

func init() {
	plan.RegisterCUDA(tier{})
	backend.OpenCUDA = func(name string) (any, error) { return OpenDevice(DeviceOptions{Device: name}) }
}

// Check implements problem.CUDA.
func (tier) Check(info *vk.DeviceInfo, t attention.DType) error {
	if why := Missing(info, "", t); why != "" {
		return unsupported("tier cuda", "%s", why)
	}
	return nil
}

// Choose implements problem.CUDA.
func (tier) Choose(dev *vk.Device, p problem.CUDAProblem) (problem.CUDAChoice, error) {
	c, err := Open(dev)
	if err != nil {
		return problem.CUDAChoice{}, err
	}
	if p.KV != problem.KVSame && !p.KV.Latent() {
		return chooser{c}.Choose(p)
	}
	return c.choose(&p)
}

func (c *Context) choose(p *problem.CUDAProblem) (problem.CUDAChoice, error) {
	k, rejected, err := c.table.choose(&c.info, p)
	if err != nil {
		return problem.CUDAChoice{Rejected: rejected}, err
	}
	return problem.CUDAChoice{
		Kernel: c.kernelOf(k), Name: k.Entry, Family: k.tileFamily(), Validation: k.Family == "ref",
		Rows: uint32(k.Rows), Cols: uint32(k.Cols), SharedBytes: uint64(k.Shared),
		Workgroups: c.workgroupsOf(k, p), WorkspaceBytes: c.kernelOf(k).workspace(&p.Shape), Rejected: rejected,
	}, nil
}

func (c *Context) workgroupsOf(k *Kernel, p *problem.CUDAProblem) uint64 {
	if k.Latent {
		return uint64(c.kernelOf(k).latentGrid(&p.Shape).ctas)
	}
	return k.rowBlocks(p)
}

// rowBlocks is the most row blocks of a call. Packed sequences may have fewer rows than the longest for each.
func (k *Kernel) rowBlocks(p *problem.CUDAProblem) uint64 {
	most := k.tiles(&p.Shape, p.B).count()
	if k.Sequences && p.Rows > 0 {
		most = min(most, (p.Rows/uint64(k.Rows)+uint64(p.B))*uint64(p.Hq))
	}
	return most
}

// ChooseBackward implements problem.CUDA.
func (tier) ChooseBackward(dev *vk.Device, p problem.CUDABackwardProblem) (choice problem.CUDABackwardChoice, err error) {
	c, err := Open(dev)
	if err != nil {
		return choice, err
	}
	return c.chooseBackward(&p)
}

func (c *Context) chooseBackward(p *problem.CUDABackwardProblem) (choice problem.CUDABackwardChoice, err error) {
	list, rejected, err := c.table.chooseBackward(&c.info, p)
	choice.Rejected = rejected
	if err != nil {
		return choice, err
	}
	b := &backwardKernels{c: c}
	for _, k := range list {
		t := k.tiles(&p.Shape, p.B)
		workgroups := k.units(t)
		if !k.persistent() {
			g, err := k.grid(t)
			if err != nil {
				return choice, err
			}
			workgroups = g[0] * g[1] * g[2]
		}
		b.kernels = append(b.kernels, c.kernelOf(k))
		one := attention.PlanKernel{Outputs: k.Outputs, Kernel: k.Entry, SharedBytes: uint64(k.Shared), Workgroups: workgroups}
		if k.Outputs != "stats" {
			one.Tile = fmt.Sprintf("%dx%d", k.Rows, k.Cols)
		}
		choice.Kernels = append(choice.Kernels, one)
		choice.Validation = choice.Validation || k.Family == "ref"
	}
	choice.Launcher, choice.ScratchBytes = b, b.workspace(&p.Shape, p.TotalQ)
	return choice, nil
}

var errNotReached = errors.New("cudapath: the buffer was not made with Exportable")

// Reach implements problem.CUDA.
func (tier) Reach(b *vk.Buffer) error {
	if b != nil && reaches(b) {
		return nil
	}
	return errNotReached
}
