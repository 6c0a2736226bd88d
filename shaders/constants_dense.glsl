// Specialization constants of the dense coopmat forward kernel.
layout(constant_id = 30) const uint CHECK_KV_END = 1;  // 0: unmasked tiles are loaded without comparing keys with Sk; the last unmasked tile is masked then

// -- ladder (bench --variant) and ablations; the defaults are the product --------------------------
layout(constant_id = 25) const uint CAUSAL_SKIP = 1;   // 0: KV tiles above the causal diagonal are masked instead of skipped
layout(constant_id = 26) const uint UNMASKED_LOOP = 1; // 0: every KV tile goes through the masked loop
layout(constant_id = 27) const uint EXP2 = 1;          // 0: natural exponentials
layout(constant_id = 28) const uint TILE_ADDRESSING = 1; // 0: every load computes its address from the start of the tensor
layout(constant_id = 29) const uint ABLATE = 0;        // leaves out a part of the work: wrong results, true cost of the rest
const uint ABLATE_SOFTMAX = 1;                         // no maximum, no exponential
const uint ABLATE_BARRIER = 2;                         // no barriers between KV tiles
const uint ABLATE_LOAD = 3;                            // only the first KV tile is loaded
