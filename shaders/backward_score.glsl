// P of a slot (row, key), and the derivative of its score with respect to the product Q K^T.

const float LOG2E = 1.4426950408889634;

// Derivative of the softcap at a score: 1 - tanh(y)^2 with y = score / softcap, as 4 e / (1 + e)^2 with e = exp(-2 |y|),
// which does not cancel far from 0.
float softcapSlope(float score) {
    const float e = exp2(abs(score / p.softcap) * -2.885390081777927);
    return 4.0 * e / ((1.0 + e) * (1.0 + e));
}

// exp(score - LSE) from the product of a slot that the row attends to. slope becomes the derivative of the softcap.
float slotP(float product, uint row, uint key, RowStats stats, out float slope) {
    slope = SOFTCAP != 0 ? softcapSlope(product * p.scoreScale) : 1.0;
    float exponent;
    if (SCORE_MOD) exponent = scoreMod(product * p.scoreScale, row, key) - stats.lse;
    // fma subtracts LSE from the exact product; but see LARGE_SCORE.
    else if (abs(stats.lse) < LARGE_SCORE) exponent = fma(product, p.scoreScale, -stats.lse);
    else exponent = roundedDifference(product, p.scoreScale, stats.lse);
    exponent -= stats.rest;
    // exp2 need not keep a NaN: SwiftShader's makes it infinity.
    return isNaN(exponent) ? exponent : exp2(exponent * LOG2E);
}

// dX = P (dP - delta + dLSE); 0 where P is, whatever dP is.
float slotDX(float prob, float dP, RowStats stats) { return prob == 0.0 ? 0.0 : prob * (dP - stats.delta + stats.dLSE); }
