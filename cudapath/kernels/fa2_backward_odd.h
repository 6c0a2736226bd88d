// Inf and NaN in tiles with masked slots, as the backward fa2 kernel treats them: members of Backward.
//
// P and dS of a masked slot are 0, but 0 * NaN is NaN. In tiles with masked slots, Inf and NaN are therefore replaced by 0 in
// the operands of the last products: in K once a unit, in Q and dO of a step after all warps have computed S and dP. Ends of
// a tile past a sequence need none of this, since they are filled with zeros.
//   - A key with Inf or NaN in K gets P = NaN in the rows that attend to it. So dQ and dK stay NaN.
//   - dK loses nothing with Q: where Q is not finite, neither is the score, and dS is 0 or NaN.
//   - dV loses the non-finite elements of dO. add_odd_rows() adds them at the end of a unit.

	// Whether the thread's share of a tile with rows of Row elements holds Inf or NaN. With Clear they become 0, and flags notes
	// the rows.
	template <bool Clear, int Row> static __device__ __forceinline__ bool scan(uint32_t tile, int bytes, uint32_t flags = 0) {
		return scanTile<E::infinity, C::Threads, 2 * Row, Clear>(tile, 16 * threadIdx.x, bytes, flags);
	}

	// Replaces Inf and NaN in K by 0, and notes the keys, and in the plan whether there are any.
	__device__ __forceinline__ void clear_keys() const {
		if (threadIdx.x < C::Keys / 4) storeSharedWord(shared + C::OddKeysAt + 4 * threadIdx.x, 0);
		join(C::Threads);
		if (!join_any(C::Threads, scan<true, D>(shared, C::KBytes, shared + C::OddKeysAt))) return;
		if (threadIdx.x == 0) plan.odd_keys = 1;
		join(C::Threads);
	}

	// Makes the scores of the keys that clear_keys() noted NaN, and so their P.
	__device__ __forceinline__ void spoil(Scores &x) const {
#pragma unroll
		for (int i = 0; i < KF; i++)
#pragma unroll
			for (int h = 0; h < 2; h++) {
				if (!loadSharedByte(shared + C::OddKeysAt + (key_warp * KF + i) * 16 + h * 8 + lane / 4)) continue;
#pragma unroll
				for (int n = 0; n < 2 * RS; n++)
#pragma unroll
					for (int e = 0; e < 2; e++) x[i][n][2 * h + e] = __int_as_float(0x7fffffff);
			}
	}

	// Replaces Inf and NaN in Q and dO of a step by 0.
	__device__ __forceinline__ void clear_rows(uint32_t q, uint32_t dO) {
		const bool found = scan<false, D>(q, C::QBytes) | scan<false, Dv>(dO, C::DOBytes);
		if (!join_any(C::Threads, found)) return;
		if (threadIdx.x == 0) plan.odd_rows = 1; // read after the last step
		scan<true, D>(q, C::QBytes);
		scan<true, Dv>(dO, C::DOBytes);
		join(C::Threads);
	}

	// Adds the non-finite elements of dO in masked tiles to dV, for the rows in which the key has a P other than 0. They and
	// the scores are read from global memory.
	__device__ __forceinline__ void add_odd_rows(const Work<C> &work) {
		const TiledSequence<C> &s = work.s;
		const Workspace<C> space(p);
		const Exponent<C> exponent(p);
#pragma unroll 1
		for (int head = work.head; head < work.head + p.Hq / p.Hkv; head++) {
#pragma unroll 1
			for (int row = work.rows.first * C::Rows; row < min(work.rows.end * C::Rows, s.rows.used); row++) {
				const int block = row / C::Rows;
				if (block * C::Rows >= plan.least && block * C::Rows <= plan.most) continue;
				const uint16_t *dO = (const uint16_t *)s.rowsOf(p, p.dO, head) + row * p.dO.row;
				bool any = false;
				for (int col = 0; col < p.Dv; col++) any |= notFinite<E::infinity>(dO[col]) != 0;
				if (!any) continue;
				const float *record = space.records + space.index(p, s, head, block) * C::RecordFloats + row % C::Rows;
				const uint16_t *q = (const uint16_t *)s.rowsOf(p, p.q, head) + row * p.q.row;
#pragma unroll
				for (int i = 0; i < KF; i++) {
#pragma unroll
					for (int h = 0; h < 2; h++) {
						const int c = work.key + (key_warp * KF + i) * 16 + h * 8 + lane / 4;
						if (c >= s.keys.used || c < row - s.left || c > row + s.right) continue;
						const uint16_t *k = (const uint16_t *)s.keysOf(p, p.k, work.unit.head) + c * p.k.row;
						float score = 0, slope;
#pragma unroll 1
						for (int d = 0; d < p.D; d++) score = fmaf(E::low(q[d]), E::low(k[d]), score);
						if (exp2Approx(exponent.template of<true>(score, record[0], slope) - record[2 * C::Rows]) == 0) continue;
#pragma unroll
						for (int n = 0; n < 2 * C::VSlices; n++) {
							const int col = ((n / 2 * C::RowWarps + row_warp) * 2 + n % 2) * 8 + lane % 4 * 2;
#pragma unroll
							for (int e = 0; e < 2; e++)
								if (col + e < p.Dv && notFinite<E::infinity>(dO[col + e])) dV[i][n][2 * h + e] += E::low(dO[col + e]);
						}
					}
				}
			}
		}
	}
