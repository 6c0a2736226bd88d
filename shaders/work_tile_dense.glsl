// The query rows and the columns of O that a workgroup computes, and the keys that its rows see, for calls
// without options. Grid: x = Q tile, y = query head, z = batch * DV_SLICES + slice of O's columns.

// Options that these calls do not have: attended_keys.glsl, kv_quant.glsl.
const bool SCORE_MOD = false, NATURAL_SCORES = false, KEY_SCALES = false;

struct WorkTile {
    uint batch, head, kvHead;
    uint row0;           // first query row
    uint col0;           // first column of V and O
};

// The ID of this workgroup. Workgroups start in the order of x, then y, then z. A kernel that defines LONGEST_FIRST, before
// this file, chooses another order where it is true: under a causal mask the longest row tiles of all heads first. If each
// head began with its own, the long tiles of the last heads would run almost alone.
#ifndef LONGEST_FIRST
#define LONGEST_FIRST false
#define WORKGROUP_ID gl_WorkGroupID
#else
uvec3 workgroupID() {
    if (CAUSAL == 0 || !(LONGEST_FIRST)) return gl_WorkGroupID;
    const uint heads = gl_NumWorkGroups.y * gl_NumWorkGroups.z;
    const uint at = gl_WorkGroupID.x + gl_NumWorkGroups.x * (gl_WorkGroupID.y + gl_NumWorkGroups.y * gl_WorkGroupID.z);
    const uint head = at % heads;
    return uvec3(at / heads, head % gl_NumWorkGroups.y, head / gl_NumWorkGroups.y);
}
#define WORKGROUP_ID workgroupID()
#endif

WorkTile workTile(uint tileRows) {
    WorkTile w;
    w.batch = WORKGROUP_ID.z / DV_SLICES;
    w.head = WORKGROUP_ID.y;
    w.kvHead = w.head / p.groupSize;
    uint qTile = WORKGROUP_ID.x;
    // Longest tiles first: under a causal mask later rows see more keys, and a long tile started last would run alone.
    if (CAUSAL != 0) qTile = (p.Sq - 1) / tileRows - qTile;
    w.row0 = qTile * tileRows;
    w.col0 = (WORKGROUP_ID.z % DV_SLICES) * DV_SLICE;
    return w;
}

// A row sees keys [0, visibleKeys(row)).
uint visibleKeys(uint row) {
    if (CAUSAL == 0) return p.Sk;
    return uint(clamp(int(row) + p.causalOffset + 1, 0, int(p.Sk)));
}
