package plan

import (
	"fmt"
	"math"

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

// fixedTier returns the tier of all calls of a Config with FixedSplit, the first of some that computes each of them, and
// why those before it do not. It depends on the Config and the device alone, so it has the room for all options of a
// call.
func fixedTier(caps *vk.Caps, cfg *problem.Config, tiers []problem.Tier) (tier problem.Tier, rejected []problem.Rejection) {
	last := len(tiers) - 1
	for _, tier := range tiers[:last] {
		reason := fixedTierLacks(caps, cfg, tier)
		if reason == "" {
			return tier, rejected
		}
		rejected = append(rejected, problem.Rejection{Tier: tier, Reason: reason})
	}
	return tiers[last], rejected
}

// fixedTierLacks says why a tier does not compute some call of a Config with FixedSplit.
func fixedTierLacks(caps *vk.Caps, cfg *problem.Config, tier problem.Tier) (reason string) {
	if s := cfg.ScaleValue(); tier != problem.TierScalar && math.Abs(float64(s)) > maxFastScale && cfg.Softcap == 0 {
		return fmt.Sprintf("a scale of %g takes scores over %d, see MaxFastScore", s, problem.MaxFastScore)
	}
	r := Request{Shape: problem.Shape{Hq: 1, Hkv: 1}, Align: [4]uint32{1, 1, 1, 1}, LSE: true, AnyArgs: true,
		Options: OptionsOf(&problem.Args{}, cfg)}
	o := &r.Options
	o.bias, o.mask, o.alibi, o.sinks, o.sparseTokens = 1+uint32(problem.F32), true, 1, true, sparseLists
	o.Lengths, o.pageSize = LengthCuQ|LengthUsedQ|lengthCuK|lengthUsedK, 1
	for _, r.Access = range []problem.Access{problem.AccessDescriptors, problem.AccessAddresses} {
		addresses := r.Access == problem.AccessAddresses
		if addresses && !caps.BufferDeviceAddress || generalFits(&caps.Limits, cfg, r.Access) != "" {
			continue // no tier computes calls with these
		}
		for _, decodePart := range []bool{false, true} {
			if _, _, reason = chooseVariant(caps, *cfg, tier, r.fixedClass(decodePart)); reason != "" {
				return reason
			}
		}
	}
	return ""
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
	if r.queries() <= most {
		return r.fixedClass(true), false
	}
	return r.fixedClass(false), most > 0 && !r.Options.listPerRow() && r.Options.Lengths&(LengthCuQ|LengthUsedQ) != 0
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
