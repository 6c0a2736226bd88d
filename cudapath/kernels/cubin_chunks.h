// Where the chunks of 16 bytes of a K or V tile lie in shared memory, and which thread copies them. A test compiles this
// file for the CPU.
#pragma once
#include <cstdint>

// The byte of a chunk of 16 bytes in a tile: panels of 64 columns, rows of 128 bytes in the 128-byte swizzle, which
// exchanges the chunks of a row by its number modulo 8 (PTX ISA, "Swizzling modes"). Tiles begin at multiples of 1024.
__host__ __device__ constexpr uint32_t chunkAt(int row, int chunk, int panelBytes) {
	return chunk / 8 * panelBytes + row * 128 + ((chunk ^ row) % 8) * 16;
}

// One thread's chunks of a tile of T::BN rows and PANELS panels: chunk `column` of rows first, first + step, ...
template <class T, int PANELS> struct Chunks {
	static constexpr int PER_ROW = 8 * PANELS, STEP = T::LOADERS / PER_ROW, COUNT = T::BN / STEP;
	static_assert(T::LOADERS % PER_ROW == 0 && T::BN % STEP == 0, "each thread has the same number of chunks");
	int column, first;
	__host__ __device__ explicit Chunks(int thread) : column(thread % PER_ROW), first(thread / PER_ROW) {}
	__host__ __device__ uint32_t at(int i) const { return chunkAt(first + i * STEP, column, T::K_PANEL); }
};
