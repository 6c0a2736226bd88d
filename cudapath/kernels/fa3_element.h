// The storage type of a module of family fa3.
#pragma once
#include "not_finite.h"

constexpr bool BF16 = ATTN_BF16;

// The exponent bits of two packed elements (see not_finite.h).
constexpr uint32_t EXPONENTS = BF16 ? BFLOAT_EXPONENTS : HALF_EXPONENTS;
