package attention

import (
	"context"
	"encoding/binary"

	"vkattn/shaders"
	"vkattn/vk"
)

// direct is how the kernel of decode_coopmat.comp brings what it loaded into
// fragments, if it may be used at all.
type direct uint8

const (
	directNever   direct = iota
	directOrdered        // from registers: the elements of a fragment lie as it takes for granted
	directShared         // by way of shared memory, whatever their order
)

const (
	directSize  = 16 // rows and columns of its fragments
	directLanes = 32 // of a subgroup whose fragments have a known order
)

// directOn decides it for a device, a tier, a storage type and so many packed rows.
// Where the device's order is not the one the kernel knows, tiles that share keys
// through shared memory are faster. A driver on the CPU has no order, and is where the
// kernel is tested without a GPU, with as many rows as its own fragments have: of the
// others lavapipe 26.2 reduces half of the columns.
func directOn(dev *vk.Device, tier Tier, t DType, rows uint32) direct {
	caps := dev.Caps()
	f, reason := pickFragment(caps, tier, t)
	switch {
	case reason != "" || caps.SubgroupOps&vk.SubgroupArithmetic == 0:
		return directNever
	case dev.Info().Type == vk.DeviceCPU:
		if tier == TierCoopMat2 && caps.CoopMat2.FlexibleDimensions && directLanes%f.subgroup == 0 && directSize%f.m+directSize%f.n == 0 && rows <= f.m {
			return directShared
		}
	case f.m == directSize && f.n == directSize && f.subgroup == directLanes && fragmentsOrdered(dev, t):
		return directOrdered
	}
	return directNever
}

// fragment of the kernel on a device whose own is f.
func (d direct) fragment(f fragment) fragment {
	if f.m != directSize || f.n != directSize {
		f = fragment{m: directSize, n: directSize, k: directSize, sumN: directSize, subgroup: f.subgroup}
	}
	return f
}

// fragmentOrder is what a device answered for a storage type; it is asked once.
type fragmentOrder struct{ known bool }

// Detach has nothing to let go of.
func (fragmentOrder) Detach() {}

type fragmentOrderKey struct{ t DType }

// fragmentsOrdered reports whether elements of 16x16 operands lie among 32 lanes as
// decode_coopmat.comp knows it. The first call on a device asks it, by a small
// dispatch; a device that cannot be asked counts as one with another order.
func fragmentsOrdered(dev *vk.Device, t DType) bool {
	key := fragmentOrderKey{t}
	if v, ok := dev.Attached(key).(fragmentOrder); ok {
		return v.known
	}
	if dev.QueueIsUnguarded() {
		return false
	}
	v, err := dev.Attach(key, func() (vk.Attached, error) {
		answer, err := probeFragments(dev, t)
		return fragmentOrder{err == nil && isFragmentOrder(answer)}, nil
	})
	if err != nil {
		return false
	}
	return v.(fragmentOrder).known
}

// probeFragments has the device write the numbers of the elements that each lane
// holds of A and of B, eight of each.
func probeFragments(dev *vk.Device, t DType) ([]uint32, error) {
	module, err := shaders.Get("fragment_probe_" + t.String())
	if err != nil {
		return nil, err
	}
	p, err := dev.Pipeline(&vk.PipelineDesc{
		Name: "fragment probe", Code: module.Code, Hash: module.Hash,
		Constants:    []vk.SpecConstant{{ID: shaders.ConstLocalSize, Value: directLanes}},
		SubgroupSize: directLanes, FullSubgroups: true, StorageBuffers: 1,
		LocalSize: [3]uint32{directLanes, 1, 1}, SharedBytes: directSize * directSize * 2,
	})
	if err != nil {
		return nil, err
	}
	s, err := dev.NewStream("fragment probe")
	if err != nil {
		return nil, err
	}
	defer s.Close()
	bytes := make([]byte, 2*directSize*directSize*4)
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
	if err := s.Download(context.Background(), bytes, b, 0); err != nil {
		return nil, err
	}
	answer := make([]uint32, len(bytes)/4)
	for i := range answer {
		answer[i] = binary.LittleEndian.Uint32(bytes[4*i:])
	}
	return answer, nil
}

// isFragmentOrder compares an answer with the order of decode_coopmat.comp: lane
// 4 g + q has of lines g and g + 8, rows of A and columns of B, the elements 2 q,
// 2 q + 1, 2 q + 8 and 2 q + 9, line after line.
func isFragmentOrder(answer []uint32) bool {
	const each = directSize * directSize / directLanes
	if len(answer) != 2*directSize*directSize {
		return false
	}
	for lane := range uint32(directLanes) {
		for e := range uint32(each) {
			line := lane/4 + e/4*8
			along := lane%4*2 + e%2 + e/2%2*8
			i := lane*each + e
			if answer[i] != line*directSize+along || answer[directSize*directSize+i] != along*directSize+line {
				return false
			}
		}
	}
	return true
}
