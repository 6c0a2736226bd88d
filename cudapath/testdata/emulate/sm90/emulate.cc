/* The fa3 backward kernels compiled by the host's compiler, for tests without a GPU. Compile it in a folder that has the
 * kernels' files, and the headers of this folder in place of theirs. One CTA runs all units of work. Its threads take
 * turns: each runs until it has to wait. The program compares the gradients with those in float64, those of both orders of
 * the threads bit by bit, and those with Inf and NaN in elements that must not matter bit by bit. With -DEMULATE_LIBRARY
 * it is a library. */
#include "block.h"
#include "fa3_backward.cu"

constexpr int BLOCK_ROWS = Full::BM;

// The units of wide heads whose dS a launch stores, or all units.
template <class T> static int launchUnits(const AttnBackwardParams &p) {
	if constexpr (T::WIDE) return std::max(unitsOfLaunch<T>(p), 1);
	else return std::max(unitsOfCall<T>(p), 1);
}

#ifdef EMULATE_LIBRARY
// ---- The library ------------------------------------------------------------------------------------

template <class T> static void runStats(const AttnBackwardParams &p) {
	if constexpr (T::OPTIONS) computeSequenceStats<T>(p);
	else computeStats<T>(p);
}

// Runs the kernel of dQ, if the main kernel does not convert dQ itself.
template <class T, class Blocks> static void runDQ(const AttnBackwardParams &p, const TensorMap &k, bool reversed, Blocks forBlocks) {
	if constexpr (T::WIDE) runBlock(DQTile<T>::THREADS, DQTile<T>::SHARED_BYTES, reversed, [&] { multiplyScores<T>(&k, p); });
	else if constexpr (T::OPTIONS) forBlocks(0, [&] { storeSequenceDQ<T>(p); });
	else if constexpr (!T::CONVERTS) forBlocks(0, [&] { storeDQ<T>(p); });
}

template <class T> static const char *emulateTile(AttnBackwardParams p, const Mapped *mapped, int steps, bool reversed) {
	TensorMap maps[4];
	for (int i = 0; i < 4; i++) maps[i] = mapOf(mapped[i], p.B, i == 1 || i == 2 ? T::BN : T::BM);
	const int blocks = (p.Sq + T::BM - 1) / T::BM;
	auto forBlocks = [&](int shared, std::function<void()> f) {
		gridDim = {unsigned(blocks), unsigned(p.Hq), unsigned(p.B)};
		for (int n = 0; n < blocks * p.Hq * p.B && !failure[0]; n++) {
			const int at = reversed ? blocks * p.Hq * p.B - 1 - n : n;
			blockIdx = {unsigned(at % blocks), unsigned(at / blocks % p.Hq), unsigned(at / blocks / p.Hq)};
			runBlock(ROWS_THREADS, shared, reversed, f);
		}
	};
	failure[0] = 0;
	if (steps & 1) forBlocks(LseTile<T>::SHARED_BYTES, [&] { runStats<T>(p); });
	blockIdx = {0, 0, 0}, gridDim = {1, 1, 1};
	if (steps & 2 && !failure[0]) runBlock(T::THREADS, T::SHARED_BYTES, reversed, [&] { attendBackward<T>(&maps[0], &maps[1], &maps[2], &maps[3], p); });
	if (steps & 4 && !failure[0]) runDQ<T>(p, maps[1], reversed, forBlocks);
	return failure;
}

// Runs the kernels that steps names, 1 statistics, 2 gradients, 4 dQ, of the launch at params->first, with maps of Q, K, V and dO.
// Returns what failed.
extern "C" const char *emulate(const AttnBackwardParams *params, const Mapped *mapped, int steps, int reversed) {
#if ATTN_OPTIONS
	if (params->softcap != 0) return emulateTile<Capped>(*params, mapped, steps, reversed);
	return emulateTile<Options>(*params, mapped, steps, reversed);
#else
	if (params->right != INT32_MAX) return emulateTile<Causal>(*params, mapped, steps, reversed);
	return emulateTile<Full>(*params, mapped, steps, reversed);
#endif
}
#else
// ---- Calls ----------------------------------------------------------------------------------------

using Halves = std::vector<uint16_t>;

static uint64_t seed = 1;
static uint32_t random32() {
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return uint32_t(seed >> 32);
}
static float normal() {
	float sum = 0;
	for (int i = 0; i < 4; i++) sum += float(random32() >> 8) / (1 << 24);
	return (sum - 2) * 1.7f;
}
static uint16_t half(float x) { return uint16_t(pack<bool(ATTN_BF16)>(x, 0)); }
static float unhalf(uint16_t x) { return widenHalf<bool(ATTN_BF16)>(x, 0); }

struct Inputs {
	Halves q, k, v, o, dO;
};
struct Gradients {
	Halves dQ, dK, dV;
	bool operator==(const Gradients &x) const { return dQ == x.dQ && dK == x.dK && dV == x.dV; }
};

// Ends the program if a CTA has failed.
static void fail() {
	if (failure[0]) printf("%s\n", failure), exit(1);
}

// Runs the three kernels. All tensors are [batch, row, head, dim].
static Gradients call(AttnBackwardParams p, bool causal, bool reversed, const Inputs &in) {
	const int B = p.B, D = p.D, Dv = p.Dv, blocks = (p.Sq + BLOCK_ROWS - 1) / BLOCK_ROWS;
	Gradients out = {Halves(in.q.size(), 0x7e01), Halves(in.k.size(), 0x7e01), Halves(in.v.size(), 0x7e01)};
	auto tensor = [&](const Halves &x, int heads, int rows, int dim) {
		return AttnTensor{uint64_t(x.data()), int64_t(heads) * rows * dim, int64_t(dim), int64_t(heads) * dim};
	};
	p.q = tensor(in.q, p.Hq, p.Sq, D), p.k = tensor(in.k, p.Hkv, p.Sk, D), p.v = tensor(in.v, p.Hkv, p.Sk, Dv);
	p.o = tensor(in.o, p.Hq, p.Sq, Dv), p.dO = tensor(in.dO, p.Hq, p.Sq, Dv);
	p.dQ = tensor(out.dQ, p.Hq, p.Sq, D), p.dK = tensor(out.dK, p.Hkv, p.Sk, D), p.dV = tensor(out.dV, p.Hkv, p.Sk, Dv);
	auto map = [](const Halves &x, int heads, int rows, int dim, int box) {
		TensorMap m;
		m.base = x.data();
		m.strides[0] = heads * dim, m.strides[1] = dim, m.strides[2] = long(heads) * rows * dim;
		m.sizes[0] = dim, m.sizes[1] = rows, m.sizes[2] = heads, m.sizes[3] = INT32_MAX;
		m.rows = box;
		return m;
	};
	const TensorMap q = map(in.q, p.Hq, p.Sq, D, BLOCK_ROWS), k = map(in.k, p.Hkv, p.Sk, D, Full::BN);
	const TensorMap v = map(in.v, p.Hkv, p.Sk, Dv, Full::BN), dO = map(in.dO, p.Hq, p.Sq, Dv, BLOCK_ROWS);
	const size_t tilesOfDQ = size_t(B) * p.Hq * blocks, counters = 32 + ((Full::WIDE ? 0 : tilesOfDQ) + 31) / 32 * 32;
	const size_t units = size_t((p.Sk + Full::BN - 1) / Full::BN) * p.Hkv * B, dS = Full::WIDE ? units * (p.Hq / p.Hkv) * blocks * Full::DS_BYTES / 4 + units + 32 : 0;
	std::vector<uint4> work((counters + tilesOfDQ * (4 + 3 * BLOCK_ROWS + BLOCK_ROWS * ATTN_D) + dS) / 4, uint4{~0u, ~0u, ~0u, ~0u});
	p.stats = uint64_t(work.data());
	auto forBlocks = [&](int shared, auto f) {
		gridDim = {unsigned(blocks), unsigned(p.Hq), unsigned(B)};
		for (int b = 0; b < B; b++)
			for (int h = 0; h < p.Hq; h++)
				for (int i = 0; i < blocks; i++) {
					blockIdx = {unsigned(i), unsigned(h), unsigned(b)};
					runBlock(256, shared, reversed, f);
					fail();
				}
	};
	auto run = [&](auto kind) {
		using T = decltype(kind);
		forBlocks(LseTile<T>::SHARED_BYTES, [&] { computeStats<T>(p); });
		for (p.first = 0; p.first < unitsOfCall<T>(p); p.first += launchUnits<T>(p)) {
			blockIdx = {0, 0, 0}, gridDim = {1, 1, 1};
			runBlock(T::THREADS, T::SHARED_BYTES, reversed, [&] { attendBackward<T>(&q, &k, &v, &dO, p); });
			fail();
			if constexpr (T::WIDE) {
				runBlock(DQTile<T>::THREADS, DQTile<T>::SHARED_BYTES, reversed, [&] { multiplyScores<T>(&k, p); });
				fail();
			} else if constexpr (!T::CONVERTS) {
				forBlocks(0, [&] { storeDQ<T>(p); });
			}
		}
	};
	if (causal) run(Causal());
	else run(Full());
	return out;
}

// ---- Cases ----------------------------------------------------------------------------------------

enum Mask { NONE, TOP_LEFT, BOTTOM_RIGHT };
struct Case {
	int B, Hq, Hkv, Sq, Sk, D, Dv;
	Mask mask;
	bool dLSE;

	size_t q(int b, int h, int r) const { return ((size_t(b) * Sq + r) * Hq + h) * D; }
	size_t o(int b, int h, int r) const { return ((size_t(b) * Sq + r) * Hq + h) * Dv; }
	size_t k(int b, int h, int s) const { return ((size_t(b) * Sk + s) * Hkv + h / (Hq / Hkv)) * D; }
	size_t v(int b, int h, int s) const { return ((size_t(b) * Sk + s) * Hkv + h / (Hq / Hkv)) * Dv; }
	int offset() const { return mask == BOTTOM_RIGHT ? Sk - Sq : 0; }
};

struct Reference {
	std::vector<double> dQ, dK, dV;
};

// Computes O, LSE and the gradients in float64.
static Reference reference(const Case &c, double scale, Inputs &in, std::vector<float> &lse, const std::vector<float> &dLSE) {
	Reference ref = {std::vector<double>(in.q.size()), std::vector<double>(in.k.size()), std::vector<double>(in.v.size())};
	for (int b = 0; b < c.B; b++)
		for (int h = 0; h < c.Hq; h++)
			for (int r = 0; r < c.Sq; r++) {
				const size_t q = c.q(b, h, r), o = c.o(b, h, r), at = (size_t(b) * c.Hq + h) * c.Sq + r;
				const int end = std::max(c.mask != NONE ? std::min(c.Sk, r + c.offset() + 1) : c.Sk, 0);
				std::vector<double> score(end), out(c.Dv);
				double top = -1e300, sum = 0;
				for (int s = 0; s < end; s++) {
					for (int d = 0; d < c.D; d++) score[s] += double(unhalf(in.q[q + d])) * unhalf(in.k[c.k(b, h, s) + d]);
					score[s] *= scale;
					top = std::max(top, score[s]);
				}
				for (int s = 0; s < end; s++) sum += exp(score[s] - top);
				const double L = end > 0 ? top + log(sum) : -INFINITY;
				lse[at] = L;
				for (int s = 0; s < end; s++)
					for (int d = 0; d < c.Dv; d++) out[d] += exp(score[s] - L) * unhalf(in.v[c.v(b, h, s) + d]);
				double delta = c.dLSE ? -dLSE[at] : 0;
				for (int d = 0; d < c.Dv; d++) {
					in.o[o + d] = half(out[d]);
					delta += out[d] * unhalf(in.dO[o + d]);
				}
				for (int s = 0; s < end; s++) {
					const size_t k = c.k(b, h, s), v = c.v(b, h, s);
					const double P = exp(score[s] - L);
					double dP = 0;
					for (int d = 0; d < c.Dv; d++) {
						dP += double(unhalf(in.dO[o + d])) * unhalf(in.v[v + d]);
						ref.dV[v + d] += P * unhalf(in.dO[o + d]);
					}
					const double dS = P * (dP - delta) * scale;
					for (int d = 0; d < c.D; d++) {
						ref.dQ[q + d] += dS * unhalf(in.k[k + d]);
						ref.dK[k + d] += dS * unhalf(in.q[q + d]);
					}
				}
			}
	return ref;
}

static double relativeError(const Halves &x, const std::vector<double> &y) {
	double difference = 0, norm = 0;
	for (size_t i = 0; i < x.size(); i++) {
		const double e = unhalf(x[i]) - y[i];
		difference += e * e, norm += y[i] * y[i];
	}
	return sqrt(difference / norm);
}

// Puts Inf or NaN into head 0 of a row of Q, K, V or dO. Gradients of rows that do not attend to it, and of keys that it does
// not attend to, must keep their bits. Returns how many cases fail.
static int spoil(const Case &c, const AttnBackwardParams &p, const Inputs &in, const Gradients &clean) {
	int bad = 0, count = 0;
	for (int which = 0; which < 4; which++)
		for (int at : {0, 100, 127, 130})
			for (float value : {INFINITY, NAN, -INFINITY}) {
				const bool isRow = which == 0 || which == 3; // Q or dO
				if (at >= (isRow ? c.Sq : c.Sk) || random32() % 3 != 0) continue;
				Inputs spoiled = in;
				Halves *const tensors[] = {&spoiled.q, &spoiled.k, &spoiled.v, &spoiled.dO};
				const size_t places[] = {c.q(0, 0, at), c.k(0, 0, at), c.v(0, 0, at), c.o(0, 0, at)};
				(*tensors[which])[places[which] + 3] = half(value);
				const Gradients out = call(p, c.mask != NONE, false, spoiled);
				auto differ = [](const Halves &x, const Halves &y, size_t from, int dims) { return memcmp(&x[from], &y[from], 2 * dims) != 0; };
				bool fine = true;
				for (int r = 0; r < c.Sq; r++)
					for (int h = 0; h < c.Hq; h++) {
						const bool may = isRow ? r == at && h == 0 : h < c.Hq / c.Hkv && r + c.offset() >= at;
						if (!may && differ(clean.dQ, out.dQ, c.q(0, h, r), c.D)) fine = false;
					}
				for (int s = 0; s < c.Sk; s++)
					for (int h = 0; h < c.Hq; h++) {
						const bool may = h < c.Hq / c.Hkv && (isRow ? s <= at + c.offset() : s == at);
						if (!may && (differ(clean.dK, out.dK, c.k(0, h, s), c.D) || differ(clean.dV, out.dV, c.v(0, h, s), c.Dv))) fine = false;
					}
				count++;
				if (!fine) bad++, printf("  spoiled %d at %d value %f\n", which, at, value);
			}
	printf("  spoiled %d, bad %d\n", count, bad);
	return bad;
}

static bool check(int index, const Case &c) {
	const double tolerance = ATTN_BF16 ? 5e-3 : 6e-4;
	auto make = [](size_t n) {
		Halves x(n);
		for (auto &e : x) e = half(normal());
		return x;
	};
	Inputs in = {make(c.q(c.B, 0, 0)), make(c.k(c.B, 0, 0)), make(c.v(c.B, 0, 0)), Halves(c.o(c.B, 0, 0)), make(c.o(c.B, 0, 0))};
	std::vector<float> lse(c.B * c.Hq * c.Sq), dLSE(lse.size());
	for (auto &x : dLSE) x = normal();
	AttnBackwardParams p = {};
	p.B = c.B, p.Hq = c.Hq, p.Hkv = c.Hkv, p.Sq = c.Sq, p.Sk = c.Sk, p.D = c.D, p.Dv = c.Dv;
	p.left = INT32_MAX, p.right = c.mask != NONE ? 0 : INT32_MAX, p.bottom_right = c.mask == BOTTOM_RIGHT;
	p.scale = 1 / sqrtf(c.D);
	const Reference ref = reference(c, p.scale, in, lse, dLSE);
	p.lse = uint64_t(lse.data()), p.dLSE = c.dLSE ? uint64_t(dLSE.data()) : 0;
	const Gradients out = call(p, c.mask != NONE, false, in);
	const bool same = out == call(p, c.mask != NONE, true, in);
	const double errors[] = {relativeError(out.dQ, ref.dQ), relativeError(out.dK, ref.dK), relativeError(out.dV, ref.dV)};
	printf("case %d B%d H%d/%d %dx%d D%d/%d mask %d: errors %.2e %.2e %.2e same %d\n", index, c.B, c.Hq, c.Hkv, c.Sq, c.Sk, c.D, c.Dv, c.mask, errors[0],
	       errors[1], errors[2], same);
	bool right = same;
	for (double e : errors) right &= e < tolerance;
	if (c.mask != NONE && c.B * c.Hq <= 4) right &= spoil(c, p, in, out) == 0;
	return right;
}

// The arguments are the indices of the cases to run, all without any.
int main(int argc, char **argv) {
	constexpr int D = ATTN_D, DV = ATTN_DV;
	const Case cases[] = {
		{1, 1, 1, 128, 128, D, DV, NONE}, {1, 1, 1, 200, 200, D, DV, TOP_LEFT}, {1, 4, 2, 150, 300, D, DV, BOTTOM_RIGHT, true},
		{1, 2, 1, 270, 140, D - 8, DV - 16, BOTTOM_RIGHT}, {2, 2, 1, 260, 390, D, DV, NONE}, {1, 20, 20, 70, 130, D, DV, TOP_LEFT},
		{1, 1, 1, 600, 300, D, DV, TOP_LEFT},
	};
	bool failed = false;
	for (int i = 0; i < int(sizeof cases / sizeof *cases); i++)
		if (argc < 2 || std::any_of(argv + 1, argv + argc, [&](const char *arg) { return atoi(arg) == i; })) failed |= !check(i, cases[i]);
	return failed;
}
#endif
