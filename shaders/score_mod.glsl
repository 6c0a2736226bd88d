// Score modifiers: soft cap, ALiBi, bias, in this order.

// softcap * tanh(x / softcap). Near 0 a polynomial, as 1 - 2 / (exp + 1) cancels there.
float applySoftcap(float x) {
    const float y = x / p.softcap, z = y * y;
    const float t = 1.0 - 2.0 / (exp2(y * 2.885390081777927) + 1.0);
    const float cap = p.softcap * (abs(y) < 0.05 ? y * (1.0 - z * (0.33333333 - z * 0.13333333)) : t);
    return isNaN(x) ? x : cap; // exp2 need not keep a NaN
}

float scoreMod(float x, uint row, uint key) {
    if (SOFTCAP != 0) x = applySoftcap(x);
    if (ALIBI != 0) {
        const int distance = int(queryOf(row)) + work.causalOffset - int(key);
        x = fma(-uintBitsToFloat(loadALiBi(headOf(row))), float(abs(distance)), x);
    }
    if (BIAS != 0 && row < work.rows && key < work.seqlenK) x += loadBias(headOf(row), queryOf(row), key);
    return x;
}
