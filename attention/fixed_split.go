package attention

import "vkattn/vk"

// With Config.FixedSplit the bits of a sequence depend on its own rows and keys and on the
// split alone. Its kernel and tile may then not follow the longest sequence of the batch, their
// number or a bound: tiles differ in where a row's keys are cut and in the order of its sums.
// So there are two classes of sequences, by their own rows, and one kernel and tile for each:
// short ones have at most decodePartQueries rows and are computed as decoding is, the others as a
// long prompt is. Where lengths are in the device's memory both kernels go over the batch,
// and each leaves the sequences of the other.

// longQueries stand for those of a long sequence where a tile is chosen.
const longQueries = 4096

// decodePartQueries is the most rows of a short sequence: those of two blocks of the decoding kernel,
// or the heads of one query.
func decodePartQueries(s *Shape) int {
	switch group := s.Group(); {
	case group <= decodeFragment:
		return decodeFragment / group
	case group <= maxDecodeRows:
		return 1
	}
	return 0
}

// fixedClass is the request that picks kernel and tile of a class.
func (r *request) fixedClass(decodePart bool) request {
	c := *r
	c.shape.B, c.shape.Sq, c.shape.Sk = 1, longQueries, maxGeneralLength
	if decodePart {
		c.shape.Sq = max(decodeFragment/2/r.shape.Group(), 1) // whose rows are those of a block
	}
	return c
}

// fixedClasses is the class of r's sequences, or that of the long ones where there may be short
// ones too.
func (r *request) fixedClasses() (class request, decodePart bool) {
	most := decodePartQueries(&r.shape)
	if r.shape.Sq <= most {
		return r.fixedClass(true), false
	}
	return r.fixedClass(false), most > 0 && r.options.lengths&(lengthCuQ|lengthUsedQ) != 0
}

// fixedDecodePart is the kernel of the short sequences of r, beyond v, that of the long ones.
func fixedDecodePart(dev *vk.Device, cfg *Config, tier Tier, v *variant, r *request) (*variant, string) {
	class := r.fixedClass(true)
	class.chooseOperands(dev, cfg, tier)
	decodePart, _, reason := chooseVariant(dev.Caps(), *cfg, tier, class)
	if reason != "" {
		return nil, reason
	}
	rows := uint32(decodePartQueries(&r.shape)) * uint32(r.shape.Group())
	decodePart.onCPU, decodePart.options.decodePartRows, decodePart.options.isDecodePart = v.onCPU, rows, true
	return &decodePart, ""
}
