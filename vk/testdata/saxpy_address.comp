#version 450
// The same through buffer device addresses.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint ADD = 0;
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint v[]; };
layout(push_constant) uniform Push { Words x, y; uint a, n; };
void main()
{
	uint i = gl_GlobalInvocationID.x;
	if (i < n)
		y.v[i] = a * x.v[i] + ADD;
}
