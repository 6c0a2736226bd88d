// Rare work of the kernel of dK and dV in a dispatch of its own.
//
// The loop for masked tiles costs registers in the loop behind it. Calls without a mask need it for rare inputs alone: keys
// past the end of their sequence, and rows with a large LSE (backward_rare.glsl). They have two dispatches over the same
// workgroups (head dim 128, length 4096, on an H100: 10.38 ms for the pass in place of 10.93):
//
//   RARE_WORK 1  has the unmasked loop alone. Workgroups with rare inputs mark themselves and return.
//   RARE_WORK 2  computes the marked workgroups with both loops.
//
// Marks are in scratch memory behind dS, a vector per workgroup: p.addrUsedK says where.
const bool LEAVES_RARE_WORK = RARE_WORK == 1;

uint markIndex() { return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x; }
bool isMarked() { return loadScratchVec(p.addrUsedK, markIndex()).x != 0; }
void mark(bool rare) {
    if (gl_LocalInvocationIndex == 0) storeScratchVec(p.addrUsedK, markIndex(), uvec4(rare));
}
