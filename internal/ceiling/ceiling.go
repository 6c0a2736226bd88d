// Package ceiling has the kernels that measure what a Vulkan device reaches at most, for
// rates of attention to be compared with: products whose operands stay in registers, copies
// and reads of memory, and a dispatch that does nothing. The caller times them, alone and
// with barriers.
package ceiling

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"vkattn/internal/dispatch"
	"vkattn/internal/problem"
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
	size     uint32 // invocations of a workgroup
	groups   uint32
	flops    float64 // of a dispatch
	total    float64 // of all sums
	frag     vk.CoopMatShape
	tile     tile // of products of cooperative matrices
}

// tile is how a variant of the kernel of products divides its work. See shaders/peak.comp.
type tile struct {
	invocations uint32 // of a workgroup, at most
	a, b        uint32 // fragments of a subgroup
	unroll      uint32 // steps of a turn of the loop, which divide those of all dispatches
	change      bool   // operands change in every step
}

// tiles are the variants for a GPU, the fastest on an H200 first: it reaches 610 TFLOP/s with
// 8 steps a turn of the loop, 580 with 4 and 519 with 1 (docs/log/vulkan.md, 58).
var tiles = []tile{
	{128, 1, 2, 8, false}, {128, 1, 2, 16, false}, {32, 1, 2, 8, false}, {128, 1, 4, 8, false}, {128, 1, 2, 4, false},
}

// tileCPU is the variant for a driver on the CPU, whose compiler computes products of the
// same operands once.
var tileCPU = tile{local, 2, 4, 1, true}

// Sizes of a dispatch. At 630 TFLOP/s of products and 62 of FMAs an H200 takes 0.6 to 0.9
// milliseconds, with many times the workgroups that it holds at once, so that its last ones
// weigh little. A driver on the CPU takes a few milliseconds.
const (
	local         = 256
	accumulators  = 8  // fragments per subgroup
	accumulators1 = 16 // numbers per invocation, without matrices

	groups, groupsIntegrated, groupsCPU = 4096, 512, 16
	steps, stepsFMA, shorterCPU         = 256, 1024, 4
)

// params is the push constant block of shaders/peak.comp.
type params struct {
	addrSums uint64
	x, y     float32
}

// Products compiles the variants of the kernel of a storage type: products of cooperative
// matrices for f16 and bf16, FMAs for f32. Which is the fastest is for the caller to measure.
// The error matches vk.ErrUnsupported if the device has none.
func Products(dev *vk.Device, dtype problem.DType) (list []*Kernel, err error) {
	if err := Supported(dev, dtype); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			for _, k := range list {
				err = errors.Join(err, k.Close())
			}
			list = nil
		}
	}()
	if dtype == problem.F32 {
		k, err := newFMA(dev)
		return []*Kernel{k}, err
	}
	variants := tiles
	if dev.Info().Type == vk.DeviceCPU {
		variants = []tile{tileCPU}
	}
	for _, t := range variants {
		k, err := newProducts(dev, dtype, t)
		if err != nil {
			return list, err
		}
		list = append(list, k)
	}
	return list, nil
}

// newProducts compiles a variant of the kernel of products of cooperative matrices.
func newProducts(dev *vk.Device, dtype problem.DType, t tile) (*Kernel, error) {
	frag, err := dispatch.LargestFragment(dev.Caps(), dtype)
	if err != nil {
		return nil, err
	}
	subgroup := dev.Caps().SubgroupSize
	size := max(subgroup, min(t.invocations, maxInvocations(dev))/subgroup*subgroup)
	all, n := work(dev, steps)
	k := &Kernel{dev: dev, module: "peak_coopmat_" + dtype.String(), size: size, groups: all / size, frag: frag, tile: t}
	k.params.x, k.params.y = 1, 0.125
	elements := float64(k.groups) * float64(size/subgroup) * float64(frag.M) * float64(frag.N)
	k.flops = 2 * accumulators * elements * float64(frag.K) * float64(n)
	// Fragment m of A holds (m + 1) x, or each of two holds x and 2x in turn. Fragment n of B has a
	// mean of (n + 1) y, whoever holds which element. All sums are multiples of 1/16 below 2^20 and
	// therefore exact.
	for i := range uint32(accumulators) {
		a, b := float64(i*t.a/accumulators+1), float64(i%t.b+1)
		if t.change {
			a = 1.5
		}
		k.total += elements * (float64(i) + a*b*0.125*float64(frag.K)*float64(n))
	}
	return k.build(subgroup, map[uint32]uint32{shaders.ConstPeakSteps: n, shaders.ConstSubgroupSize: subgroup,
		shaders.ConstFragM: frag.M, shaders.ConstFragN: frag.N, shaders.ConstFragK: frag.K,
		shaders.ConstPeakA: t.a, shaders.ConstPeakB: t.b, shaders.ConstPeakUnroll: t.unroll, shaders.ConstPeakChange: dispatch.BoolConstant(t.change)})
}

// newFMA compiles the kernel of float32 FMAs.
func newFMA(dev *vk.Device) (*Kernel, error) {
	size := min(local, maxInvocations(dev))
	all, n := work(dev, stepsFMA)
	k := &Kernel{dev: dev, module: "peak_fma", size: size, groups: all / size}
	k.params.x, k.params.y = 1, 0.25
	invocations := float64(k.groups) * float64(size)
	k.flops = 2 * accumulators1 * invocations * float64(n)
	// Every step adds y to an accumulator, which began as its number.
	k.total = invocations * (accumulators1*(accumulators1-1)/2 + accumulators1*0.25*float64(n))
	return k.build(0, map[uint32]uint32{shaders.ConstPeakSteps: n})
}

// work is the number of invocations of a dispatch, and of the steps of each on a device where
// one on a GPU has n.
func work(dev *vk.Device, n uint32) (invocations, steps uint32) {
	switch dev.Info().Type {
	case vk.DeviceDiscrete:
		return groups * local, n
	case vk.DeviceCPU:
		return groupsCPU * local, n / shorterCPU
	}
	return groupsIntegrated * local, n
}

// NewEmpty compiles a kernel that does nothing, of one workgroup. Its dispatch takes what
// the device needs for any. The error matches vk.ErrUnsupported if the device cannot run it.
func NewEmpty(dev *vk.Device) (*Kernel, error) {
	if err := check(dev); err != nil {
		return nil, err
	}
	k := &Kernel{dev: dev, module: "peak_fma", groups: 1, size: min(local, maxInvocations(dev))}
	return k.build(0, map[uint32]uint32{shaders.ConstPeakSteps: 0})
}

// Supported says why a device has no products of a storage type. It is nil if Products has
// kernels for them.
func Supported(dev *vk.Device, dtype problem.DType) error {
	if err := check(dev); err != nil || dtype == problem.F32 {
		return err
	}
	_, err := dispatch.LargestFragment(dev.Caps(), dtype)
	return err
}

func check(dev *vk.Device) error {
	if dev == nil {
		return fmt.Errorf("%w: ceilings are those of a Vulkan device", problem.ErrUnsupported)
	}
	if why := dev.Caps().Without(dispatch.NeedAddresses); why != "" {
		return fmt.Errorf("%w: %s", problem.ErrUnsupported, why)
	}
	return nil
}

// maxInvocations is the largest number of invocations of a workgroup.
func maxInvocations(dev *vk.Device) uint32 {
	limits := dev.Caps().Limits
	return min(limits.MaxInvocations, limits.MaxWorkGroupSize[0])
}

// build compiles the pipeline and returns the kernel.
func (k *Kernel) build(subgroup uint32, constants map[uint32]uint32) (_ *Kernel, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, k.Close())
		}
	}()
	constants[shaders.ConstLocalSize] = k.size
	module, err := shaders.Get(k.Module())
	if err != nil {
		return nil, err
	}
	desc, err := dispatch.DescribeKernel(module, k.size, constants)
	if err != nil {
		return nil, err
	}
	desc.SubgroupSize, desc.FullSubgroups = subgroup, subgroup != 0
	desc.Name = module.Name
	if k.flops == 0 {
		desc.Name = "empty"
	}
	if k.pipeline, err = k.dev.Pipeline(desc); err != nil {
		return nil, err
	}
	if k.sums, err = k.dev.NewBuffer(uint64(k.groups)*uint64(k.size)*4, vk.BufferOptions{Name: "sums of products"}); err != nil {
		return nil, err
	}
	k.params.addrSums = k.sums.Address()
	return k, nil
}

// Close releases the pipeline and the memory.
func (k *Kernel) Close() error { return errors.Join(k.pipeline.Close(), k.sums.Close()) }

// Flops is the number of floating-point operations of a dispatch, a product and a sum each
// counted; 0 for the empty kernel.
func (k *Kernel) Flops() float64 { return k.flops }

// Tile describes the variant, such as "16x16x16 1x2x8 128 unroll 8": fragments, the number of A,
// B and accumulators of a subgroup, the invocations of a workgroup, and the steps of a turn of
// the loop. It is empty without cooperative matrices.
func (k *Kernel) Tile() string {
	if k.frag.M == 0 {
		return ""
	}
	return fmt.Sprintf("%dx%dx%d %dx%dx%d %d unroll %d", k.frag.M, k.frag.N, k.frag.K, k.tile.a, k.tile.b, accumulators, k.size, k.tile.unroll)
}

// Module is the name of the SPIR-V module.
func (k *Kernel) Module() string { return dispatch.ModuleName(k.module, problem.AccessAddresses) }

// Bytes is the device memory of the kernel.
func (k *Kernel) Bytes() uint64 { return k.sums.Size() }

// Record records a dispatch. Dispatches without a barrier between them may overlap.
func (k *Kernel) Record(s *vk.Stream) error {
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
