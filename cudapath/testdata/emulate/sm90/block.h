/* A CTA whose threads take turns: each runs until it has to wait. A program of this folder includes it before the kernel. */
#pragma once
#include <string>
#include "fibers.h"
#include "sm90_wgmma.h"

Index threadIdx, blockIdx, gridDim, blockDim;
alignas(1024) char tiles[232448];
int running, ctaThreads, sharedBytes;
long progress;
Meet warpMeet[20], groupMeet[5], ctaMeet, namedMeet[16];
bool namedAny[16], namedOut[16];
uint64_t slot[2][20][32][2];
std::map<uint32_t, Bar> bars;
uint32_t waitingFor[1024];
float *accs[5][128];
uint32_t aregs[5][128][4];
char failure[200];

// ---- Threads --------------------------------------------------------------------------------------

enum { MAX_THREADS = 640 };
static Fibers<MAX_THREADS, 256 << 10> fibers;
static bool done[MAX_THREADS];
static std::function<void()> body;

void pause() { fibers.pause(); }
void pauseWhile(const int *at, int value, int mask) { fibers.pauseWhile(at, mask, value); }

static void entry() {
	body();
	done[running] = true;
	progress++;
	fibers.leave();
}

void refuse(const char *what, uint64_t at) {
	snprintf(failure, sizeof failure, "%s at %llu", what, (unsigned long long)at);
	fibers.leave();
}

char *sharedAt(uint32_t address) {
	if (address >= uint32_t(sharedBytes)) refuse("no shared memory", address);
	return tiles + address;
}

// Runs body in all threads of a CTA, until one is refused or none gets on.
static void runBlock(int threads, int shared, bool reversed, std::function<void()> f) {
	fibers.reserve();
	body = f;
	memset(tiles, 0xff, sizeof tiles);
	bars.clear();
	ctaThreads = threads;
	blockDim = {unsigned(threads), 1, 1};
	sharedBytes = shared;
	failure[0] = 0;
	ctaMeet.count = 0;
	for (Meet &m : warpMeet) m.count = 0;
	for (Meet &m : groupMeet) m.count = 0;
	for (Meet &m : namedMeet) m.count = 0;
	for (int i = 0; i < threads; i++) {
		done[i] = false;
		fibers.begin(i, entry);
	}
	bool begun = false;
	int left = threads;
	long last = -1, stuck = 0;
	while (left) {
		left = 0;
		for (int k = 0; k < threads; k++) {
			int i = reversed ? threads - 1 - k : k;
			if (done[i]) continue;
			left++;
			running = i;
			threadIdx = {unsigned(i), 0, 0};
			fibers.run(i, begun);
			if (failure[0]) return;
		}
		begun = true;
		if (progress != last) {
			stuck = 0;
			last = progress;
		} else if (++stuck > 2000) {
			std::string text = "no thread gets on;";
			for (int i = 0; i < threads; i += 32)
				if (!done[i]) text += " " + std::to_string(i) + " waits for " + std::to_string(waitingFor[i]);
			snprintf(failure, sizeof failure, "%s", text.c_str());
			return;
		}
	}
}

// A tensor that a map describes, as launch.go has it.
struct Mapped {
	uint64_t base;
	int64_t batch, head, row, dim, rows, heads, packed;
};

static TensorMap mapOf(const Mapped &m, int batches, int box) {
	TensorMap map;
	map.base = reinterpret_cast<const uint16_t *>(m.base);
	map.strides[0] = m.row, map.strides[1] = m.head, map.strides[2] = m.batch;
	map.sizes[0] = m.dim, map.sizes[1] = m.rows, map.sizes[2] = m.heads;
	map.sizes[3] = m.packed ? 1 : batches;
	map.rows = box;
	return map;
}
