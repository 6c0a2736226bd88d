// Loads from the arrays that options bring: lengths, block table, slopes, sinks, bias, masks, sparse tokens and
// scales of K and V. Numbers that come from memory are clamped before use to what the host knows of the
// tensors, so wrong ones cannot reach outside of them.

const uint CU_Q = 1, USED_Q = 2, CU_K = 4, USED_K = 8; // bits of VARLEN

// load<name>(i): 32-bit element i of the array with address addr<name> or this binding.
#if BDA
#define ARRAY(name, number) uint load##name(uint i) { return ReadWords(p.addr##name).at[i]; }
#else
#define ARRAY(name, number)                                                                         \
    layout(set = 0, binding = number, std430) READ_ONLY buffer Array##name { uint array##name[]; }; \
    uint load##name(uint i) { return array##name[p.addr##name.x + i]; }
#endif
ARRAY(CuQ, 5)
ARRAY(CuK, 6)
ARRAY(UsedQ, 7)
ARRAY(UsedK, 8)
#ifdef BACKWARD // gradients have the other bindings
ARRAY(ALiBi, 10)
ARRAY(Mask, 13)
#define TOKENS_BINDING 14
#else
ARRAY(BlockTable, 9)
ARRAY(ALiBi, 10)
ARRAY(Sinks, 11)
ARRAY(Mask, 13)   // block-sparse mask, or offsets into the lists of sparse tokens
ARRAY(KScale, 14)
ARRAY(VScale, 15)
uint scaleK(uint i) { return loadKScale(i); }
uint scaleV(uint i) { return loadVScale(i); }
#define TOKENS_BINDING 16
#endif

// Bias and mask have 16-bit and 8-bit elements: they are loaded by word, and biasStart and maskStart give the first
// element's number in the first word (BDA=1) or in the binding.
#if BDA
uint loadBiasWord(uint i) { return ReadWords(uvec2(p.addrBias.x & ~3u, p.addrBias.y)).at[i]; }
uint loadMaskWord(uint i) { return ReadWords(uvec2(p.addrMask.x & ~3u, p.addrMask.y)).at[i]; }
uint biasStart() { return (p.addrBias.x & 3u) >> 1; }
uint maskStart() { return p.addrMask.x & 3u; }
#else
layout(set = 0, binding = 12, std430) READ_ONLY buffer ArrayBias { uint arrayBias[]; };
uint loadBiasWord(uint i) { return arrayBias[i]; }
uint loadMaskWord(uint i) { return arrayMask[i]; }
uint biasStart() { return p.addrBias.x; }
uint maskStart() { return p.addrMask.x; }
#endif

#if BDA
uint loadSparseToken(uint i) { return ReadWords(uvec2(p.strideMaskBatch, p.strideMaskHead)).at[i]; }
#else
layout(set = 0, binding = TOKENS_BINDING, std430) READ_ONLY buffer ArrayTokens { uint arrayTokens[]; };
uint loadSparseToken(uint i) { return arrayTokens[p.strideMaskBatch + i]; }
#endif
