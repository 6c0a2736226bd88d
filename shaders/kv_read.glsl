// Rows of K or V as they are stored. A template: kv_quant.glsl includes it for each of the two with
//   OF(name), ALIGNMENT, COLUMNS as in tensor_read.glsl; ALIGNMENT counts bytes if TYPE is INT8 or FLOAT8
//   LOAD_STORED8, LOAD_SCALED8  names of the loads of eight elements
//   TYPE, UNIT_BYTES  K_TYPE or V_TYPE, and the bytes of its unit
//   STRIDE_SEQ     stride of rows: elements, or blocks of q8_0 and q4_0
//   LOAD_MULTIPLE  if it divides COLUMNS, no load asks for columns past the end of a row

// Slice of the KV head of the workgroup, from a row on.
Slice OF(rows)(KVRow at) {
    if (TYPE == 0) return OF(slice)(at.batch, work.kvHead, at.row);
    return byteSlice(add64(p.OF(addr), bytesOf(OF(position)(at.batch, work.kvHead, at.row), UNIT_BYTES)), ALIGNMENT);
}
// The slice `rows` rows further.
Slice OF(rowsOn)(Slice s, uint rows) {
    if (TYPE == 0) return OF(advance)(s, rows);
    const uvec2 bytes = add64(bytesOf(mul64(rows, STRIDE_SEQ), UNIT_BYTES), uvec2(s.phase, 0));
    Slice t = byteSlice(bytes, ALIGNMENT);
#if BDA
    t.word = add64(s.word, t.word);
#else
    t.word += s.word;
#endif
    return t;
}

// Eight bytes from byte `first` of the slice on, of which `count` are valid. No word without a valid byte is read.
// whole: the bytes start at a word.
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

// First byte of the q8_0 or q4_0 block of a column.
uint OF(block)(uint row, uint col) { return (row * STRIDE_SEQ + col / QUANT_BLOCK) * UNIT_BYTES; }

uint OF(half)(Slice s, uint first) {
    const uint at = s.phase + first; // even: blocks have an even size and offset
    return (OF(loadWord)(s, at >> 2) >> ((at & 2u) * 8)) & 0xffffu;
}

// Eight quantized elements from a column that is a multiple of 8. `valid` of them exist, the others are 0; in q8_0 and
// q4_0 all exist.
uvec2 OF(quantized)(Slice s, uint row, uint col, uint valid) {
    if (TYPE == INT8 || TYPE == FLOAT8) {
        uvec2 words = OF(bytes)(s, row * STRIDE_SEQ + col, min(valid, 8u), ALIGNMENT >= 4);
        if (valid < 8) {
            if (valid < 4) words.x &= (1u << (8 * valid)) - 1u;
            words.y &= valid > 4 ? (1u << (8 * (valid - 4))) - 1u : 0u;
        }
        return words;
    }
    const uint e = col % QUANT_BLOCK;
    return OF(bytes)(s, OF(block)(row, col) + 2 + (TYPE == Q8_0 ? e : e % 16), 8, false);
}

// Scale of a row of int8 or float8, and of the q8_0 or q4_0 block of a column.
float OF(rowScale)(KVRow at) { return uintBitsToFloat(OF(scale)(scaleEntry(at))); }
float OF(blockScale)(Slice s, uint row, uint col) { return unpackHalf2x16(OF(half)(s, OF(block)(row, col))).x; }

// Eight elements from a column that is a multiple of 8, as stored: four words of 16-bit elements; or bytes in x and
// y, the scale of their block in z (1 with KEY_SCALES), and shiftOfColumn in w.
uvec4 LOAD_STORED8(Slice s, uint row, uint col) {
    const uint valid = COLUMNS % LOAD_MULTIPLE == 0 ? 8 : OF(elementsFrom)(col);
    if (TYPE == 0) return OF(load8)(s, row * STRIDE_SEQ + col, valid);
    if (valid == 0) return uvec4(0);
    const float scale = KEY_SCALES ? 1.0 : OF(blockScale)(s, row, col);
    return uvec4(OF(quantized)(s, row, col, valid), floatBitsToUint(scale), shiftOfColumn(TYPE, col));
}

// A lane's part of block n of a row that begins at a word, as stored: words that hold numbers 8 part to 8 part + 7 of
// q8_0, or bytes 4 part to 4 part + 3 of q4_0, and in w the word that holds the block's scale. Blocks with an odd n begin in the
// middle of a word; the numbers of the others do.
uvec4 OF(storedBlock)(Slice s, uint n, uint part) {
    const uint odd = n % 2, words = TYPE == Q8_0 ? 2 : 1;
    s = fromWord(s, odd * (UNIT_BYTES / 4));
    const Slice numbers = fromWord(s, odd + words * part), last = fromWord(numbers, words - odd);
    const uint at = n / 2 * (UNIT_BYTES / 2);
    uvec4 stored = uvec4(OF(loadWord)(numbers, at), 0, 0, OF(loadWord)(s, at));
    if (TYPE == Q8_0) stored.y = OF(loadWord)(numbers, at + 1);
    stored[words] = OF(loadWord)(last, at);
    return stored;
}

// As LOAD_STORED8, with the scale of the key in z.
uvec4 LOAD_SCALED8(Slice s, uint row, uint col, KVRow at) {
    uvec4 stored = LOAD_STORED8(s, row, col);
    if (KEY_SCALES) stored.z = floatBitsToUint(OF(rowScale)(at));
    return stored;
}

#undef OF
#undef LOAD_STORED8
#undef LOAD_SCALED8
#undef TYPE
#undef UNIT_BYTES
#undef STRIDE_SEQ
#undef ALIGNMENT
#undef COLUMNS
#undef LOAD_MULTIPLE
