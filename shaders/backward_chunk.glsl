// The grid of the backward kernels that take a chunk of heads (backward_scratch.glsl): x counts tiles, and y counts the
// (sequence, KV head) of the chunk, the first of which is addrUsedQ.x. CHUNK_OF_HEADS may depend on a specialization constant.
// main calls openChunk() first.
//
// Workgroups start in the order of x, then y. Under a causal mask the first tiles of a head take longest. With one head after
// the other, the longest tiles of the last head would start when most of the device's time is over, and end alone: a quarter
// of the time at four heads a chunk and length 16384. So the heads of a chunk take turns.
uint gridTile, headInChunk;
#define GRID_TILE gridTile
#define HEAD_IN_CHUNK headInChunk

void openChunk() {
    gridTile = gl_WorkGroupID.x;
    headInChunk = gl_WorkGroupID.y;
    if (CHUNK_OF_HEADS && CAUSAL != 0) {
        const uint n = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
        gridTile = n / gl_NumWorkGroups.y;
        headInChunk = n % gl_NumWorkGroups.y;
    }
}
