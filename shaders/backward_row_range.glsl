// The rows that may attend to some of the keys [firstKey, lastKey]: the inverse of visibleStart and visibleEnd, both of
// which ascend with the row. first is at most end.
struct RowRange { uint first, end; };

RowRange rowRange(uint firstKey, uint lastKey) {
    int first = 0, end = int(work.seqlenQ); // queries
    if (CAUSAL != 0) first = max(first, int(firstKey) - work.causalOffset);
    if ((WINDOW & 2u) != 0) first = max(first, int(firstKey) - work.causalOffset - p.windowRight);
    if ((WINDOW & 1u) != 0) end = min(end, int(lastKey) - work.causalOffset + p.windowLeft + 1);
    end = max(end, 0);
    return RowRange(uint(min(first, end)) * ROWS_PER_QUERY, uint(end) * ROWS_PER_QUERY);
}
