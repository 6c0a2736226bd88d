#version 460
// dQ += dS K for a chunk of keys. dS^T comes from dkdv.comp in lane order of its fragments; each subgroup owns
// M_FRAGS * FRAG_M rows and transposes its fragments of dS through its scratch, those of FRAG_K keys at a time. The K
// tile is shared.
#include "lab.glsl"
layout(binding = 0) readonly buffer Kd { uvec4 k[]; };
layout(binding = 1) readonly buffer dSd { uvec4 ds[]; };
layout(binding = 2) buffer Fd { float sum[]; };      // dQ in float32, lane order
layout(binding = 3) buffer dQd { uvec4 dq[]; };

const uint KEY_FRAGS = TILE / FRAG_K;                // of a K tile
const uint K_VECS = (TILE * ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;
const uint DS_VECS = FRAG_N / 8 | 1;                 // stride of a transposed fragment
const uint DS_SIZE = FRAG_M * DS_VECS;
const uint DS_BASE = TILE * STRIDE;
const uint SLOTS = STEP;                             // key fragments in scratch at a time
const uint LOOP_SIZE = DS_BASE + SUBGROUPS * M_FRAGS * SLOTS * DS_SIZE;
const uint PAIR_VECS = 2 * FRAG_N / 8;
const uint PAIR_STRIDE = PAIR_VECS | 1;
const uint SCRATCH_SIZE = SUBGROUPS * FRAG_M * PAIR_STRIDE;
shared uvec4 smem[LOOP_SIZE > SCRATCH_SIZE ? LOOP_SIZE : SCRATCH_SIZE];

#define PREFETCH_K(key0)                                                                            \
    {                                                                                               \
        const uint keysLeft = min(TILE, p.Sk - (key0)), base = kvRow + (key0);                      \
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            kVec[i] = at / ROW_VECS < keysLeft ? k[base * ROW_VECS + at] : uvec4(0);                \
        }                                                                                           \
    }
// Fragment f of dS of the K tile at key0.
#define PREFETCH_DS(f, key0)                                                                        \
    {                                                                                               \
        const uint rowFrag = rowBase / FRAG_M + (f) / KEY_FRAGS, keyFrag = ((key0) - p.firstKey) / FRAG_K + (f) % KEY_FRAGS; \
        const bool attends = rowFrag < p.rowFrags && keyFrag < p.keyFrags && (CAUSAL == 0           \
            || int(p.firstKey + keyFrag * FRAG_K) <= int(rowFrag * FRAG_M + FRAG_M - 1) + p.causalOffset); \
        dsVec[f] = attends ? ds[DS_INDEX(head, keyFrag, rowFrag)] : uvec4(0);                       \
    }
// The product of SLOTS key fragments. Each fragment's registers are loaded anew as soon as it is in scratch.
#define DS_PASS(pass)                                                                               \
    if ((pass) * SLOTS < KEY_FRAGS) {                                                               \
        subgroupSync();                                                                             \
        [[unroll]] for (uint f = 0; f < M_FRAGS * SLOTS; ++f) {                                     \
            const uint at = f / SLOTS * KEY_FRAGS + ((pass) * SLOTS < KEY_FRAGS ? (pass) * SLOTS : 0) + f % SLOTS; \
            FragA dSt;                                                                              \
            [[unroll]] for (uint w = 0; w < 4; ++w) PUT_WORD(dSt, 2 * w, dsVec[at][w])              \
            coopMatStore(dSt, smem, scratch + f * DS_SIZE, DS_VECS, ROW_MAJOR);                     \
            PREFETCH_DS(at, next)                                                                   \
        }                                                                                           \
        subgroupSync();                                                                             \
        [[unroll]] for (uint c = 0; c < SLOTS; ++c) {                                               \
            FragA dS[M_FRAGS];                                                                      \
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)                                           \
                coopMatLoad(dS[r], smem, scratch + (r * SLOTS + c) * DS_SIZE, DS_VECS, COLUMN_MAJOR); \
            [[unroll]] for (uint i = 0; i < CHUNKS; ++i) {                                          \
                FragB Kc;                                                                           \
                coopMatLoad(Kc, smem, ((pass) * SLOTS + c) * FRAG_K * STRIDE + i * FRAG_N / 8, STRIDE, ROW_MAJOR); \
                [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)                                       \
                    dQ[r * CHUNKS + i] = coopMatMulAdd(dS[r], Kc, dQ[r * CHUNKS + i]);              \
            }                                                                                       \
        }                                                                                           \
    }
#include "store_acc.glsl"

void main() {
    const uint tid = gl_LocalInvocationIndex;
    const uint head = gl_WorkGroupID[ORDER == 1 ? 0 : 1];
    const uint kvRow = (head / p.Hq * p.Hkv + head % p.Hq / (p.Hq / p.Hkv)) * p.Sk, headRow = head * p.Sq;
    const uint rowInTile = gl_SubgroupID * SUBGROUP_ROWS;
    const uint groupIndex = gl_WorkGroupID[ORDER == 1 ? 1 : 0], groups = gl_NumWorkGroups[ORDER == 1 ? 1 : 0];
    const uint block = (CAUSAL != 0 ? groups - 1 - groupIndex : groupIndex) * WORKGROUP_ROWS;
    const uint rowBase = block + rowInTile;
    const int lastVisible = int(min(block + WORKGROUP_ROWS, p.Sq)) + p.causalOffset;
    const uint chunkEnd = min(p.firstKey + p.keyFrags * FRAG_K, p.Sk);
    const uint end = CAUSAL != 0 ? uint(clamp(lastVisible, int(p.firstKey), int(chunkEnd))) : chunkEnd;

    if (p.flags == 1 && end <= p.firstKey) return; // nothing to add
    FragC dQ[M_FRAGS * CHUNKS];
    // Lane order of the float32 sum: fragment, element, lane.
    const uint sumAt = ((head * p.rowFrags + rowBase / FRAG_M) * CHUNKS) * FRAG_M * FRAG_N + gl_SubgroupInvocationID;
    [[unroll]] for (uint i = 0; i < M_FRAGS * CHUNKS; ++i) {
        dQ[i] = FragC(0.0);
        if ((p.flags & 1) != 0 && rowBase / FRAG_M + i / CHUNKS < p.rowFrags) {
            [[unroll]] for (uint e = 0; e < dQ[i].length(); ++e) dQ[i][e] = sum[sumAt + i * FRAG_M * FRAG_N + e * SUBGROUP_SIZE];
        }
    }
    uvec4 kVec[K_VECS], dsVec[M_FRAGS * KEY_FRAGS];
    if (p.firstKey < end) {
        PREFETCH_K(p.firstKey)
        [[unroll]] for (uint f = 0; f < M_FRAGS * KEY_FRAGS; ++f) PREFETCH_DS(f, p.firstKey)
    }
    const uint scratch = DS_BASE + gl_SubgroupID * M_FRAGS * SLOTS * DS_SIZE;
    [[dont_unroll]] for (uint key0 = p.firstKey; key0 < end; key0 += TILE) {
        barrier();
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {
            const uint at = i * LOCAL_SIZE + tid;
            if (TILE * ROW_VECS % LOCAL_SIZE == 0 || at < TILE * ROW_VECS)
                smem[at / ROW_VECS * STRIDE + at % ROW_VECS] = kVec[i];
        }
        barrier();
        const uint next = key0 + TILE < end ? key0 + TILE : key0; // the last tile loads itself again
        PREFETCH_K(next)
        DS_PASS(0) DS_PASS(1) DS_PASS(2) DS_PASS(3)
    }
    if ((p.flags & 2) != 0) {
        barrier();
        STORE_ACC(dQ, CHUNKS, dq, ROW_VECS, p.scale, rowBase, headRow, p.Sq)
    } else {
        [[unroll]] for (uint i = 0; i < M_FRAGS * CHUNKS; ++i)
            if (rowBase / FRAG_M + i / CHUNKS < p.rowFrags)
                [[unroll]] for (uint e = 0; e < dQ[i].length(); ++e) sum[sumAt + i * FRAG_M * FRAG_N + e * SUBGROUP_SIZE] = dQ[i][e];
    }
}
