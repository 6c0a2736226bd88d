// Package ceiling has the kernels that measure what a Vulkan device reaches at most, for
// rates of attention to be compared with: products whose operands stay in registers, and a
// dispatch that does nothing. The caller times them, alone and with barriers.
package ceiling

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"vkattn/attention/internal/dispatch"
	"vkattn/attention/problem"
	"vkattn/shaders"
	"vkattn/vk"
)

// ErrWrong is the error of a kernel whose sums are not those of its products. Its rate means
// nothing.
var ErrWrong = errors.New("wrong result")

// Kernel is a variant of shaders/peak.comp on one device. It is used by one goroutine at a
// time.
type Kernel struct {
	dev      *vk.Device
	pipeline *vk.Pipeline
	sums     *vk.Buffer // of products: one float32 per invocation
	module   string
	params   params
	groups   uint32
	flops    float64 // of a dispatch
	total    float64 // of all sums
	frag     vk.CoopMatShape
}

// Sizes of a dispatch. At the rates in shaders/peak.comp an H200 takes 0.6 to 0.9
// milliseconds, with many times the workgroups that it holds at once, so that its last ones
// weigh little. A driver on the CPU takes a few milliseconds.
const (
	local         = 256
	accumulators  = 8  // fragments per subgroup
	accumulators1 = 16 // numbers per invocation, without matrices

	groups, groupsIntegrated, groupsCPU = 4096, 512, 16
	steps, stepsFMA, stepsCPU           = 256, 1024, 64
)

// params is the push constant block of shaders/peak.comp.
type params struct {
	addrSums uint64
	x, y     float32
}

// NewProducts compiles the kernel of a storage type: products of cooperative matrices for
// f16 and bf16, FMAs for f32. The error matches vk.ErrUnsupported if the device has none.
func NewProducts(dev *vk.Device, dtype problem.DType) (*Kernel, error) {
	if err := Supported(dev, dtype); err != nil {
		return nil, err
	}
	k, n := &Kernel{dev: dev}, uint32(steps)
	if dtype == problem.F32 {
		n = stepsFMA
	}
	switch dev.Info().Type {
	case vk.DeviceDiscrete:
		k.groups = groups
	case vk.DeviceCPU:
		k.groups, n = groupsCPU, n/steps*stepsCPU
	default:
		k.groups = groupsIntegrated
	}
	size := invocations(dev)
	constants := map[uint32]uint32{shaders.ConstPeakSteps: n}
	// All sums are multiples of 1/16 below 2^20 and therefore exact.
	subgroup := uint32(0)
	if dtype == problem.F32 {
		k.module, k.params.x, k.params.y = "peak_fma", 1, 0.25
		// Every step adds y to an accumulator, which began as its number.
		all := float64(k.groups) * float64(size)
		k.flops = 2 * accumulators1 * all * float64(n)
		k.total = all * (accumulators1*(accumulators1-1)/2 + accumulators1*0.25*float64(n))
	} else {
		var err error
		if k.frag, err = dispatch.LargestFragment(dev.Caps(), dtype); err != nil {
			return nil, err
		}
		f := k.frag
		subgroup = dev.Caps().SubgroupSize
		size = size / subgroup * subgroup
		k.module, k.params.x, k.params.y = "peak_coopmat_"+dtype.String(), 1, 0.125
		constants[shaders.ConstSubgroupSize], constants[shaders.ConstFragM], constants[shaders.ConstFragN], constants[shaders.ConstFragK] = subgroup, f.M, f.N, f.K
		// The two A hold x and 2x. The four B have means of y to 4y, whoever holds which element.
		elements := float64(k.groups) * float64(size/subgroup) * float64(f.M) * float64(f.N)
		k.flops = 2 * accumulators * elements * float64(f.K) * float64(n)
		k.total = elements * (accumulators*(accumulators-1)/2 + (1+2)*(1+2+3+4)*0.125*float64(f.K)*float64(n))
	}
	if err := k.build(size, subgroup, constants); err != nil {
		return nil, err
	}
	return k, nil
}

// NewEmpty compiles a kernel that does nothing, of one workgroup. Its dispatch takes what
// the device needs for any. The error matches vk.ErrUnsupported if the device cannot run it.
func NewEmpty(dev *vk.Device) (*Kernel, error) {
	k := &Kernel{dev: dev, module: "peak_fma", groups: 1}
	if err := check(dev); err != nil {
		return nil, err
	}
	if err := k.build(invocations(dev), 0, map[uint32]uint32{shaders.ConstPeakSteps: 0}); err != nil {
		return nil, err
	}
	return k, nil
}

// Supported says why a device has no products of a storage type. It is nil if NewProducts
// has a kernel for them.
func Supported(dev *vk.Device, dtype problem.DType) error {
	if !slices.Contains(problem.DTypes(), dtype) {
		return fmt.Errorf("%w: storage type %v", problem.ErrInvalid, dtype)
	}
	if err := check(dev); err != nil || dtype == problem.F32 {
		return err
	}
	_, err := dispatch.LargestFragment(dev.Caps(), dtype)
	return err
}

func check(dev *vk.Device) error {
	switch {
	case dev == nil:
		return fmt.Errorf("%w: ceilings are those of a Vulkan device", problem.ErrUnsupported)
	case !dev.Caps().BufferDeviceAddress:
		return fmt.Errorf("%w: the device lacks bufferDeviceAddress", problem.ErrUnsupported)
	}
	return nil
}

// invocations is the number of invocations of a workgroup.
func invocations(dev *vk.Device) uint32 {
	limits := dev.Caps().Limits
	return min(local, limits.MaxInvocations, limits.MaxWorkGroupSize[0])
}

func (k *Kernel) build(size, subgroup uint32, constants map[uint32]uint32) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, k.Close())
		}
	}()
	constants[shaders.ConstLocalSize] = size
	module, err := shaders.Get(k.Module())
	if err != nil {
		return err
	}
	desc, err := dispatch.DescribeKernel(module, size, constants)
	if err != nil {
		return err
	}
	desc.SubgroupSize, desc.FullSubgroups = subgroup, subgroup != 0
	desc.Name = module.Name
	if k.flops == 0 {
		desc.Name = "empty"
	}
	if k.pipeline, err = k.dev.Pipeline(desc); err != nil {
		return err
	}
	if k.sums, err = k.dev.NewBuffer(uint64(k.groups)*uint64(size)*4, vk.BufferOptions{Name: "sums of products"}); err != nil {
		return err
	}
	k.params.addrSums = k.sums.Address()
	return nil
}

// Close releases the pipeline and the memory.
func (k *Kernel) Close() error {
	if k == nil {
		return nil
	}
	var err error
	if k.pipeline != nil {
		err = k.pipeline.Close()
	}
	if k.sums != nil {
		err = errors.Join(err, k.sums.Close())
	}
	return err
}

// Flops is the number of floating-point operations of a dispatch, a product and a sum each
// counted; 0 for the empty kernel.
func (k *Kernel) Flops() float64 {
	if k == nil {
		return 0
	}
	return k.flops
}

// Tile describes the fragments and their number per subgroup, such as "16x16x16 x8". It is
// empty without cooperative matrices.
func (k *Kernel) Tile() string {
	if k == nil || k.frag.M == 0 {
		return ""
	}
	return fmt.Sprintf("%dx%dx%d x%d", k.frag.M, k.frag.N, k.frag.K, accumulators)
}

// Module is the name of the SPIR-V module.
func (k *Kernel) Module() string {
	if k == nil || k.module == "" {
		return ""
	}
	return dispatch.ModuleName(k.module, problem.AccessAddresses)
}

// Bytes is the device memory of the kernel.
func (k *Kernel) Bytes() uint64 {
	if k == nil || k.sums == nil {
		return 0
	}
	return k.sums.Size()
}

// Record records a dispatch. Dispatches without a barrier between them may overlap.
func (k *Kernel) Record(s *vk.Stream) error {
	if k == nil || k.pipeline == nil || s == nil {
		return fmt.Errorf("%w: a kernel of NewProducts or NewEmpty and a stream", problem.ErrInvalid)
	}
	return s.Dispatch(k.pipeline, nil, dispatch.ParamBytes(&k.params, 16), [3]uint32{k.groups, 1, 1}, k.sums)
}

// Verify runs the kernel and compares the sum of all results with that of the products it
// counts. The error of a difference matches ErrWrong: a driver's compiler left work out.
func (k *Kernel) Verify(ctx context.Context, s *vk.Stream) error {
	if err := k.Record(s); err != nil || k.flops == 0 {
		return err
	}
	sums := make([]byte, k.sums.Size())
	if err := s.Download(ctx, sums, k.sums, 0); err != nil {
		return err
	}
	got := 0.0
	for i := 0; i < len(sums); i += 4 {
		got += float64(math.Float32frombits(binary.LittleEndian.Uint32(sums[i:])))
	}
	if got != k.total {
		return fmt.Errorf("%w: the products of %s sum to %v, want %v", ErrWrong, k.module, got, k.total)
	}
	return nil
}
