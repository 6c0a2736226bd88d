// P and dX of a tile, in S and dP. Without LISTED_KEYS timesListed counts how often the list of sparse
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

void computeP(bool masked) {
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
        [[unroll]] for (uint j = 0; j < STREAM; j++) dP[i][j] = slotDX(S[i][j], dP[i][j], loadStats(rowOf(i, j)));
}

// dS without the scale: a slope of 0 makes it 0.
float slotDS(uint i, uint j) { return SOFTCAP == 0 || dP[i][j] == 0.0 ? dP[i][j] : dP[i][j] * slope[i][j]; }
