package attention

import "vkattn/vk"

// Decoding has few query rows and many keys: the heads of a group are packed into
// the rows of one workgroup, and several workgroups share the keys of a row,
// leaving states in float32 that a second kernel merges.

// decodeQueries is the Sq up to which a call without features is decoding too.
const decodeQueries = 16

// decodeRows is in fragments: calls with no more packed rows use tiles of one subgroup.
const decodeRows = 2

// decodes reports whether a call that asks for no feature is better off with
// packed rows or split keys.
func decodes(caps *vk.Caps, cfg *Config, r *request) bool {
	if r.plain {
		return false
	}
	if cfg.FixedSplit > 0 {
		return true
	}
	if r.shape.Sq > decodeQueries || r.lab != (Lab{}) || (featureSet{}).fits(&caps.Limits, r.access) != "" {
		return false
	}
	return r.shape.Group() > 1 || r.shape.Sk >= leastPart
}

const (
	// residents are workgroups of a decoding tile that a core holds at once.
	residents = 5
	// leastPart is the fewest keys that are worth a part of their own.
	leastPart = 256
)

// splitsOf is the number of parts: what the caller fixed, or as many as make the
// workgroups about what the device holds at once, each with leastPart keys or more.
// The Shape's Sk stands for every sequence's length.
func splitsOf(caps *vk.Caps, cfg *Config, v *variant, r *request) int {
	if cfg.FixedSplit > 0 {
		return cfg.FixedSplit
	}
	keys := r.shape.Sk
	if r.features.kept {
		keys = r.kept
	}
	g := v.grid(r, 1)
	groups := uint64(g[0]) * uint64(g[1]) * uint64(g[2])
	cores := uint64(caps.ShaderCores)
	if cores == 0 {
		cores = 16
	}
	resident := cores * residents * 32 / uint64(max(32, min(v.tile.local, 128)))
	n := min(resident/max(groups, 1), uint64(max(1, keys/leastPart)), MaxStates)
	return int(max(n, 1))
}

// grid is the workgroups of a dispatch with features.
func (v *variant) grid(r *request, splits int) [3]uint32 {
	s := &r.shape
	group := uint32(1)
	if v.features.packRows {
		group = uint32(s.Group())
	}
	x := ceilDiv64(uint64(s.Sq)*uint64(group), uint64(v.tile.rows()))
	z := uint64(s.B) * uint64(v.slices())
	if v.features.lengths&lengthCuQ != 0 {
		// Sequences one after another; each may leave a part of a block unused.
		x, z = uint64(r.totalQ)*uint64(group)/uint64(v.tile.rows())+uint64(s.B), uint64(v.slices())
	}
	y := uint64(s.Hq) / uint64(group) * uint64(splits)
	return [3]uint32{clamp32(x), clamp32(y), clamp32(z)}
}

func ceilDiv64(a, b uint64) uint64 { return (a + b - 1) / b }

// clamp32 keeps what is too large for a dispatch too large.
func clamp32(n uint64) uint32 { return uint32(min(n, 1<<32-1)) }

// decodeTile is the tile of calls with few packed rows: one subgroup, which walks
// over keys alone, so that nothing waits for another one; a core holds several.
func decodeTile(v variant) tileChoice {
	dim := max(v.headDim, v.headDimV)
	switch {
	case dim <= 64:
		return tileChoice{64, 1, decodeRows, 32, 16, 0, 64}
	case dim <= 128:
		return tileChoice{128, 1, decodeRows, 16, 16, 0, 128}
	}
	return tileChoice{576, 1, decodeRows, 16, 16, 0, 128}
}
