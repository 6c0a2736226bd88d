// Float32 row sums of P before rounding: for LSE and sinks, and in forward_coopmat_f32.comp for O. The KV loop does not
// reduce them along the row.
//
// With ROW_ELEMENTS each lane adds up the elements that it holds of a row: on NVIDIA two floats per row fragment, where
// a fragment of sums takes eight registers. Tiles with two row fragments have no registers to spare
// (docs/log/vulkan.md, 59). With ROW_ELEMENTS = 0 the order of the elements is unknown and the sums stay a fragment.
const bool LANE_SUMS = ROW_ELEMENTS != 0;
const uint LANE_RUN = LANE_SUMS ? ROW_ELEMENTS : 1;
const uint LANE_ROWS = LANE_SUMS ? FRAG_M * FRAG_N / SUBGROUP_SIZE / LANE_RUN : 1; // runs of a lane, per fragment

FragC rowSumF32[M_FRAGS];           // with LANE_SUMS only in the epilogue
float laneSum[M_FRAGS * LANE_ROWS]; // with LANE_SUMS
#define LANE_SUM(r, run) laneSum[LANE_SUMS ? (r) * LANE_ROWS + (run) : 0]

#define CLEAR_ROW_SUM_F32(r)                                                                        \
    {                                                                                               \
        if (LANE_SUMS) { [[unroll]] for (uint k = 0; k < LANE_ROWS; ++k) LANE_SUM(r, k) = 0.0; }    \
        else rowSumF32[r] = FragC(0.0);                                                             \
    }

// Adds the fragment x. The elements of a run are added up first: one addition waits for the sum of the step before.
#define ADD_TO_ROW_SUM_F32(r, x)                                                                    \
    {                                                                                               \
        if (LANE_SUMS) {                                                                            \
            [[unroll]] for (uint k = 0; k < LANE_ROWS; ++k) {                                       \
                float run = x[k * LANE_RUN];                                                        \
                [[unroll]] for (uint e = 1; e < LANE_RUN; ++e) run += x[k * LANE_RUN + e];          \
                LANE_SUM(r, k) += run;                                                              \
            }                                                                                       \
        } else rowSumF32[r] += x;                                                                   \
    }

// Adds the product a b as element e.
#define ADD_PRODUCT_TO_ROW_SUM_F32(r, e, a, b)                                                      \
    {                                                                                               \
        if (LANE_SUMS) LANE_SUM(r, (e) / LANE_RUN) = fma(a, b, LANE_SUM(r, (e) / LANE_RUN));        \
        else rowSumF32[r][e] = fma(a, b, rowSumF32[r][e]);                                          \
    }

#define RESCALE_ROW_SUM_F32(r, factor)                                                              \
    {                                                                                               \
        if (LANE_SUMS) { [[unroll]] for (uint k = 0; k < LANE_ROWS; ++k) LANE_SUM(r, k) *= factor[k * LANE_RUN]; } \
        else rowSumF32[r] *= factor;                                                                \
    }

// The sums as a fragment, to be reduced along the row: a lane's sum is the first element of its run, the others are 0.
#define LANE_SUMS_TO_FRAGMENT(r)                                                                    \
    if (LANE_SUMS) {                                                                                \
        [[unroll]] for (uint e = 0; e < rowSumF32[r].length(); ++e)                                 \
            rowSumF32[r][e] = e % LANE_RUN == 0 ? LANE_SUM(r, e / LANE_RUN) : 0.0;                  \
    }
