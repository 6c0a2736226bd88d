// Rows of K or V as they are stored. A template: kv_quant.glsl includes it for each of the two with
//   OF(name), ALIGNMENT, COLUMNS as in tensor_read.glsl; ALIGNMENT counts bytes if TYPE is not 0
//   LOAD_STORED8, LOAD_SCALED8  names of the loads of eight elements
//   TYPE, UNIT_BYTES  K_TYPE or V_TYPE, and the bytes of its unit
//   STRIDE_SEQ     stride of rows: units
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

// First byte of the block of a column.
uint OF(block)(uint row, uint col) { return (row * STRIDE_SEQ + col / QUANT_BLOCK) * UNIT_BYTES; }

uint OF(half)(Slice s, uint first) {
    const uint at = s.phase + first; // even: blocks have an even size and offset
    return (OF(loadWord)(s, at >> 2) >> ((at & 2u) * 8)) & 0xffffu;
}

// Bytes of eight quantized elements from a column that is a multiple of 8. `valid` of them exist, the others are 0; in
// blocks all exist.
uvec2 OF(quantized)(Slice s, uint row, uint col, uint valid) {
    if (KEY_SCALES) {
        uvec2 words = OF(bytes)(s, row * STRIDE_SEQ + col, min(valid, 8u), ALIGNMENT >= 4);
        if (valid < 8) {
            if (valid < 4) words.x &= (1u << (8 * valid)) - 1u;
            words.y &= valid > 4 ? (1u << (8 * (valid - 4))) - 1u : 0u;
        }
        return words;
    }
    const uint e = col % QUANT_BLOCK;
    return OF(bytes)(s, OF(block)(row, col) + HEADER_BYTES_OF(TYPE) + (IN(NIBBLES, TYPE) != 0 ? e % 16 : e), 8, false);
}

// Scale of a row, and of the block of a column as scalesOf takes it. Fifth bits of eight elements from a column on.
float OF(rowScale)(KVRow at) { return uintBitsToFloat(OF(scale)(scaleEntry(at))); }
uint OF(blockScales)(Slice s, uint row, uint col) {
    const uint first = OF(block)(row, col), scale = OF(half)(s, first);
    return IN(MINIMUM, TYPE) != 0 ? scale | OF(half)(s, first + 2) << 16 : floatBitsToUint(unpackHalf2x16(scale).x);
}
uint OF(fifth8)(Slice s, uint row, uint col) {
    if (IN(FIFTH_BITS, TYPE) == 0) return 0;
    const uint byte = col % QUANT_BLOCK / 8;
    return OF(half)(s, OF(block)(row, col) + HEADER_BYTES_OF(TYPE) - 4 + byte / 2 * 2) >> (byte % 2 * 8) & 0xffu;
}

// The same of LATENT_ROWS, as LOAD_STORED8 returns them: numbers, or four words of bfloat16.
uvec4 OF(latent8)(Slice s, uint row, uint col) {
    const bool whole = ALIGNMENT >= 4;
    const uint first = row * STRIDE_SEQ * UNIT_BYTES, scale = first + LATENT_VALUES + col / LATENT_SPAN * 4;
    if (COLUMNS > LATENT_VALUES && IS_REST(TYPE, col)) {
        const uint rest = first + LATENT_REST + (col - LATENT_VALUES) * 2;
        return uvec4(OF(bytes)(s, rest, 8, whole), OF(bytes)(s, rest + 8, 8, whole));
    }
    return uvec4(OF(bytes)(s, first + col, 8, whole), whole ? OF(loadWord)(s, scale >> 2) : OF(bytes)(s, scale, 4, false).x, 0);
}

// Eight elements from a column that is a multiple of 8, as stored: four words of 16-bit elements; or bytes in x and
// y, the scales of their block in z (1 with KEY_SCALES), and in w what numbersOf takes.
uvec4 LOAD_STORED8(Slice s, uint row, uint col) {
    const uint valid = COLUMNS % LOAD_MULTIPLE == 0 ? 8 : OF(elementsFrom)(col);
    if (TYPE == 0) return OF(load8)(s, row * STRIDE_SEQ + col, valid);
    if (valid == 0) return uvec4(0);
    if (LATENT_ROWS(TYPE) != 0) return OF(latent8)(s, row, col);
    const uint scales = KEY_SCALES ? floatBitsToUint(1.0) : OF(blockScales)(s, row, col);
    return uvec4(OF(quantized)(s, row, col, valid), scales, shiftOfColumn(TYPE, col) | OF(fifth8)(s, row, col) << 8);
}

// A lane's part of block n of a row that begins at a word, as stored: words that hold bytes 8 part to 8 part + 7 of
// q8_0, of nibbles bytes 4 part to 4 part + 3, in w the word that holds the block's scale, and with fifth bits in z the
// word after it. Where a block is not whole words, blocks with an odd n begin in the middle of a word; the numbers of the
// others do.
uvec4 OF(storedBlock)(Slice s, uint n, uint part) {
    const uint odd = UNIT_BYTES % 4 == 0 ? 0 : n % 2, words = IN(NIBBLES, TYPE) != 0 ? 1 : 2;
    s = fromWord(s, odd * (UNIT_BYTES / 4));
    const Slice numbers = fromWord(s, HEADER_BYTES_OF(TYPE) / 4 + odd + words * part), last = fromWord(numbers, words - odd);
    const uint at = UNIT_BYTES % 4 == 0 ? n * (UNIT_BYTES / 4) : n / 2 * (UNIT_BYTES / 2);
    uvec4 stored = uvec4(OF(loadWord)(numbers, at), 0, 0, OF(loadWord)(s, at));
    if (words == 2) stored.y = OF(loadWord)(numbers, at + 1);
    if (UNIT_BYTES % 4 != 0) stored[words] = OF(loadWord)(last, at);
    if (IN(FIFTH_BITS, TYPE) != 0) stored.z = OF(loadWord)(s, at + 1);
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
