// Conversions between the storage types and float32.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(__half x) { return __half2float(x); }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline void narrow(float *to, float x) { *to = x; }
__device__ inline void narrow(__half *to, float x) { *to = __float2half_rn(x); }
__device__ inline void narrow(__nv_bfloat16 *to, float x) { *to = __float2bfloat16_rn(x); }
