// Fragments that a subgroup of forward_coopmat_f32.comp keeps in registers throughout the KV loop, and P as operands.
FragA Q[TERMS * Q_FRAGS];
FragC S[S_FRAGS];         // scores of a KV step, then P
FragC nextS[S_FRAGS];     // scores of the next step
FragC O[O_FRAGS];
FragC rowMax[M_FRAGS];    // lagged
FragA P[TERMS * M_FRAGS]; // the terms of a column of fragments of P
#include "row_sum_f32.glsl"

void clearSums() {
    [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
        [[unroll]] for (uint i = 0; i < DV_FRAGS; ++i) O[r * DV_FRAGS + i] = FragC(0.0);
        CLEAR_ROW_SUM_F32(r)
    }
}

// softmax.glsl leaves P in float32: gemmPV takes its terms.
#undef toOperandA
#define toOperandA(result, x)
#define OWN_RESCALE
void rescaleRowSum(uint r, FragC factor) {} // row_sum_f32.glsl has all there is
void rescaleO(uint r, FragC factor) {
    [[unroll]] for (uint i = 0; i < DV_FRAGS; ++i) O[r * DV_FRAGS + i] *= factor;
}

// Eight columns of a fragment in scratch.
vec4 scratchQuad(uint row, uint quad) { return uintBitsToFloat(smem[subgroupScratch() + row * SCRATCH_STRIDE + quad]); }

#include "f32_operands.glsl"
