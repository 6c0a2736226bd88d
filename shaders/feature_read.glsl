// Rows of K or V as they are stored, included once for each by feature_tensors.glsl, with
//   OF(name), ALIGNMENT, COLUMNS as tensor_read.glsl has them; ALIGNMENT counts bytes where KV_TYPE is INT8 or FLOAT8
//   LOAD_STORED8, LOAD_SCALED8   the names of the loads of eight elements
//   STRIDE_SEQ    the stride of rows: elements, or blocks of q8_0 and q4_0
//   LOAD_MULTIPLE      columns of a fragment of it; where they divide a row, no column that is asked for is past its end

// The slice that starts at a row of the work's key head.
Slice OF(rows)(KVRow at) {
    if (KV_TYPE == 0) return OF(slice)(at.batch, work.kvHead, at.row);
    return byteSlice(p.OF(addr), OF(position)(at.batch, work.kvHead, at.row));
}

// So many of the eight bytes from a byte of the slice on; the others are anything. No word that has none is read.
uvec2 OF(bytes)(Slice s, uint first, uint count, bool whole) {
    const uint at = s.phase + first, word = at >> 2;
    if (whole && ALIGNMENT >= 8 && COLUMNS % 8 == 0) return OF(loadPair)(s, word >> 1);
    if (whole) return uvec2(OF(loadWord)(s, word), count > 4 ? OF(loadWord)(s, word + 1) : 0);
    const uint shift = (at & 3u) * 8, end = (at & 3u) + count;
    const uint a = OF(loadWord)(s, word), b = end > 4 ? OF(loadWord)(s, word + 1) : 0;
    if (shift == 0) return uvec2(a, b);
    const uint c = end > 8 ? OF(loadWord)(s, word + 2) : 0;
    return uvec2(a >> shift | b << (32 - shift), b >> shift | c << (32 - shift));
}

// Byte of the slice where the block of q8_0 or q4_0 starts that has a column.
uint OF(block)(uint row, uint col) { return (row * STRIDE_SEQ + col / QUANT_BLOCK) * KV_UNIT_BYTES; }

uint OF(half)(Slice s, uint first) {
    const uint at = s.phase + first; // even: blocks are, and so is where they start
    return (OF(loadWord)(s, at >> 2) >> ((at & 2u) * 8)) & 0xffffu;
}

// Eight quantised elements of a row of the slice, from a column that is a multiple of 8, of which `valid` exist; those
// of q8_0 and q4_0 all do.
uvec2 OF(quantised)(Slice s, uint row, uint col, uint valid) {
    if (KV_TYPE == INT8 || KV_TYPE == FLOAT8) {
        uvec2 words = OF(bytes)(s, row * STRIDE_SEQ + col, min(valid, 8u), ALIGNMENT >= 4);
        if (valid < 8) {
            if (valid < 4) words.x &= (1u << (8 * valid)) - 1u;
            words.y &= valid > 4 ? (1u << (8 * (valid - 4))) - 1u : 0u;
        }
        return words;
    }
    const uint e = col % QUANT_BLOCK;
    return OF(bytes)(s, OF(block)(row, col) + 2 + (KV_TYPE == Q8_0 ? e : e % 16), 8, false);
}

// The scale of a row of int8 or float8, by its place, or else of the block that a column is in.
float OF(rowScale)(KVRow at) { return uintBitsToFloat(OF(scale)(scaleEntry(at))); }
float OF(blockScale)(Slice s, uint row, uint col) { return unpackHalf2x16(OF(half)(s, OF(block)(row, col))).x; }

// Eight elements of a row of the slice, from a column that is a multiple of 8, as stored: 16-bit ones packed; or
// bytes in x and y, their scale in z, how far to shift them in w.
uvec4 LOAD_STORED8(Slice s, uint row, uint col) {
    const uint valid = COLUMNS % LOAD_MULTIPLE == 0 ? 8 : OF(elementsFrom)(col);
    if (KV_TYPE == 0) return OF(load8)(s, row * STRIDE_SEQ + col, valid);
    if (valid == 0) return uvec4(0);
    const float scale = KEY_SCALES ? 1.0 : OF(blockScale)(s, row, col);
    return uvec4(OF(quantised)(s, row, col, valid), floatBitsToUint(scale), shiftOfColumn(col));
}

// The same, of int8 and float8 with the scale of the key too, by where it lies.
uvec4 LOAD_SCALED8(Slice s, uint row, uint col, KVRow at) {
    uvec4 part = LOAD_STORED8(s, row, col);
    if (KEY_SCALES) part.z = floatBitsToUint(OF(rowScale)(at));
    return part;
}

#undef OF
#undef LOAD_STORED8
#undef LOAD_SCALED8
#undef STRIDE_SEQ
#undef ALIGNMENT
#undef COLUMNS
#undef LOAD_MULTIPLE
