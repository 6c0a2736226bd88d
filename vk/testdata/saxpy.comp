#version 450
// y[i] = a * x[i] + ADD, through two storage buffers.
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint ADD = 0;
layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) buffer Y { uint y[]; };
layout(push_constant) uniform Push { uint a, n; };
void main()
{
	uint i = gl_GlobalInvocationID.x;
	if (i < n)
		y[i] = a * x[i] + ADD;
}
