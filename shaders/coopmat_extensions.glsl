// Extensions of the cooperative-matrix kernels. They imply the Vulkan memory model, hence scoped atomics.
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int32 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_shader_subgroup_ballot : require
#if NV2
#extension GL_NV_cooperative_matrix2 : require
#endif
#if defined(DTYPE_BF16) || defined(TERMS_BF16)
#extension GL_EXT_bfloat16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#endif

#define SCOPED_ATOMICS 1
#define SEARCH_LANES SUBGROUP_SIZE // see sequenceOf
