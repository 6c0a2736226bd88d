// Stores of one half of a 32-bit word. If rows of an output have an odd number of 16-bit elements, a word may be shared
// with another invocation, another workgroup, or memory outside of the output. A word is stored whole only if both of
// its halves are written; else an atomic AND and an atomic OR change one half. A template: it is included once per
// tensor with
//   OF(name)    name with the tensor's letter appended
//   WORD(s, i)  word i of a slice
// The includer undefines both.

#ifndef ATOMIC_AND
// Modules under the Vulkan memory model (cooperative matrices imply it) define SCOPED_ATOMICS=1: atomics then have
// queue family scope. The default, device scope, needs vulkanMemoryModelDeviceScope, which is optional.
#ifndef SCOPED_ATOMICS
#define SCOPED_ATOMICS 0
#endif
#if SCOPED_ATOMICS
#extension GL_KHR_memory_scope_semantics : require
#define ATOMIC_AND(word, bits) atomicAnd(word, bits, gl_ScopeQueueFamily, 0, 0)
#define ATOMIC_OR(word, bits) atomicOr(word, bits, gl_ScopeQueueFamily, 0, 0)
#else
#define ATOMIC_AND(word, bits) atomicAnd(word, bits)
#define ATOMIC_OR(word, bits) atomicOr(word, bits)
#endif
#endif

// One 16-bit element, in the low half of bits; the other half of the word keeps its bits.
void OF(storeHalf)(Slice s, uint element, uint bits) {
    const uint halfIndex = element + s.phase, shift = (halfIndex & 1u) * 16u;
    ATOMIC_AND(WORD(s, halfIndex >> 1), 0xffff0000u >> shift);
    ATOMIC_OR(WORD(s, halfIndex >> 1), bits << shift);
}
