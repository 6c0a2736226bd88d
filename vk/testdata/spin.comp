#version 450
// Keeps one workgroup busy for a while, then reads word 0 and writes word 1: shows
// whether a buffer was taken away under work in flight.
layout(local_size_x_id = 0) in;
layout(set = 0, binding = 0) buffer X { uint x[]; };
layout(push_constant) uniform Push { uint rounds; };
void main()
{
	uint v = x[0];
	for (uint i = 0; i < rounds; i++)
		v = v * 1664525u + 1013904223u + (x[0] & 0u);
	if (gl_GlobalInvocationID.x == 0)
		x[1] = v;
}
