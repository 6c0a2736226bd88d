// Part of main of backward_coopmat_kv.comp: row tile n. MASKED 1 masks it: some row may not attend to some key.
{
    const uint row0 = work.row0, next = nextRowTile(tiles, n + 1, firstKey, lastKey);
    barrier(); // all subgroups have finished the last tile
    STORE_ROWS(MASKED)
    barrier(); // the tile is complete
    PREFETCH_ROWS(rowTileAt(tiles, min(next, tiles.count - 1))) // behind the last tile it again: no branch to meet again
#if MASKED // a subgroup whose keys no row attends to has nothing to add, but barriers to meet
    if ((seen & SEEN_NON_FINITE) != 0 || keyBase < visibleEnd(min(row0 + ROW_TILE, work.rows) - 1) && keyBase + SUBGROUP_KEYS > visibleStart(row0))
    [[dont_unroll]] for (uint first = 0; first < ROW_TILE; first += KV_STEP)
#include "backward_step_kv.glsl"
#else // written out: NVIDIA's compiler keeps a loop over steps, and copies the accumulators from step to step
    { const uint first = 0;
#include "backward_step_kv.glsl"
    }
    if (KV_STEP < ROW_TILE) { const uint first = KV_STEP;
#include "backward_step_kv.glsl"
    }
    if (2 * KV_STEP < ROW_TILE) { const uint first = 2 * KV_STEP;
#include "backward_step_kv.glsl"
    }
    if (3 * KV_STEP < ROW_TILE) { const uint first = 3 * KV_STEP;
#include "backward_step_kv.glsl"
    }
#endif
    n = next;
}
