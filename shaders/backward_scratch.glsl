// dS of a chunk of heads in scratch memory. The kernel of dK and dV stores it (STORE_DS), the kernel of dQ = dS K
// (backward_coopmat_add.comp) loads it.
//
// A subgroup stores its fragments of dS^T as they lie in registers: lane l has words 4 l to 4 l + 3 of a fragment, its
// eight elements rounded to storage. Fragment (key fragment, row fragment) of head h of the chunk, which counts
// (batch, KV head), is at (h * DS_KEY_FRAGS + key fragment) * DS_ROW_FRAGS + row fragment; rows are packed as in the kernels.
// Calls with lengths have no such scratch; members of Params that these need are
// used here: addrCuQ of dS in scratch, in vectors of 16 bytes, and
#define DS_KEY_FRAGS p.addrCuK.x  // of a head
#define DS_ROW_FRAGS p.addrCuK.y  // of a head
// and addrUsedQ.x, the first head of the chunk (backward_interface.glsl).

#if BDA
uvec4 loadScratchVec(uvec2 start, uint at) { return ReadQuads(add64(start, uvec2(at << 4, at >> 28))).at[0]; }
void storeScratchVec(uvec2 start, uint at, uvec4 x) { WriteQuads(add64(start, uvec2(at << 4, at >> 28))).at[0] = x; }
#else
layout(set = 0, binding = 14, std430) buffer ScratchQuads { uvec4 scratchQuads[]; };
uvec4 loadScratchVec(uvec2 start, uint at) { return scratchQuads[start.x + at]; }
void storeScratchVec(uvec2 start, uint at, uvec4 x) { scratchQuads[start.x + at] = x; }
#endif

// Index of this lane's vector of fragment (keyFrag, rowFrag) of the workgroup's head.
uint dsIndex(uint keyFrag, uint rowFrag) {
    return ((WORKGROUP_ID.y * DS_KEY_FRAGS + keyFrag) * DS_ROW_FRAGS + rowFrag) * SUBGROUP_SIZE + gl_SubgroupInvocationID;
}

// Elements e and e + 1 of an operand as a word, and back. bfloat16 are moved as float16, which takes one permutation.
#ifdef DTYPE_BF16
#define FRAGMENT_WORD(frag, e)                                                                      \
    packFloat2x16(f16vec2(uint16BitsToFloat16(bfloat16BitsToUintEXT(frag[e])), uint16BitsToFloat16(bfloat16BitsToUintEXT(frag[(e) + 1]))))
#define SET_FRAGMENT_WORD(frag, e, word)                                                            \
    {                                                                                               \
        frag[e] = uintBitsToBFloat16EXT(uint16_t(word));                                            \
        frag[(e) + 1] = uintBitsToBFloat16EXT(uint16_t((word) >> 16));                              \
    }
#else
#define FRAGMENT_WORD(frag, e) packFloat2x16(f16vec2(frag[e], frag[(e) + 1]))
#define SET_FRAGMENT_WORD(frag, e, word)                                                            \
    {                                                                                               \
        const f16vec2 two = unpackFloat2x16(word);                                                  \
        frag[e] = two.x;                                                                            \
        frag[(e) + 1] = two.y;                                                                      \
    }
#endif

#ifdef DTYPE_F32
// -- dS of float32 --------------------------------------------------------------------------------
// dS of float32 in scratch memory, as above, but a fragment is two vectors a lane. Kernels of head dims above 128 store P too: there
// SCRATCH_VECS is 4, and the two vectors of P follow the two of dS. If not even one head fits, a
// chunk holds some keys of a head, and the kernel of dQ adds chunk after chunk to what dQ holds. Calls have no lengths; members
// of Params that these need are used here:
#define CHUNK_FIRST_KEY p.addrUsedK.x // of the chunk
#define CHUNK_KEYS p.addrUsedK.y

#ifndef SCRATCH_VECS
#define SCRATCH_VECS 2
#endif
uint dsVec(uint keyFrag, uint rowFrag, uint half_) {
    return (((WORKGROUP_ID.y * DS_KEY_FRAGS + keyFrag) * DS_ROW_FRAGS + rowFrag) * SCRATCH_VECS + half_) * SUBGROUP_SIZE + gl_SubgroupInvocationID;
}
#endif
