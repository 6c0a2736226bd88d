// Part of main of the kernels of dQ: how STORE_GRADIENT stores its rows.
    // A row past the end of its sequence has gradient 0; adding that changes nothing.
#define STORES(row) (rowBase + (row) < extentRows && (ACCUMULATE == 0 || rowBase + (row) < work.rows))
#define EXISTS(row) (rowBase + (row) < work.rows)
#define DQ_ELEMENT(row) rowElement(rowBase + (row), p.strideDXHead, p.strideDXSeq)
#define STORE_DQ8(row, col, words)                                                                  \
    { if (STORES(row) && (col) < HEAD_DIM) storeEightDX(outDQ, DQ_ELEMENT(row) + (col), EXISTS(row) ? words : uvec4(0)); }
#define STORE_DQ4(row, col, four)                                                                   \
    { if (STORES(row)) storeFourDX(outDQ, DQ_ELEMENT(row), col, EXISTS(row) ? four : vec4(0.0)); }
