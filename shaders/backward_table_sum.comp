#version 460
// The last sum of the gradient of a table: backward_scalar_table.comp has left `parts` numbers per entry and query head. An
// invocation owns an entry of a head of the table and adds them in their order. The last head of the table, or its only one, has
// those of all further query heads, as indices move to the ends of their axes. Core Vulkan 1.1, float32.
//
// Grid: x = entries, y = heads of the table, in steps of gl_NumWorkGroups.y.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define BDA 0
#define ANY_DTYPE
#define CONSTANTS_GENERAL
#define CONSTANTS_BACKWARD
#include "constants.glsl"
#include "numeric.glsl"

// 36 bytes. Bindings 0 numbers of the workgroups, 1 gradient, packed; addresses are their first elements.
layout(push_constant, std430) uniform Params {
    uvec2 addrParts, addrDTable;
    uint entries, stride; // of a head of the table; and numbers from one workgroup's to the next one's
    uint heads, Hq;       // of the table, and query heads
    uint parts;           // workgroups of a query head
} p;

layout(set = 0, binding = 0, std430) readonly buffer Parts { float arrayParts[]; };
layout(set = 0, binding = 1, std430) restrict writeonly buffer DTable { float arrayDTable[]; };

void main() {
    const uint entry = gl_WorkGroupID.x * LOCAL_SIZE + gl_LocalInvocationIndex;
    if (entry >= p.entries) return;
    [[dont_unroll]] for (uint head = gl_WorkGroupID.y; head < p.heads; head += gl_NumWorkGroups.y) {
        const uint end = head + 1 < p.heads ? min(head + 1, p.Hq) : p.Hq;
        float sum = 0.0;
        [[dont_unroll]] for (uint part = head * p.parts; part < end * p.parts; part++) sum += arrayParts[p.addrParts.x + part * p.stride + entry];
        arrayDTable[p.addrDTable.x + head * p.entries + entry] = sum;
    }
}
