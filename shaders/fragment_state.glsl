// Fragments that a subgroup keeps in registers throughout the KV loop. They are global variables: a parameter that is a
// fragment would be copied into the function and out of it.
FragA Q[Q_FRAGS];
FragC S[S_FRAGS];         // scores of a KV step, then P
FragC nextS[S_FRAGS];     // scores of the next step
FragA P[S_FRAGS];         // P as an operand
FragC O[O_FRAGS];
FragC rowMax[M_FRAGS];    // lagged
FragSum rowSum[M_FRAGS];  // of P as rounded for the product with V; equal along a row
#if GENERAL
FragC rowSumScaled[KEY_SCALES ? M_FRAGS : 1]; // with KEY_SCALES instead of rowSum; not reduced either
#endif
#include "row_sum_f32.glsl"

void clearSums() {
    [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
        [[unroll]] for (uint i = 0; i < DV_FRAGS; ++i) O[r * DV_FRAGS + i] = FragC(0.0);
        rowSum[r] = FragSum(0.0);
        CLEAR_ROW_SUM_F32(r)
#if GENERAL
        if (KEY_SCALES) rowSumScaled[KEY_SCALES ? r : 0] = FragC(0.0);
#endif
    }
}
