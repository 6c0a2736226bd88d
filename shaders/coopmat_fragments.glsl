// Everything about fragments, in one include.
#include "storage_words.glsl"
#include "fragments.glsl"
#include "scratch.glsl"
#if GENERAL
#include "fragment_mask.glsl"
#endif
#if NV2
#include "fragment_ops_nv2.glsl"
#else
#include "fragment_ops_khr.glsl"
#endif
