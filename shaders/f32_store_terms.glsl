// The terms of eight elements on their way to shared memory: those of a row follow each other, rowVecs vectors each.
void storeTerms(uint at, uint rowVecs, uvec4 hi, uvec4 mid, uvec4 lo) {
    smem[at] = hi;
    smem[at + rowVecs] = mid;
    smem[at + 2 * rowVecs] = lo;
}
