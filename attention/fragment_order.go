package attention

import (
	"context"
	"encoding/binary"
	"fmt"

	"vkattn/shaders"
	"vkattn/vk"
)

const (
	decodeFragment   = 16 // rows and columns of its fragments
	maxDecodeRows    = 8 * decodeFragment
	decodeKeysPerRow = 8  // for each row, where there are more than a fragment's
	decodeLanes      = 32 // of a subgroup whose fragments have a known order
)

// decodeOperandsOn decides it for a device, a tier and a storage type, and says why where it
// may not be used. Where the device's order is not the one the kernel knows, tiles
// that share keys through shared memory are faster. A driver on the CPU has no order,
// and is where the kernel is tested without a GPU.
func decodeOperandsOn(dev *vk.Device, tier Tier, t DType) (decodeOperands, string) {
	caps := dev.Caps()
	f, reason := pickFragment(caps, tier, t)
	if reason != "" {
		return noDecodeKernel, reason
	}
	if dev.Info().Type == vk.DeviceCPU {
		if tier != TierCoopMat2 || !caps.CoopMat2.FlexibleDimensions || decodeLanes%f.Subgroup != 0 || decodeFragment%f.M+decodeFragment%f.N != 0 {
			return noDecodeKernel, "on a driver of the CPU it needs tier coopmat2 with flexible dimensions"
		}
		return operandsInSmem, ""
	}
	if f.M != decodeFragment || f.N != decodeFragment || f.Subgroup != decodeLanes {
		return noDecodeKernel, fmt.Sprintf("the device's fragments are %dx%d among %d lanes, the kernel's %dx%d among %d",
			f.M, f.N, f.Subgroup, decodeFragment, decodeFragment, decodeLanes)
	}
	if reason := fragmentsUnordered(dev, t, f.SumN); reason != "" {
		return noDecodeKernel, reason
	}
	return operandsInRegisters, ""
}

// usesDecodeKernel reports whether the kernel is for a call, whatever the device. Each workgroup reads
// the keys anew for its rows, from the cache where they run side by side: on an H200 that
// beats tiles of many rows up to 128 of them over long keys, 1.2 to 5 times.
func (r *request) usesDecodeKernel(fixed bool) bool {
	rows := r.decodeRows()
	return rows <= decodeFragment ||
		rows <= maxDecodeRows && r.shape.Sq <= decodeQueries && (fixed || int64(r.keys()) >= decodeKeysPerRow*int64(rows))
}

// chooseOperands decides r.direct, and says why where it is not.
func (r *request) chooseOperands(dev *vk.Device, cfg *Config, tier Tier) (why string) {
	r.operands, why = noDecodeKernel, fmt.Sprintf("%d keys are few for %d rows of each key head", r.keys(), r.decodeRows())
	if r.usesDecodeKernel(cfg.FixedSplit > 0) {
		r.operands, why = decodeOperandsOn(dev, tier, cfg.DType)
	}
	return why
}

// fragment of the kernel for so many rows on a device whose own is f: sumN is how many
// rows a workgroup has.
func (d decodeOperands) fragment(f fragment, rows uint32) fragment {
	if f.M != decodeFragment || f.N != decodeFragment { // any size is as good there
		f = fragment{M: decodeFragment, N: decodeFragment, K: decodeFragment, SumN: decodeFragment / 2, Subgroup: f.Subgroup}
	}
	if rows > f.SumN || f.SumN < decodeFragment/2 {
		f.SumN = decodeFragment
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
		Constants:    []vk.SpecConstant{{ID: shaders.ConstLocalSize, Value: decodeLanes}, {ID: shaders.ConstSumN, Value: sumN}},
		SubgroupSize: decodeLanes, FullSubgroups: true, StorageBuffers: 1,
		LocalSize: [3]uint32{decodeLanes, 1, 1}, SharedBytes: decodeFragment * decodeFragment * (2 + 4),
	})
	if err != nil {
		return nil, err
	}
	s, err := dev.NewStream("fragment probe")
	if err != nil {
		return nil, err
	}
	defer s.Close()
	bytes := make([]byte, (3*decodeFragment+sumN)*decodeFragment*4)
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
