// Tiles, shared memory and registers of the scalar kernels.

const uint THREADS_Y = LOCAL_SIZE / THREADS_X;
const uint ROWS = Q_TILE / THREADS_Y;                     // per invocation
const uint KEYS = KV_TILE / THREADS_X;                    // scores per row of an invocation
// Groups of 4 columns of O per row of an invocation.
const uint DV_QUADS = (DV_SLICE + 4 * THREADS_X - 1) / (4 * THREADS_X);
const uint D_CHUNKS = (HEAD_DIM + CHUNK_D - 1) / CHUNK_D;

// Shared memory, in vec4. Rows of Q and K have an odd length: neighbouring rows start in different banks.
const uint D_ROW = CHUNK_D / 4 + 1;
const uint V_ROW = DV_QUADS * THREADS_X;
const uint P_ROW = (KV_TILE + THREADS_X) / 4;
const uint KV_BASE = Q_TILE * D_ROW;
const uint K_SIZE = KV_TILE * D_ROW;
const uint V_SIZE = CHUNK_V * V_ROW;
shared vec4 smem[KV_BASE + (K_SIZE > V_SIZE ? K_SIZE : V_SIZE)]; // a chunk of Q, then one of K or V
shared vec4 smemP[Q_TILE * P_ROW];                        // P, then THREADS_X partial results per row

uint x, y;              // this invocation's place in the grid
float S[ROWS][KEYS];
vec4 O[ROWS][DV_QUADS];
float rowMax[ROWS];     // in units of scores; the same in all invocations of a row
float rowSum[ROWS];     // over this invocation's keys

// Loops over an invocation's own rows and columns are unrolled: its arrays are registers then. Other loops must not be:
// Mesa unrolls them, and lavapipe on LLVM 15 took 74 s instead of 4 s to compile the kernel.
uint rowOf(uint i) { return y + i * THREADS_Y; }

// Loads `columns` columns of tileRows rows into smem, eight at a time. Zero past `rows` and past the last column.
#define STAGE(first, rowLength, tileRows, columns, col0, rows, LOAD)                                \
    {                                                                                               \
        const uint eights = (columns) / 8;                                                          \
        [[dont_unroll]] for (uint at = gl_LocalInvocationIndex; at < (tileRows) * eights; at += LOCAL_SIZE) { \
            const uint row = at / eights, col = at % eights * 8;                                    \
            vec4 low = vec4(0.0), high = vec4(0.0);                                                 \
            if (row < (rows)) LOAD(slice, row, (col0) + col, low, high);                            \
            smem[(first) + row * (rowLength) + col / 4] = low;                                      \
            smem[(first) + row * (rowLength) + col / 4 + 1] = high;                                 \
        }                                                                                           \
    }
