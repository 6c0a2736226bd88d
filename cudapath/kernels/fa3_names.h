// Names of the entries of fa3.cu and fa3_backward.cu, from the macros that the build defines: ATTN_BF16, ATTN_D and ATTN_DV.
#pragma once

#ifndef ATTN_D
#define ATTN_D 128
#endif
#ifndef ATTN_DV
#define ATTN_DV ATTN_D
#endif

// f16 or bf16.
#if ATTN_BF16
#define TYPE_NAME bf16
#else
#define TYPE_NAME f16
#endif

// x and the head dim of V, if it is not that of Q and K.
#if ATTN_D == ATTN_DV
#define DV_NAME
#else
#define DV_NAME_(v) x##v
#define DV_NAME__(v) DV_NAME_(v)
#define DV_NAME DV_NAME__(ATTN_DV)
#endif
