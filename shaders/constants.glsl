// Specialization constants of every kernel. The constants of a kernel family are in constants_FAMILY.glsl, which only the
// kernels of the family include, so that a new constant changes no other modules. An id is unique among all of these
// files. shaders/build reads their lines that begin with `layout(constant_id` and generates constants_gen.go; the comment
// of a line becomes the comment of its Go constant.
#ifndef CONSTANTS_GLSL
#define CONSTANTS_GLSL

layout(local_size_x_id = 0) in;                       // id 0 is LOCAL_SIZE: invocations per workgroup
const uint LOCAL_SIZE = gl_WorkGroupSize.x;           // an id can be declared once: LOCAL_SIZE reads id 0 through the built-in

layout(constant_id = 8) const uint HEAD_DIM = 128;    // Dqk: elements of a Q or K row
layout(constant_id = 9) const uint HEAD_DIM_V = 128;  // Dv: elements of a V or O row
layout(constant_id = 12) const uint HAS_LSE = 0;      // 1: the log-sum-exp of each row is written

// Alignment of a tensor: the largest of {1, 2, 4, 8} elements that divides the offset of its first
// element and every stride. An access no wider than this is aligned.
layout(constant_id = 16) const uint ALIGN_O = 1;      // elements

// -- storage type ----------------------------------------------------------------------------------
const uint TYPE_F16 = 0;
const uint TYPE_BF16 = 1;
const uint TYPE_F32 = 2;
#if defined(ANY_DTYPE)                                // one module for the three types
layout(constant_id = 17) const uint DTYPE = TYPE_F16; // 0 f16, 1 bf16, 2 f32
#elif defined(DTYPE_BF16)                             // else a module is compiled for one type
const uint DTYPE = TYPE_BF16;
#elif defined(DTYPE_F32)
const uint DTYPE = TYPE_F32;
#else
const uint DTYPE = TYPE_F16;
#endif

#endif
