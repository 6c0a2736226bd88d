// dS of float32 in scratch memory, see backward_scratch.glsl: a fragment is two vectors a lane. If not even one head fits, a
// chunk holds some keys of a head, and the kernel of dQ adds chunk after chunk to what dQ holds. Calls have no lengths; members
// of Params that these need are used here:
#define CHUNK_FIRST_KEY p.addrUsedK.x // of the chunk
#define CHUNK_KEYS p.addrUsedK.y

uint dsVec(uint keyFrag, uint rowFrag, uint half_) {
    return (((HEAD_IN_CHUNK * DS_KEY_FRAGS + keyFrag) * DS_ROW_FRAGS + rowFrag) * 2 + half_) * SUBGROUP_SIZE + gl_SubgroupInvocationID;
}
