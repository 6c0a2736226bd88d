package plan

import (
	"vkattn/internal/problem"
	"vkattn/vk"
)

// With Config.FixedSplit the bits of a sequence depend only on its own rows and keys and
// on the number of splits. Tiles differ in where they cut a row's keys and in the order of
// its sums, so kernel and tile must not depend on the longest sequence of the batch, on
// the number of sequences or on a bound. There are two classes of sequences, by their own
// number of queries, and one kernel and tile for each. Short sequences have at most
// decodePartQueries queries and run as decode does; the others run as a long prompt does.
// If lengths are in the device's memory, both kernels cover the whole batch, and each
// skips the sequences of the other.

// longQueries is the Sq that stands for a long sequence when a tile is chosen.
const longQueries = 4096

// decodePartQueries returns the most queries of a short sequence: those that fill two
// row blocks of the decode kernel, or one query if its heads fill more than that. 0: no
// sequence is short.
func decodePartQueries(s *problem.Shape) int {
	switch group := s.Group(); {
	case group <= decodeFragment:
		return decodeFragment / group
	case group <= maxDecodeRows:
		return 1
	}
	return 0
}

// anyLength returns the request for as many keys as a call may have.
func (r *Request) anyLength() Request {
	c := *r
	c.Shape.Sk, c.seen = maxGeneralLength, nil
	return c
}

// fixedClass returns the request that picks the kernel and tile of a class.
func (r *Request) fixedClass(decodePart bool) Request {
	c := r.anyLength()
	c.Shape.B, c.Shape.Sq = 1, longQueries
	if decodePart {
		c.Shape.Sq = max(decodeFragment/2/r.Shape.Group(), 1) // their rows fill a block
	}
	return c
}

// fixedClasses returns the class of r's sequences. If there may be short and long ones, it
// returns the class of the long ones, and DecodePart is true.
func (r *Request) fixedClasses() (class Request, decodePart bool) {
	most := decodePartQueries(&r.Shape)
	if r.Shape.Sq <= most {
		return r.fixedClass(true), false
	}
	return r.fixedClass(false), most > 0 && r.Options.Lengths&(LengthCuQ|LengthUsedQ) != 0
}

// fixedDecodePart returns the kernel of r's decode part; v computes the prefill part.
func fixedDecodePart(dev *vk.Device, cfg *problem.Config, tier problem.Tier, v *Variant, r *Request) (*Variant, string) {
	class := r.fixedClass(true)
	class.chooseOperands(dev, cfg, tier)
	decodePart, _, reason := chooseVariant(dev.Caps(), *cfg, tier, class)
	if reason != "" {
		return nil, reason
	}
	decodePart.askDevice(dev)
	rows := uint32(decodePartQueries(&r.Shape)) * uint32(r.Shape.Group())
	decodePart.onCPU, decodePart.Options.decodePartRows, decodePart.Options.isDecodePart = v.onCPU, rows, true
	return &decodePart, ""
}
