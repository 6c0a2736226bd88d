// dS between the kernel of dK and dV (STORE_DS) and that of dQ += dS K (backward_coopmat_add.comp), for a chunk of keys,
// and dQ between the chunks.
//
// A subgroup stores its fragments of dS^T as they lie in registers: lane l has words 4 l to 4 l + 3 of a fragment, its
// eight elements rounded to storage. Fragment (key fragment of the chunk, row fragment) of a (batch, KV head) is at
// (head * DS_KEY_FRAGS + key fragment) * DS_ROW_FRAGS + row fragment; rows are packed as in the kernels. dQ is float32, in
// the same order of lanes. Calls with lengths have no such scratch; members of Params that these need are used here:
#define DS_FIRST_KEY p.addrCuK.x   // of the chunk
#define DS_KEY_FRAGS p.addrCuK.y   // of the chunk
#define DS_ROW_FRAGS p.addrUsedK.x // of a head
#define DS_FLAGS p.addrUsedK.y     // sum of 1 dQ is added to, 2 dQ is stored to its tensor
// and addrCuQ, addrUsedQ of dS and dQ in scratch, in vectors of 16 bytes.

#if BDA
uvec4 loadScratchVec(uvec2 start, uint at) { return ReadQuads(add64(start, uvec2(at << 4, at >> 28))).at[0]; }
void storeScratchVec(uvec2 start, uint at, uvec4 x) { WriteQuads(add64(start, uvec2(at << 4, at >> 28))).at[0] = x; }
#else
layout(set = 0, binding = 14, std430) buffer ScratchQuads { uvec4 scratchQuads[]; };
uvec4 loadScratchVec(uvec2 start, uint at) { return scratchQuads[start.x + at]; }
void storeScratchVec(uvec2 start, uint at, uvec4 x) { scratchQuads[start.x + at] = x; }
#endif

// Index of this lane's vector of a fragment of dS.
uint dsIndex(uint keyFrag, uint rowFrag) {
    const uint head = work.batch * (p.Hq / p.groupSize) + work.kvHead;
    return ((head * DS_KEY_FRAGS + keyFrag) * DS_ROW_FRAGS + rowFrag) * SUBGROUP_SIZE + gl_SubgroupInvocationID;
}

// Elements e and e + 1 of a fragment as a word, and back.
#ifdef DTYPE_BF16
#define FRAGMENT_WORD(frag, e) (floatBitsToUint(float(frag[e])) >> 16 | floatBitsToUint(float(frag[(e) + 1])) & 0xffff0000u)
#define SET_FRAGMENT_WORD(frag, e, word)                                                            \
    {                                                                                               \
        frag[e] = bfloat16_t(uintBitsToFloat((word) << 16));                                        \
        frag[(e) + 1] = bfloat16_t(uintBitsToFloat((word) & 0xffff0000u));                          \
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
