// The query rows and the columns of O that a workgroup computes, and the keys that its rows see, for calls
// without options. Grid: x = Q tile, y = query head, z = batch * DV_SLICES + slice of O's columns.

// Options that these calls do not have: score_mod.glsl, kv_quant.glsl.
const bool SCORE_MOD = false, NATURAL_SCORES = false, KEY_SCALES = false;

struct WorkTile {
    uint batch, head, kvHead;
    uint row0;           // first query row
    uint col0;           // first column of V and O
};

WorkTile workTile(uint tileRows) {
    WorkTile w;
    w.batch = gl_WorkGroupID.z / DV_SLICES;
    w.head = gl_WorkGroupID.y;
    w.kvHead = w.head / p.groupSize;
    uint qTile = gl_WorkGroupID.x;
    // Longest tiles first: under a causal mask later rows see more keys, and a long tile started last would run alone.
    if (CAUSAL != 0) qTile = (p.Sq - 1) / tileRows - qTile;
    w.row0 = qTile * tileRows;
    w.col0 = (gl_WorkGroupID.z % DV_SLICES) * DV_SLICE;
    return w;
}

// A row sees keys [0, visibleKeys(row)).
uint visibleKeys(uint row) {
    if (CAUSAL == 0) return p.Sk;
    return uint(clamp(int(row) + p.causalOffset + 1, 0, int(p.Sk)));
}
