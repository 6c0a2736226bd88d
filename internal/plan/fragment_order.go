package plan

import (
	"encoding/binary"
	"fmt"
	"slices"

	"vkattn/internal/problem"
	"vkattn/shaders"
	"vkattn/vk"
)

// The decode kernel puts K and V into the elements of a fragment itself. It can do so in
// registers only if it knows how a device orders the elements of a fragment among the
// lanes of a subgroup. This file asks the device and decides whether a call runs the
// decode kernel. The backward kernels and the row sums of the forward kernels ask for less,
// see accumulatorIsOperandA and rowElements.

const (
	decodeFragment   = 16                 // rows and columns of the kernel's fragments
	maxDecodeRows    = 8 * decodeFragment // most packed rows of a call that runs the kernel
	decodeKeysPerRow = 8                  // fewest keys per row of a call with more than one fragment of rows
	decodeLanes      = 32                 // lanes of a subgroup whose order the kernel knows
)

// decodeOperandsOn chooses the operands for a device, a tier and a storage type, or says
// why the decode kernel does not run there. On devices with another order of elements,
// tiles whose subgroups split KV in shared memory are faster than operandsInSmem. Drivers
// on the CPU have no order and use operandsInSmem, so that tests without a GPU run the kernel.
func decodeOperandsOn(dev *vk.Device, tier problem.Tier, t problem.DType) (decodeOperands, string) {
	caps := dev.Caps()
	f, reason := pickFragment(caps, tier, t)
	if reason != "" {
		return noDecodeKernel, reason
	}
	if dev.Info().Type == vk.DeviceCPU {
		if tier != problem.TierCoopMat2 || !caps.CoopMat2.FlexibleDimensions || decodeLanes%f.Subgroup != 0 || decodeFragment%f.M+decodeFragment%f.N != 0 {
			return noDecodeKernel, "on a driver of the CPU it needs tier coopmat2 with flexible dimensions"
		}
		return operandsInSmem, ""
	}
	if f.M != decodeFragment || f.N != decodeFragment || f.Subgroup != decodeLanes {
		return noDecodeKernel, fmt.Sprintf("the device's fragments are %dx%d among %d lanes, the kernel's %dx%d among %d",
			f.M, f.N, f.Subgroup, decodeFragment, decodeFragment, decodeLanes)
	}
	if reason := fragmentsUnordered(dev, t, f); reason != "" {
		return noDecodeKernel, reason
	}
	return operandsInRegisters, ""
}

// usesDecodeKernel reports whether the decode kernel suits a call, on any device. Each
// workgroup reads all keys for its rows; workgroups that run at the same time find them
// in the cache. On an H200 the kernel is 1.2 to 5 times as fast as tiles of many rows,
// for up to 128 rows over long keys.
func (r *Request) usesDecodeKernel(fixed bool) bool {
	rows := r.decodeRows()
	return rows <= decodeFragment ||
		rows <= maxDecodeRows && r.queries() <= decodeQueries && (fixed || r.keysAtLeast(decodeKeysPerRow*int(rows)))
}

// chooseOperands sets r.operands and says why the decode kernel is not used.
func (r *Request) chooseOperands(dev *vk.Device, cfg *problem.Config, tier problem.Tier) (why string) {
	r.operands = noDecodeKernel
	switch {
	case cfg.DType == problem.F32:
		return "it has no float32"
	case r.Options.dropout:
		return "it has no dropout"
	case r.usesDecodeKernel(cfg.FixedSplit > 0):
		r.operands, why = decodeOperandsOn(dev, tier, cfg.DType)
		return why
	}
	return fmt.Sprintf("%d keys are few for %d rows of each key head", r.keys(), r.decodeRows())
}

// fragment returns the kernel's fragment for a number of rows on a device whose own
// fragment is f. sumN is the number of rows per workgroup.
func (d decodeOperands) fragment(f fragment, rows uint32) fragment {
	if f.M != decodeFragment || f.N != decodeFragment { // a driver on the CPU: any size works
		f = fragment{M: decodeFragment, N: decodeFragment, K: decodeFragment, SumN: decodeFragment / 2, Subgroup: f.Subgroup}
	}
	if rows > f.SumN || f.SumN < decodeFragment/2 {
		f.SumN = decodeFragment
	}
	return f
}

// fragmentOrder caches a device's answer for a type and size of fragments.
type fragmentOrder struct {
	answer []uint32 // see probeFragments; nil: the device did not answer
	why    string   // why it did not
}

// Detach does nothing: an answer holds no resources.
func (fragmentOrder) Detach() {}

type fragmentOrderKey struct {
	t        problem.DType
	fragment fragment
}

// askFragments asks a device for the order of the elements of square fragments, or says why
// it cannot. Vulkan leaves the order open, so the first call on a device asks it with a small
// dispatch.
func askFragments(dev *vk.Device, t problem.DType, f fragment) (answer []uint32, why string) {
	key := fragmentOrderKey{t, f}
	if v, ok := dev.Attached(key).(fragmentOrder); ok {
		return v.answer, v.why
	}
	if dev.QueueIsUnguarded() {
		return nil, "the device cannot be asked for the element order of its fragments: its queue has no lock"
	}
	v, err := dev.Attach(key, func() (vk.Attached, error) {
		answer, err := probeFragments(dev, t, f)
		if err != nil {
			return fragmentOrder{why: "the device did not report the element order of its fragments: " + err.Error()}, nil
		}
		return fragmentOrder{answer: answer}, nil
	})
	if err != nil {
		return nil, err.Error()
	}
	return v.(fragmentOrder).answer, v.(fragmentOrder).why
}

// fragmentsUnordered says why the elements of 16x16 operands do not lie among 32 lanes as
// decode_coopmat.comp assumes; "" if they do. A device that cannot be asked counts as one
// with another order.
func fragmentsUnordered(dev *vk.Device, t problem.DType, f fragment) string {
	answer, why := askFragments(dev, t, f)
	if why == "" && !isFragmentOrder(answer, f.SumN) {
		why = "the device orders the elements of a fragment in a way that the kernel does not know"
	}
	return why
}

// accumulatorIsOperandA reports whether a device orders the elements of an accumulator as
// those of an operand A, so that each stays in its register when one becomes the other
// (shaders/backward_fragments.glsl). A device that cannot be asked counts as one that does not.
func accumulatorIsOperandA(dev *vk.Device, t problem.DType, f fragment) bool {
	size := int(f.M)
	if !probed(f) {
		return false
	}
	answer, why := askFragments(dev, t, f)
	return why == "" && slices.Equal(answer[:size*size], answer[len(answer)-size*size:])
}

// rowElements returns how many consecutive elements of a lane lie in one row of an
// accumulator (shaders/fragment_ops.glsl): 4 on NVIDIA. It returns 0 for a device that
// cannot be asked.
func rowElements(dev *vk.Device, t problem.DType, f fragment) uint32 {
	if !probed(f) {
		return 0
	}
	answer, why := askFragments(dev, t, f)
	if why != "" {
		return 0
	}
	return rowRun(answer[len(answer)-int(f.M*f.M):], f)
}

// rowRun returns the longest run, a power of two, of which every lane's elements of an
// accumulator consist: elements of one row each. It returns 0 if the answer is not each
// element once.
func rowRun(accumulator []uint32, f fragment) uint32 {
	for i, x := range slices.Sorted(slices.Values(accumulator)) {
		if x != uint32(i) {
			return 0
		}
	}
	run := uint32(1)
	for len(accumulator)/int(f.Subgroup)%int(2*run) == 0 {
		for i, x := range accumulator {
			if first := i - i%int(2*run); x/f.M != accumulator[first]/f.M {
				return run
			}
		}
		run *= 2
	}
	return run
}

// probed reports whether probeFragments takes a fragment: it is square and its elements are
// divided evenly among the lanes.
func probed(f fragment) bool {
	return f.M == f.N && f.M == f.K && f.M <= maxProbedFragment && f.M*f.M%f.Subgroup == 0
}

// maxProbedFragment is the largest size whose indices bfloat16 holds exactly.
const maxProbedFragment = 16

// probeFragments has the device write the index of every element that each lane holds: of A
// and B, of a B of f.SumN columns, and of an accumulator, all of f.M rows.
func probeFragments(dev *vk.Device, t problem.DType, f fragment) ([]uint32, error) {
	module, err := shaders.Get("fragment_probe_" + t.String())
	if err != nil {
		return nil, err
	}
	p, err := dev.Pipeline(&vk.PipelineDesc{
		Name: "fragment probe", Code: module.Code, Hash: module.Hash,
		Constants:    []vk.SpecConstant{{ID: shaders.ConstLocalSize, Value: f.Subgroup}, {ID: shaders.ConstFragM, Value: f.M}, {ID: shaders.ConstSumN, Value: f.SumN}},
		SubgroupSize: f.Subgroup, FullSubgroups: true, StorageBuffers: 1,
		LocalSize: [3]uint32{f.Subgroup, 1, 1}, SharedBytes: uint64(f.M * f.M * (2 + 4)),
	})
	if err != nil {
		return nil, err
	}
	s, err := dev.NewStream("fragment probe")
	if err != nil {
		return nil, err
	}
	defer s.Close()
	bytes := make([]byte, (3*f.M+f.SumN)*f.M*4)
	b, err := dev.NewBuffer(uint64(len(bytes)), vk.BufferOptions{Name: "fragment probe"})
	if err != nil {
		return nil, err
	}
	defer b.Close()
	all := vk.BufferRange{Buffer: b, Size: b.Size()}
	if err := s.Dispatch(p, []vk.BufferRange{all}, nil, [3]uint32{1, 1, 1}); err != nil {
		return nil, err
	}
	if err := s.Barrier(); err != nil {
		return nil, err
	}
	ctx, cancel := dev.Bounded()
	defer cancel()
	if err := s.Download(ctx, bytes, b, 0); err != nil {
		return nil, err
	}
	answer := make([]uint32, len(bytes)/4)
	for i := range answer {
		answer[i] = binary.LittleEndian.Uint32(bytes[4*i:])
	}
	return answer, nil
}

// isFragmentOrder compares an answer with the order that decode_coopmat.comp assumes.
// Lane 4g+q holds elements 2q, 2q+1, 2q+8 and 2q+9 of lines g and g+8. Lines are the rows
// of A and of an accumulator and the columns of B. An operand of 8 lines has line g only.
func isFragmentOrder(answer []uint32, sumN uint32) bool {
	for i, lines := range [...]uint32{decodeFragment, decodeFragment, sumN, decodeFragment} {
		if len(answer) < int(lines*decodeFragment) || lines%(decodeFragment/2) != 0 {
			return false
		}
		each := lines * decodeFragment / decodeLanes
		for lane := range uint32(decodeLanes) {
			for e := range each {
				row := lane/4 + e/4*8
				col := lane%4*2 + e%2 + e/2%2*8
				if i == 1 || i == 2 { // B
					row, col = col, row
				}
				if answer[lane*each+e] != row*decodeFragment+col {
					return false
				}
			}
		}
		answer = answer[lines*decodeFragment:]
	}
	return len(answer) == 0
}
