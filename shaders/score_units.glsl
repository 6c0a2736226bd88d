// Units of scores. Scores are exponents of two (scale * log2(e) * Q K^T), so that P is one exp2; with
// NATURAL_SCORES they are exponents of e. The row max is in the same unit, LSE is a natural logarithm.

const float LOG2E = 1.4426950408889634;

// A difference of scores as an exponent of two.
#define TO_LOG2(difference) (NATURAL_SCORES ? (difference) * LOG2E : (difference))

// Initial row max: the lowest finite float32. No finite score is below it, and a difference never subtracts
// an infinity from another.
const float ROW_MAX_INIT = -3.4028234663852886e38;

// LSE of a row from its row max and row sum. For large logits the row max exceeds the logarithm by far: fma
// rounds their sum once.
float logSumExp(float rowMax, float rowSum) {
    if (rowSum == 0.0) return -INFINITY;
    return fma(rowMax, p.unitHigh, fma(rowMax, p.unitLow, naturalLog(rowSum)));
}
