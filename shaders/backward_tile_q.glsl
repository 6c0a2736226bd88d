// Part of main of backward_coopmat_q.comp: KV tile n. MASKED 1 masks it: some row may not attend to some key.
{
    const uint firstKey = KV_TILE_AT(n) * KV_TILE, next = nextKVTile(kv, n + 1, lastRow);
    barrier(); // all subgroups have finished the last tile
    STORE_KEYS(MASKED)
    barrier(); // the tile is complete
    if (next < tiles) PREFETCH_KEYS(KV_TILE_AT(next))
#if MASKED // a subgroup whose rows attend to no key of the tile has nothing to add, but barriers to meet
    if ((seen & SEEN_NON_FINITE) != 0 || firstKey < visibleEnd(subgroupLast) && firstKey + KV_TILE > visibleStart(rowBase))
    [[dont_unroll]] for (uint first = 0; first < KV_TILE; first += KV_STEP)
#include "backward_step_q.glsl"
#else // written out, as in backward_tile_kv.glsl
    { const uint first = 0;
#include "backward_step_q.glsl"
    }
    if (KV_STEP < KV_TILE) { const uint first = KV_STEP;
#include "backward_step_q.glsl"
    }
    if (2 * KV_STEP < KV_TILE) { const uint first = 2 * KV_STEP;
#include "backward_step_q.glsl"
    }
    if (3 * KV_STEP < KV_TILE) { const uint first = 3 * KV_STEP;
#include "backward_step_q.glsl"
    }
#endif
    n = next;
}
