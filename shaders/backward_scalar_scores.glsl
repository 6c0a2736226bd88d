// P and dX of a tile, in S and dP; P is that in front of dropout. Without LISTED_KEYS timesListed counts how often the list of sparse
// tokens names each key of the tile: a key that is listed twice counts twice.

const bool COUNTS_TOKENS = SPARSE_TOKENS != 0 && !LISTED_KEYS;
shared uint timesListed[COUNTS_TOKENS ? KV_TILE : 1];

void countTokens() {
    barrier(); // the last counts are used
    [[dont_unroll]] for (uint i = gl_LocalInvocationIndex; i < KV_TILE; i += LOCAL_SIZE) timesListed[i] = 0;
    barrier();
    [[dont_unroll]] for (uint i = gl_LocalInvocationIndex; i < work.kvLength; i += LOCAL_SIZE) {
        const uint token = loadSparseToken(work.firstToken + i);
        if (token >= firstKey && token - firstKey < KV_TILE) atomicAdd(timesListed[token - firstKey], 1);
    }
    barrier();
}

// Bit j of element i is 1 if slot (i, j) keeps its weight. Only with DROPOUT.
uint keptSlots[OWN];

// Sets them by way of smemW, which must not be in use: an invocation has slots of many groups of four keys.
void findKept() {
    [[dont_unroll]] for (uint n = gl_LocalInvocationIndex; n < Q_TILE * KV_TILE / 4; n += LOCAL_SIZE) {
        const uint row = n / (KV_TILE / 4), quad = n % (KV_TILE / 4);
        uint keep;
        KEPT_OF_SLOTS(keep, work.row0 + row, firstKey + 4 * quad, LISTED_KEYS && SPARSE_TOKENS != 0, keyAt)
        [[unroll]] for (uint i = 0; i < 4; i++) {
            const uint key = 4 * quad + i, own = OWNS_ROWS ? row : key, stream = OWNS_ROWS ? key : row;
            smemW[own * W_ROW + stream / 4][stream % 4] = float(keep >> i & 1u);
        }
    }
    barrier();
    [[unroll]] for (uint i = 0; i < OWN; i++) {
        keptSlots[i] = 0;
        [[unroll]] for (uint j = 0; j < STREAM; j++)
            if (smemW[ownOf(i) * W_ROW + streamOf(j) / 4][streamOf(j) % 4] != 0.0) keptSlots[i] |= 1u << j;
    }
}

// P or dP of a slot behind dropout.
float dropped(uint i, uint j, float value) {
    if (DROPOUT == 0) return value;
    return (keptSlots[i] >> j & 1u) != 0 ? value * keptScale : 0.0;
}

void computeP(bool masked) {
    if (DROPOUT != 0) findKept();
    [[unroll]] for (uint i = 0; i < OWN; i++)
        [[unroll]] for (uint j = 0; j < STREAM; j++) {
            const uint row = rowOf(i, j), n = OWNS_ROWS ? streamOf(j) : ownOf(i), key = keyOf(n);
            float prob = 0.0, slope_ = 1.0;
            if (!masked || key != NO_KEY && attends(row, key)) prob = slotP(S[i][j], row, key, loadStats(row), slope_);
            if (COUNTS_TOKENS) prob = timesListed[n] == 0 ? 0.0 : prob * float(timesListed[n]);
            S[i][j] = prob;
            slope[i][j] = slope_;
        }
}

void computeDX() {
    [[unroll]] for (uint i = 0; i < OWN; i++)
        [[unroll]] for (uint j = 0; j < STREAM; j++) dP[i][j] = slotDX(S[i][j], dropped(i, j, dP[i][j]), loadStats(rowOf(i, j)));
}

// dS without the scale: a slope of 0 makes it 0.
float slotDS(uint i, uint j) { return SOFTCAP == 0 || dP[i][j] == 0.0 ? dP[i][j] : dP[i][j] * slope[i][j]; }
