//go:build linux

/* vkattn_call_run without Go, on a stream of CUDA: it stores the addresses of a call in the parameters of its kernels and
 * launches them. Between the other work of a program Go costs 20 to 60 us a call: its caches are cold, and its runtime
 * sleeps. What is unusual is left to Go, which makes the ordinary call: the first run, an address that kernels chosen for
 * others do not take, outputs that may overlap, a workspace that is too small or new to a graph, and whatever fails. */

#include "calls.h"

#include <string.h>

vka_slot vka_slots[SLOTS];

/* has says whether a slot is an object's. */
static int has(vka_slot *slot, uint64_t key) { return __atomic_load_n(&slot->key, __ATOMIC_SEQ_CST) == key; }

static void let_go(vka_slot *slot) { __atomic_sub_fetch(&slot->users, 1, __ATOMIC_SEQ_CST); }

/* hold returns the data of a live object, which stays until let_go. */
static void *hold(vka_slot *slot, uint64_t key)
{
	if (!has(slot, key))
		return NULL;
	__atomic_add_fetch(&slot->users, 1, __ATOMIC_SEQ_CST);
	if (has(slot, key))
		return slot->data;
	let_go(slot);
	return NULL;
}

/* hold_alone is hold of an object that one thread at a time may use. */
static void *hold_alone(vka_slot *slot, uint64_t key)
{
	uint32_t none = 0;
	if (!has(slot, key) || !__atomic_compare_exchange_n(&slot->users, &none, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		return NULL;
	if (has(slot, key))
		return slot->data;
	let_go(slot);
	return NULL;
}

/* usual says whether a recipe holds for addresses: the kernels were chosen for multiples of 16, and without an overlap of
 * outputs there is nothing left to check. */
static int usual(const vka_recipe *r, const uint64_t *at)
{
	for (int i = 0; i < CALL_TENSORS; i++)
		if (r->bytes[i] && (!at[i] || at[i] % 16 || at[i] + r->bytes[i] < at[i]))
			return 0;
	for (int i = 0; i < CALL_TENSORS; i++)
		for (int j = 0; r->outputs >> i & 1 && j < CALL_TENSORS; j++)
			if (i != j && r->bytes[j] && at[i] < at[j] + r->bytes[j] && at[j] < at[i] + r->bytes[i])
				return 0;
	return r->v_is_k < 0 || r->v_is_k == (at[1] == at[2]);
}

/* CUtensorMap, CUlaunchAttribute and CUlaunchConfig. */
typedef struct {
	_Alignas(64) uint64_t opaque[16];
} tensor_map;

typedef struct {
	int32_t id, reserved;
	int32_t value[16];
} attribute;

typedef struct {
	uint32_t grid[3], block[3], shared;
	uint64_t stream;
	const attribute *attributes;
	uint32_t count;
} config;

enum { PROGRAMMATIC_STREAM_SERIALIZATION = 6, PROMOTE_256 = 3, RANK = 4 };

typedef int (*push_function)(uint64_t context);
typedef int (*pop_function)(uint64_t *context);
typedef int (*is_captured_function)(uint64_t stream, int *captured);
typedef int (*encode_function)(tensor_map *, int32_t kind, uint32_t rank, uint64_t base, const uint64_t *dims, const uint64_t *strides,
	const uint32_t *box, const uint32_t *ones, int32_t interleave, int32_t swizzle, int32_t promotion, int32_t fill);
typedef int (*launch_function)(uint64_t function, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t shared,
	uint64_t stream, void **arguments, void **extra);
typedef int (*launch_ex_function)(const config *, uint64_t function, void **arguments, void **extra);

#define DRIVER(type, function) ((type)(uintptr_t)(function))

static int launch(const vka_recipe *r, const vka_launch *l, uint64_t stream, const uint64_t *at)
{
	static const uint32_t ones[RANK] = {1, 1, 1, 1};
	tensor_map maps[CALL_MAPS];
	uint64_t params[CALL_WORDS];
	void *arguments[CALL_MAPS + 1];
	memcpy(params, l->params, l->words * sizeof *params);
	for (uint32_t i = 0; i < l->addresses; i++)
		params[l->address[i].word] = at[l->address[i].of] + l->address[i].offset;
	for (uint32_t i = 0; i < l->maps; i++) {
		const vka_map *m = &l->map[i];
		int code = DRIVER(encode_function, r->encode)(&maps[i], m->kind, RANK, at[m->base.of] + m->base.offset, m->dims, m->strides, m->box,
			ones, 0, m->swizzle, PROMOTE_256, 0);
		if (code)
			return code;
		arguments[i] = &maps[i];
	}
	arguments[l->maps] = params;
	if (!l->early)
		return DRIVER(launch_function, r->launch)(l->function, l->grid[0], l->grid[1], l->grid[2], l->threads, 1, 1, l->shared, stream,
			arguments, NULL);
	attribute early = {.id = PROGRAMMATIC_STREAM_SERIALIZATION, .value = {1}};
	config c = {{l->grid[0], l->grid[1], l->grid[2]}, {l->threads, 1, 1}, l->shared, stream, &early, 1};
	return DRIVER(launch_ex_function, r->launch_ex)(&c, l->function, arguments, NULL);
}

/* launches makes all launches of a call. It returns whether it has. The calls of a recipe may be made again. */
static int launches(const vka_recipe *r, const vka_stream *s, uint64_t *at)
{
	if (s->device != r->device || !usual(r, at) || r->workspace > s->workspace_bytes)
		return 0;
	at[CALL_TENSORS] = s->workspace;
	if (DRIVER(push_function, r->push)(r->context))
		return 0;
	int captured = 0, code = 0;
	uint64_t was;
	if (r->workspace && !s->captured)
		code = DRIVER(is_captured_function, r->is_captured)(s->handle, &captured);
	for (uint64_t i = 0; i < r->count && !code && !captured; i++)
		code = launch(r, &r->list[i], s->handle, at);
	return !DRIVER(pop_function, r->pop)(&was) && !code && !captured;
}

int vka_call_run(vkattn_call call, vkattn_stream stream, const void *const *data)
{
	const uint64_t id = (uintptr_t)call, on = (uintptr_t)stream;
	vka_slot *of_call = &vka_slots[id % SLOTS], *of_stream = &vka_slots[on % SLOTS];
	if (!id || !on || !data)
		return 0;
	int done = 0;
	const vka_recipe *r = hold(of_call, 2 * id);
	if (!r)
		return 0;
	const vka_stream *s = hold_alone(of_stream, 2 * on + 1);
	if (s) {
		uint64_t at[CALL_TENSORS + 1];
		for (int i = 0; i < CALL_TENSORS; i++)
			at[i] = r->bytes[i] ? (uintptr_t)data[i] : 0;
		done = launches(r, s, at);
		let_go(of_stream);
	}
	let_go(of_call);
	return done;
}
