/* decode.c appends the keys of a sequence to a cache in memory of the device, with a rotary embedding, and attends: token by
 * token, and all at once. Both give the same rows.
 *
 *	make c
 *	cc -std=c99 -I build/c bindings/c/examples/decode.c -L build/c -lvkattn -lm -Wl,-rpath,build/c -o decode && ./decode
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <vkattn.h>

enum { HQ = 8, HKV = 2, D = 64, ROWS = 20, CAPACITY = 32 };

static vkattn_device device;

static void check(vkattn_status status)
{
	if (status == VKATTN_OK)
		return;
	fprintf(stderr, "decode: %s\n", vkattn_last_error());
	exit(1);
}

static vkattn_buffer buffer(size_t n, const float *from)
{
	vkattn_buffer b;
	check(vkattn_buffer_create(device, n * sizeof *from, &b));
	if (from)
		check(vkattn_buffer_write(b, 0, from, n * sizeof *from));
	return b;
}

/* ROWS rows of each head, [heads, ROWS, D]. */
static vkattn_buffer rows(size_t heads)
{
	static float x[HQ * ROWS * D];
	for (size_t i = 0; i < heads * ROWS * D; i++)
		x[i] = (float)((i + heads) * 2654435761u % 2001u) / 1000.0f - 1.0f;
	return buffer(heads * ROWS * D, x);
}

int main(void)
{
	check(vkattn_device_open(NULL, &device));
	vkattn_append_config stores = {.size = sizeof stores, .dtype = VKATTN_F32, .head_dim = D, .rotary = {.dim = D, .style = VKATTN_ROTARY_HALF_SPLIT}};
	vkattn_config attends = {.size = sizeof attends, .dtype = VKATTN_F32, .head_dim = D, .causal = VKATTN_BOTTOM_RIGHT};
	vkattn_append append;
	vkattn_op op;
	check(vkattn_append_create(device, &stores, &append));
	check(vkattn_op_create(device, &attends, &op));

	static float cosines[CAPACITY][D / 2], sines[CAPACITY][D / 2], o[2][HQ * ROWS * D];
	for (int t = 0; t < CAPACITY; t++)
		for (int i = 0; i < D / 2; i++) {
			double angle = t * pow(10000, -2.0 * i / D);
			cosines[t][i] = (float)cos(angle), sines[t][i] = (float)sin(angle);
		}
	vkattn_buffer cosine = buffer(CAPACITY * D / 2, cosines[0]), sine = buffer(CAPACITY * D / 2, sines[0]);
	vkattn_buffer q = rows(HQ), k = rows(HKV), v = rows(HKV), turned = buffer(HQ * ROWS * D, NULL), out = buffer(HQ * ROWS * D, NULL);
	vkattn_buffer k_cache = buffer(HKV * CAPACITY * D, NULL), v_cache = buffer(HKV * CAPACITY * D, NULL), length = buffer(1, NULL);

	for (int step = ROWS, run = 0; run < 2; run++, step = 1)
		for (int32_t used = 0; used < ROWS; used += step) {
			check(vkattn_buffer_write(length, 0, &used, sizeof used));
			const int64_t offset = used * D, to_head = ROWS * D; /* of the new rows */
			vkattn_tensor new_k = {.buffer = k, .offset = offset, .stride_batch = HKV * to_head, .stride_head = to_head, .stride_row = D}, new_q = new_k;
			new_q.buffer = q, new_q.stride_batch = HQ * to_head;
			vkattn_append_args a = {.size = sizeof a, .b = 1, .hkv = HKV, .hq = HQ, .new_rows = step, .k = new_k, .v = new_k, .k_cache = {.buffer = k_cache},
				.v_cache = {.buffer = v_cache}, .capacity = CAPACITY, .used = {.buffer = length}, .cos = {.buffer = cosine}, .sin = {.buffer = sine},
				.positions = CAPACITY, .q = new_q, .q_out = new_q};
			a.v.buffer = v, a.q_out.buffer = turned;
			check(vkattn_append_forward(append, NULL, &a));

			/* The rows attend to the first used + step keys of the cache. */
			vkattn_args f = {.size = sizeof f, .shape = {1, HQ, HKV, step, used + step}, .q = a.q_out, .k = a.k_cache, .v = a.v_cache, .o = a.q_out};
			f.k.stride_batch = f.v.stride_batch = HKV * CAPACITY * D, f.k.stride_head = f.v.stride_head = CAPACITY * D, f.k.stride_row = f.v.stride_row = D;
			f.o.buffer = out;
			check(vkattn_op_forward(op, NULL, &f));
			check(vkattn_buffer_read(out, 0, o[run], sizeof o[run]));
		}

	double worst = 0;
	for (int i = 0; i < HQ * ROWS * D; i++)
		worst = fmax(worst, fabs(o[0][i] - o[1][i]));
	printf("token by token O differs by at most %.1e\n", worst);
	check(vkattn_device_destroy(device));
	return worst < 1e-5 ? 0 : 1;
}
