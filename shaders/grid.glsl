// The place of a workgroup in the grid of its kernel, forward and backward, and the order in which they start.
//
// Along x a grid has row tiles, or KV tiles if the kernel owns keys; along y heads; along z sequences. What else these numbers
// hold (splits, slices, packed sequences, a chunk of heads) is said by the functions that find the work of a workgroup:
// workTile (interface.glsl), findWorkTile (work_tile_general.glsl), findRowTile and findKeyTile (backward_interface.glsl).
// All of them take WORKGROUP_ID in place of gl_WorkGroupID, and so does the row of a tile map.
//
// Workgroups start in the order of x, then y, then z: with all tiles of a head, then those of the next one. If tiles take
// unequal times, the longest tiles of the last heads then start when most of the device's time is over, and end alone. That was a
// quarter of the time with four heads of length 16384 under a causal mask. Where HEADS_IN_TURN is true the order is a tile of all
// heads and sequences, then the next tile. Tile maps need it, as their longest tiles may be anywhere. A kernel with another reason defines
// HEADS_IN_TURN before this file; it may depend on specialization constants.
#ifndef GRID_GLSL
#define GRID_GLSL

#if !defined(HEADS_IN_TURN) && defined(CONSTANTS_TILE_MAP)
#define HEADS_IN_TURN (TILE_MAP != 0)
#endif

#ifdef WORKGROUP_ID // of a kernel whose grid has more along y
#elif defined(HEADS_IN_TURN)
const bool IN_TURN = HEADS_IN_TURN;

uvec3 placeInGrid() {
    if (!IN_TURN) return gl_WorkGroupID;
    const uint heads = gl_NumWorkGroups.y * gl_NumWorkGroups.z;
    const uint n = gl_WorkGroupID.x + gl_NumWorkGroups.x * (gl_WorkGroupID.y + gl_NumWorkGroups.y * gl_WorkGroupID.z), head = n % heads;
    return uvec3(n / heads, head % gl_NumWorkGroups.y, head / gl_NumWorkGroups.y);
}

uvec3 workgroupID = placeInGrid();
#define WORKGROUP_ID workgroupID
#else
#define WORKGROUP_ID gl_WorkGroupID
#endif
#endif
