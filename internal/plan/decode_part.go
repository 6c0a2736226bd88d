package plan

import (
	"vkattn/internal/problem"
	"vkattn/vk"
)

// The decode part of a mixed batch. A packed batch of serving has a few long sequences
// in prefill among many sequences of one row, which decode. The general kernel takes as
// long for one row as for a full row block. So the decode kernel computes the short
// sequences, the decode part, in a dispatch of its own, and the general kernel computes
// the prefill part. Each kernel skips the sequences of the other. On an H200, 600
// sequences of one row over 1024 keys and 5 of 2048 rows take 1.19 ms; one grid for all
// took 2.17.

// decodePartShare decides whether most sequences of a batch are short: their mean number
// of rows is at most Sq, the bound of the longest, divided by decodePartShare.
const decodePartShare = 4

// decodePartRequest returns the request of the decode part: the sequences of packed Q
// with no more rows than the decode kernel holds at once. ok is false if v computes all
// sequences. Lengths are in the device's memory; the host knows only the total number of
// rows, and that no sequence has more than Sq. The keys of its sequences are not split,
// so there must be enough sequences to fill the device.
func decodePartRequest(caps *vk.Caps, cfg *problem.Config, v *Variant, r *Request) (s Request, ok bool) {
	rows, group := uint32(decodeFragment/2), uint32(r.Shape.Group())
	if group > rows {
		rows = decodeFragment
	}
	s = *r
	_, coopmat := v.Tile.(coopmatTile)
	s.Shape.Sq = int(rows / group)
	return s, group <= rows && coopmat && !v.Options.split && !v.Options.dropout && !r.Options.listPerRow() && cfg.FixedSplit == 0 &&
		v.Options.Lengths&LengthCuQ != 0 && decodePartShare*int64(r.TotalQ) <= int64(r.Shape.B)*int64(r.Shape.Sq) &&
		uint64(r.Shape.B)*uint64(r.Shape.KVHeads()) >= coresOf(caps)
}

// decodePartVariant returns the kernel for the decode part, or nil if there is none.
func decodePartVariant(dev *vk.Device, cfg *problem.Config, tier problem.Tier, v *Variant, r *Request) *Variant {
	s, ok := decodePartRequest(dev.Caps(), cfg, v, r)
	if !ok {
		return nil
	}
	if s.operands, _ = decodeOperandsOn(dev, tier, cfg.DType); s.operands == noDecodeKernel {
		return nil
	}
	decodePart, _, reason := chooseVariant(dev.Caps(), *cfg, tier, s)
	if reason != "" || !decodePart.IsDecode() || decodePart.Tile.Rows() < s.decodeRows() {
		return nil
	}
	decodePart.onCPU, decodePart.Options.split, decodePart.Options.decodePartRows, decodePart.Options.isDecodePart = v.onCPU, false, s.decodeRows(), true
	return &decodePart
}
