// Part of main of the kernel of dK and dV (OWNS_KEYS), which streams row tiles, and of the kernel of dQ, which streams
// KV tiles: tile n. MASKED 1 masks it: some row may not attend to some key. backward_step.glsl has the products of a
// step.
{
#if OWNS_KEYS
#define TILE_LENGTH ROW_TILE
    const uint row0 = work.row0, next = nextRowTile(tiles, n + 1, firstKey, lastKey);
    barrier(); // all subgroups have finished the last tile
    STORE_ROWS(MASKED)
    barrier(); // the tile is complete
    PREFETCH_ROWS(rowTileAt(tiles, min(next, tileCount - 1))) // behind the last tile it again: no branch to meet again
#else
#define TILE_LENGTH KV_TILE
    const uint firstKey = KV_TILE_AT(n) * KV_TILE, next = nextKVTile(kv, n + 1, lastRow);
    barrier(); // all subgroups have finished the last tile
    STORE_KEYS(MASKED)
    barrier(); // the tile is complete
    if (next < tiles) PREFETCH_KEYS(KV_TILE_AT(next))
#endif
#if MASKED // a subgroup none of whose slots is attended to has nothing to add, but barriers to meet
#if OWNS_KEYS
    if ((seen & SEEN_NON_FINITE) != 0 || keyBase < visibleEnd(min(row0 + ROW_TILE, work.rows) - 1) && keyBase + SUBGROUP_KEYS > visibleStart(row0))
#else
    if ((seen & SEEN_NON_FINITE) != 0 || firstKey < visibleEnd(subgroupLast) && firstKey + KV_TILE > visibleStart(rowBase))
#endif
    [[dont_unroll]] for (uint first = 0; first < TILE_LENGTH; first += KV_STEP)
#include "backward_step.glsl"
#else // written out: NVIDIA's compiler keeps a loop over steps, and copies the accumulators from step to step
    { const uint first = 0;
#include "backward_step.glsl"
    }
    if (KV_STEP < TILE_LENGTH) { const uint first = KV_STEP;
#include "backward_step.glsl"
    }
    if (2 * KV_STEP < TILE_LENGTH) { const uint first = 2 * KV_STEP;
#include "backward_step.glsl"
    }
    if (3 * KV_STEP < TILE_LENGTH) { const uint first = 3 * KV_STEP;
#include "backward_step.glsl"
    }
#endif
    n = next;
#undef TILE_LENGTH
}
