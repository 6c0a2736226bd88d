package attention

import (
	"context"
	"encoding/binary"
	"fmt"

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
	directRows  = 8 * directSize
	directKeys  = 8  // for each row, where there are more than a fragment's
	directLanes = 32 // of a subgroup whose fragments have a known order
)

// directOn decides it for a device, a tier and a storage type, and says why where it
// may not be used. Where the device's order is not the one the kernel knows, tiles
// that share keys through shared memory are faster. A driver on the CPU has no order,
// and is where the kernel is tested without a GPU.
func directOn(dev *vk.Device, tier Tier, t DType) (direct, string) {
	caps := dev.Caps()
	f, reason := pickFragment(caps, tier, t)
	if reason != "" {
		return directNever, reason
	}
	if dev.Info().Type == vk.DeviceCPU {
		if tier != TierCoopMat2 || !caps.CoopMat2.FlexibleDimensions || directLanes%f.subgroup != 0 || directSize%f.m+directSize%f.n != 0 {
			return directNever, "on a driver of the CPU it needs tier coopmat2 with flexible dimensions"
		}
		return directShared, ""
	}
	if f.m != directSize || f.n != directSize || f.subgroup != directLanes {
		return directNever, fmt.Sprintf("the device's fragments are %dx%d among %d lanes, the kernel's %dx%d among %d",
			f.m, f.n, f.subgroup, directSize, directSize, directLanes)
	}
	if reason := fragmentsUnordered(dev, t, f.sumN); reason != "" {
		return directNever, reason
	}
	return directOrdered, ""
}

// decodesDirectly reports whether the kernel is for a call, whatever the device. Each workgroup reads
// the keys anew for its rows, from the cache where they run side by side: on an H200 that
// beats tiles of many rows up to 128 of them over long keys, 1.2 to 5 times.
func (r *request) decodesDirectly(fixed bool) bool {
	rows := r.decodeRows()
	return rows <= directSize ||
		rows <= directRows && r.shape.Sq <= decodeQueries && (fixed || int64(r.keys()) >= directKeys*int64(rows))
}

// decideDirect decides r.direct, and says why where it is not.
func (r *request) decideDirect(dev *vk.Device, cfg *Config, tier Tier) (why string) {
	r.direct, why = directNever, fmt.Sprintf("%d keys are few for %d rows of each key head", r.keys(), r.decodeRows())
	if r.decodesDirectly(cfg.FixedSplit > 0) {
		r.direct, why = directOn(dev, tier, cfg.DType)
	}
	return why
}

// fragment of the kernel for so many rows on a device whose own is f: sumN is how many
// rows a workgroup has.
func (d direct) fragment(f fragment, rows uint32) fragment {
	if f.m != directSize || f.n != directSize { // any size is as good there
		f = fragment{m: directSize, n: directSize, k: directSize, sumN: directSize / 2, subgroup: f.subgroup}
	}
	if rows > f.sumN || f.sumN < directSize/2 {
		f.sumN = directSize
	}
	return f
}

// fragmentOrder is what a device answered for a storage type; it is asked once.
type fragmentOrder struct{ unknown string } // why the order is not the kernel's, "" where it is

// Detach has nothing to let go of.
func (fragmentOrder) Detach() {}

type fragmentOrderKey struct {
	t    DType
	sumN uint32
}

// fragmentsUnordered says why elements of 16x16 operands may not be taken to lie among
// 32 lanes as decode_coopmat.comp knows it; "" where they do. The first call on a device
// asks it, by a small dispatch; one that cannot be asked counts as one with another order.
func fragmentsUnordered(dev *vk.Device, t DType, sumN uint32) string {
	key := fragmentOrderKey{t, sumN}
	if v, ok := dev.Attached(key).(fragmentOrder); ok {
		return v.unknown
	}
	if dev.QueueIsUnguarded() {
		return "the device is not asked for the order of its fragments' elements: its queue has no lock"
	}
	v, err := dev.Attach(key, func() (vk.Attached, error) {
		switch answer, err := probeFragments(dev, t, sumN); {
		case err != nil:
			return fragmentOrder{"the device does not tell the order of its fragments' elements: " + err.Error()}, nil
		case !isFragmentOrder(answer, sumN):
			return fragmentOrder{"the elements of the device's fragments lie among its lanes in an order the kernel does not know"}, nil
		}
		return fragmentOrder{}, nil
	})
	if err != nil {
		return err.Error()
	}
	return v.(fragmentOrder).unknown
}

// probeFragments has the device write the numbers of the elements that each lane
// holds: of A and of B, eight of each, of a B of sumN columns, and of an accumulator.
func probeFragments(dev *vk.Device, t DType, sumN uint32) ([]uint32, error) {
	module, err := shaders.Get("fragment_probe_" + t.String())
	if err != nil {
		return nil, err
	}
	p, err := dev.Pipeline(&vk.PipelineDesc{
		Name: "fragment probe", Code: module.Code, Hash: module.Hash,
		Constants:    []vk.SpecConstant{{ID: shaders.ConstLocalSize, Value: directLanes}, {ID: shaders.ConstSumN, Value: sumN}},
		SubgroupSize: directLanes, FullSubgroups: true, StorageBuffers: 1,
		LocalSize: [3]uint32{directLanes, 1, 1}, SharedBytes: directSize * directSize * (2 + 4),
	})
	if err != nil {
		return nil, err
	}
	s, err := dev.NewStream("fragment probe")
	if err != nil {
		return nil, err
	}
	defer s.Close()
	bytes := make([]byte, (3*directSize+sumN)*directSize*4)
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
// 4 g + q has of lines g and g + 8, rows of A and of an accumulator and columns of B,
// the elements 2 q, 2 q + 1, 2 q + 8 and 2 q + 9, line after line. An operand of 8
// lines has the first.
func isFragmentOrder(answer []uint32, sumN uint32) bool {
	for i, lines := range [...]uint32{directSize, directSize, sumN, directSize} {
		if len(answer) < int(lines*directSize) || lines%(directSize/2) != 0 {
			return false
		}
		each := lines * directSize / directLanes
		for lane := range uint32(directLanes) {
			for e := range each {
				row := lane/4 + e/4*8
				col := lane%4*2 + e%2 + e/2%2*8
				if i == 1 || i == 2 { // B
					row, col = col, row
				}
				if answer[lane*each+e] != row*directSize+col {
					return false
				}
			}
		}
		answer = answer[lines*directSize:]
	}
	return len(answer) == 0
}
