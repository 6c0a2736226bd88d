// Parameters and addresses of the GEMM kernels of plain attention: C = alpha A B for every head of every batch, in one
// dispatch. z of the grid counts heads of C. Head h of C sums the products of `repeat` heads of A and B from
// h * repeat on, in their order. A group of query heads shares a head of A or B by groupA or groupB.
layout(push_constant, std430) uniform Params {
    uvec2 addrA, addrB, addrC;
    uvec2 batchA, batchB, batchC; // strides in elements, 64 bits
    uint headA, headB, headC;
    uint rowA, rowB, rowC;
    uint M, N, K;
    uint heads;                   // of C in a batch
    uint groupA, groupB;          // heads that share one head of A, of B
    uint repeat;
    float alpha;
} p;

#include "addressing.glsl"

uvec2 headAddress(uvec2 base, uvec2 batchStride, uint batch, uint headStride, uint head, bool is16) {
    const uvec2 batchAt = add64(mul64(batch, batchStride.x), uvec2(0, batch * batchStride.y));
    return sliceAt(base, add64(batchAt, mul64(head, headStride)), is16, 8).word;
}

uvec2 rowAddress(uvec2 head, uint row, uint rowStride, bool is16) {
    return sliceAt(head, mul64(row, rowStride), is16, 8).word;
}
