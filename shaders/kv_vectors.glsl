// Which vectors of 16 bytes of a KV tile an invocation loads, stores to shared memory and keeps in registers between
// the two. Vector `at` of a tile is key at / ROW_VECS, columns at % ROW_VECS * 8 and on. Vector i of all invocations
// is contiguous; with KEYS_PER_SUBGROUP a subgroup loads all vectors of that many consecutive keys, which may then
// share a page.

const uint K_VECS = (KV_TILE * K_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;
const uint V_VECS = (KV_TILE * V_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;
#define VEC_INDEX(vecs, i)                                                                          \
    (KEYS_PER_SUBGROUP != 0 ? (tid / SUBGROUP_SIZE * (vecs) + (i)) * SUBGROUP_SIZE + tid % SUBGROUP_SIZE : (i) * LOCAL_SIZE + tid)
#define SUBGROUP_FIRST_KEY (KEYS_PER_SUBGROUP != 0 ? tid / SUBGROUP_SIZE * KEYS_PER_SUBGROUP : 0)
#define SUBGROUP_VEC(i) ((i) * SUBGROUP_SIZE + tid % SUBGROUP_SIZE) // VEC_INDEX relative to that key

// Not 0: the last vector of some invocations is past the end of the tile.
const uint K_RAGGED = KV_TILE * K_ROW_VECS % LOCAL_SIZE;
const uint V_RAGGED = KV_TILE * V_ROW_VECS % LOCAL_SIZE;
