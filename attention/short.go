package attention

import "vkattn/vk"

// Packed batches of serving have a few long sequences, whose prompts are read, among many
// of one row, which are decoded. The kernel for blocks of many rows takes as long for a row
// as for all that a block has, so the decoding kernel computes the short sequences in
// a dispatch of its own beside it; each kernel leaves what is the other's. On an H200
// 600 sequences of one row over 1024 keys and 5 of 2048 rows take 1.19 ms; in one grid they took
// 2.17.

// decodePartShare: where sequences have so many times fewer rows on the average than the
// longest may have, most of them are taken to be short.
const decodePartShare = 4

// decodePartRequest is what the decoding kernel is asked for beside v: the sequences of packed Q that
// have no more rows than it takes at once. Not ok: all of them are v's. Lengths are in the
// device's memory; what is known is how many rows there are, and that no sequence has
// more than Sq. Keys of the short ones are not parted, so there have to be enough of them.
func decodePartRequest(caps *vk.Caps, cfg *Config, v *variant, r *request) (s request, ok bool) {
	rows, group := uint32(decodeFragment/2), uint32(r.shape.Group())
	if group > rows {
		rows = decodeFragment
	}
	s = *r
	_, coopmat := v.tile.(coopmatTile)
	s.shape.Sq = int(rows / group)
	return s, group <= rows && coopmat && !v.options.split && cfg.FixedSplit == 0 &&
		v.options.lengths&lengthCuQ != 0 && decodePartShare*int64(r.totalQ) <= int64(r.shape.B)*int64(r.shape.Sq) &&
		uint64(r.shape.B)*uint64(r.shape.KVHeads()) >= coresOf(caps)
}

// decodePartVariant is the kernel of a decodePartRequest; nil where there is none.
func decodePartVariant(dev *vk.Device, cfg *Config, tier Tier, v *variant, r *request) *variant {
	s, ok := decodePartRequest(dev.Caps(), cfg, v, r)
	if !ok {
		return nil
	}
	if s.operands, _ = decodeOperandsOn(dev, tier, cfg.DType); s.operands == noDecodeKernel {
		return nil
	}
	decodePart, _, reason := chooseVariant(dev.Caps(), *cfg, tier, s)
	if reason != "" || !decodePart.isDecode() || decodePart.tile.rows() < s.decodeRows() {
		return nil
	}
	decodePart.onCPU, decodePart.options.split, decodePart.options.decodePartRows, decodePart.options.isDecodePart = v.onCPU, false, s.decodeRows(), true
	return &decodePart
}
