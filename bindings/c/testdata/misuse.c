/* Every wrong use that the library can see is an error with a text, and none is a crash. */
#define _GNU_SOURCE
#include "test.h"

#include <math.h>
#include <pthread.h>

enum { B = 2, HQ = 4, HKV = 2, SQ = 10, SK = 20, D = 16, Q = B * HQ * SQ * D, K = B * HKV * SK * D };

static vkattn_config config(void)
{
	vkattn_config c = {.size = sizeof c, .dtype = VKATTN_F32, .head_dim = D, .causal = VKATTN_BOTTOM_RIGHT};
	return c;
}

static vkattn_args arguments(void)
{
	vkattn_args a = {.size = sizeof a, .shape = {B, HQ, HKV, SQ, SK}, .q = floats(Q), .k = floats(K), .v = floats(K),
		.o = floats(Q), .lse = floats(B * HQ * SQ)};
	return a;
}

static vkattn_device device;
static vkattn_op op;
static vkattn_args good;

/* One member of the arguments is wrong. */
#define WRONG(words, change) \
	do { \
		vkattn_args a = good; \
		change; \
		INVALID(words, vkattn_op_forward(op, NULL, &a)); \
		vkattn_plan p = {.size = sizeof p}; \
		INVALID(words, vkattn_op_plan(op, &a, &p)); \
		INVALID(words, vkattn_op_prepare(op, &a)); \
	} while (0)

#define WRONG_CONFIG(words, change) \
	do { \
		vkattn_config c = config(); \
		vkattn_op made = NULL; \
		change; \
		INVALID(words, vkattn_op_create(device, &c, &made)); \
		REQUIRE(!made); \
	} while (0)

static void null_pointers(void)
{
	vkattn_config c = config();
	vkattn_requirements need;
	INVALID("NULL", vkattn_device_open(NULL, NULL));
	INVALID("NULL", vkattn_device_get_info(NULL, NULL));
	INVALID("NULL", vkattn_device_get_info(device, NULL));
	INVALID("NULL", vkattn_device_wait(NULL, 0));
	INVALID("NULL", vkattn_device_wrap_vulkan(NULL, NULL));
	INVALID("NULL", vkattn_buffer_create(NULL, 1, NULL));
	INVALID("NULL", vkattn_buffer_create(device, 1, NULL));
	INVALID("NULL", vkattn_buffer_write(NULL, 0, &c, 1));
	INVALID("NULL", vkattn_buffer_read(NULL, 0, &c, 1));
	INVALID("NULL", vkattn_buffer_wrap_vulkan(NULL, 0, 0, 0, 0, NULL));
	INVALID("NULL", vkattn_buffer_wrap_vulkan(device, 0, 0, 0, 0, NULL));
	INVALID("NULL", vkattn_op_create(NULL, &c, &op));
	INVALID("NULL", vkattn_op_create(device, NULL, &op));
	INVALID("NULL", vkattn_op_create(device, &c, NULL));
	INVALID("NULL", vkattn_op_forward(NULL, NULL, &good));
	INVALID("NULL", vkattn_op_forward(op, NULL, NULL));
	INVALID("NULL", vkattn_op_backward(NULL, NULL, NULL));
	INVALID("NULL", vkattn_op_backward(op, NULL, NULL));
	INVALID("NULL", vkattn_op_prepare(op, NULL));
	INVALID("NULL", vkattn_op_prepare_backward(op, NULL));
	INVALID("NULL", vkattn_op_plan(op, &good, NULL));
	INVALID("NULL", vkattn_op_plan_backward(op, NULL, NULL));
	INVALID("NULL", vkattn_requirements_create(NULL, &need));
	INVALID("NULL", vkattn_requirements_create(&c, NULL));
	INVALID("NULL", vkattn_requirements_get_info(NULL, 0, NULL));
	INVALID("NULL", vkattn_requirements_check(NULL, NULL));
	INVALID("NULL", vkattn_stream_wrap_vulkan(NULL, NULL, NULL));
	INVALID("NULL", vkattn_stream_wrap_vulkan(device, NULL, NULL));
	INVALID("NULL", vkattn_stream_barrier(NULL));
	INVALID("NULL", vkattn_stream_reset(NULL));
	OK(vkattn_device_destroy(NULL));
	OK(vkattn_op_destroy(NULL));
	OK(vkattn_buffer_destroy(NULL));
	OK(vkattn_stream_destroy(NULL));
	OK(vkattn_requirements_destroy(NULL));
}

static void handles(void)
{
	vkattn_config c = config();
	vkattn_op gone;
	vkattn_buffer b;
	OK(vkattn_op_create(device, &c, &gone));
	OK(vkattn_op_destroy(gone));
	INVALID("destroyed", vkattn_op_destroy(gone));
	INVALID("destroyed", vkattn_op_forward(gone, NULL, &good));
	OK(vkattn_buffer_create(device, 8, &b));
	OK(vkattn_buffer_destroy(b));
	INVALID("destroyed", vkattn_buffer_destroy(b));
	INVALID("destroyed", vkattn_buffer_read(b, 0, &c, 1));
	WRONG("destroyed", (a.q.buffer = b, a.q.data = NULL, a.q.bytes = 0));
	/* Of another kind, or of none. */
	INVALID("of kind device, want op", vkattn_op_forward((vkattn_op)device, NULL, &good));
	INVALID("of kind op, want device", vkattn_device_destroy((vkattn_device)op));
	INVALID("of kind device, want stream", vkattn_op_forward(op, (vkattn_stream)device, &good));
	INVALID("no handle", vkattn_device_wait((vkattn_device)&c, 0));
	INVALID("no handle", vkattn_op_destroy((vkattn_op)(uintptr_t)-1));
	INVALID("no handle", vkattn_buffer_write((vkattn_buffer)(uintptr_t)0xdeadbeef, 0, &c, 1));
	/* A device takes what is of it along. */
	vkattn_device_options cpu = {.size = sizeof cpu, .cpu = 1};
	vkattn_device other;
	OK(vkattn_device_open(&cpu, &other));
	OK(vkattn_op_create(other, &c, &gone));
	OK(vkattn_buffer_create(other, 4 * Q, &b));
	WRONG("another device", (a.q.buffer = b, a.q.data = NULL, a.q.bytes = 0));
	OK(vkattn_device_destroy(other));
	INVALID("destroyed", vkattn_device_destroy(other));
	INVALID("destroyed", vkattn_op_forward(gone, NULL, &good));
	INVALID("destroyed", vkattn_buffer_destroy(b));
	vkattn_device_info info = {.size = sizeof info};
	INVALID("destroyed", vkattn_device_get_info(other, &info));
}

static void sizes_of_structs(void)
{
	const size_t wrong[] = {0, 1, 4, sizeof(vkattn_args) - 1, sizeof(vkattn_args) + 8, SIZE_MAX};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		vkattn_device_options options = {.size = wrong[i]};
		vkattn_device_info info = {.size = wrong[i]};
		vkattn_plan plan = {.size = wrong[i]};
		vkattn_vulkan vulkan = {.size = wrong[i]};
		vkattn_backward_args back = {.size = wrong[i], .forward = &good};
		vkattn_device d;
		INVALID("size is", vkattn_device_open(&options, &d));
		INVALID("size is", vkattn_device_get_info(device, &info));
		INVALID("size is", vkattn_op_plan(op, &good, &plan));
		INVALID("size is", vkattn_device_wrap_vulkan(&vulkan, &d));
		INVALID("size is", vkattn_op_backward(op, NULL, &back));
		WRONG_CONFIG("size is", c.size = wrong[i]);
		WRONG("size is", a.size = wrong[i]);
		vkattn_varlen varlen = {.size = wrong[i]};
		vkattn_pages pages = {.size = wrong[i]};
		vkattn_sparse_tokens tokens = {.size = wrong[i]};
		vkattn_blocks blocks = {.size = wrong[i]};
		vkattn_bias bias = {.size = wrong[i]};
		vkattn_mask mask = {.size = wrong[i]};
		WRONG("varlen->size", a.varlen = &varlen);
		WRONG("pages->size", a.pages = &pages);
		WRONG("sparse_tokens->size", a.sparse_tokens = &tokens);
		WRONG("blocks->size", a.blocks = &blocks);
		WRONG("bias->size", a.bias = &bias);
		WRONG("mask->size", a.mask = &mask);
	}
}

static void configs(void)
{
	const int32_t wrong[] = {-1, 99, 255, 256, 1 << 16, INT32_MAX, INT32_MIN};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		WRONG_CONFIG("dtype", c.dtype = wrong[i]);
		WRONG_CONFIG("causal", c.causal = wrong[i]);
		WRONG_CONFIG("tier", c.tier = wrong[i]);
		WRONG_CONFIG("access", c.access = wrong[i]);
		WRONG_CONFIG("tuning", c.tuning = wrong[i]);
		WRONG_CONFIG("align", c.align = wrong[i]);
		WRONG_CONFIG("key_type", c.key_type = wrong[i]);
		WRONG_CONFIG("value_type", c.value_type = wrong[i]);
		WRONG_CONFIG("f32_o", c.f32_o = wrong[i]);
		WRONG_CONFIG("has_scale", c.has_scale = wrong[i]);
		WRONG_CONFIG("has_window", c.has_window = wrong[i]);
	}
	WRONG_CONFIG("head_dim is 0", c.head_dim = 0);
	WRONG_CONFIG("head_dim", c.head_dim = -5);
	WRONG_CONFIG("at most 256", c.head_dim = INT32_MAX);
	WRONG_CONFIG("head_dim_v", c.head_dim_v = -1);
	WRONG_CONFIG("without has_scale", c.scale = 1);
	WRONG_CONFIG("without has_window", c.window_left = 1);
	WRONG_CONFIG("scale", (c.has_scale = 1, c.scale = NAN));
	WRONG_CONFIG("softcap", c.softcap = -1);
	WRONG_CONFIG("dropout", c.dropout = 1);
	WRONG_CONFIG("attention_chunk", c.attention_chunk = -1);
	WRONG_CONFIG("fixed_split", c.fixed_split = 1000);
	WRONG_CONFIG("kv_block", c.kv_block = 2);
	WRONG_CONFIG("kernel", c.kernel = "fa9");
	WRONG_CONFIG("score_mod", c.score_mod = "s +");
	WRONG_CONFIG("mask_mod", c.mask_mod = "table[i]");
	WRONG_CONFIG("tables is NULL", c.table_count = 1);
	WRONG_CONFIG("tables has", (c.table_count = SIZE_MAX, c.tables = (const vkattn_table_type *)&c));
}

static void calls(void)
{
	vkattn_config c = config();
	WRONG("b is -1", a.shape.b = -1);
	WRONG("sq is 0", a.shape.sq = 0);
	WRONG("sk is 0", a.shape.sk = 0);
	WRONG("hq is 0", (a.shape.hq = 0, a.shape.hkv = 1));
	WRONG("hkv", a.shape.hkv = 3);
	WRONG("sq is", a.shape.sq = INT64_MAX);
	WRONG("want at least", a.shape.sk = SK + 1);
	WRONG("q is missing", (a.q.data = NULL, a.q.bytes = 0));
	WRONG("o is missing", (a.o.data = NULL, a.o.bytes = 0));
	WRONG("NULL, with", a.q.data = NULL);
	WRONG("0 bytes", a.q.bytes = 0);
	WRONG("want at least", a.k.bytes--);
	WRONG("want at least", a.lse.bytes = 4);
	WRONG("which no memory has", a.q.bytes = UINT64_MAX);
	WRONG("offset", a.q.offset = -1);
	WRONG("want at least", a.q.offset = 1);
	WRONG("below 2^63", a.q.offset = INT64_MAX);
	WRONG("stride_head", (a.q.stride_batch = 1, a.q.stride_head = -1));
	WRONG("2^63", a.q.stride_batch = INT64_MAX);
	WRONG("expanded", a.q.expanded = 2);
	WRONG("overlap", a.o.stride_batch = 1);
	WRONG("overlapping q", a.o = a.q);
	WRONG("dropout_offset", a.dropout_offset = (uint64_t)1 << 32);
	WRONG("in both", a.q.buffer = (vkattn_buffer)device);

	int32_t lengths[B] = {SQ, SQ + 1};
	vkattn_varlen varlen = {.size = sizeof varlen, .used_q = {.data = lengths, .bytes = sizeof lengths}};
	WRONG("used_q[1]", a.varlen = &varlen);
	varlen.used_q.bytes = 4;
	WRONG("want at least 8", a.varlen = &varlen);
	int32_t table[B * 3] = {0, 1, 2, 3, 9, 0};
	vkattn_pages pages = {.size = sizeof pages, .table = {.data = table, .bytes = sizeof table}, .page_size = 8, .count = 4};
	WRONG("", a.pages = &pages);
	pages.page_size = 0;
	WRONG("page_size", a.pages = &pages);
	vkattn_bias bias = {.size = sizeof bias, .tensor = good.k, .dtype = 7};
	WRONG("bias.dtype", a.bias = &bias);
	vkattn_mask mask = {.size = sizeof mask, .tensor = good.k, .heads = 3};
	WRONG("mask.heads", a.mask = &mask);
	WRONG("k_scale", a.k_scale.data = lengths; a.k_scale.bytes = 8);
	WRONG("tables is NULL", a.table_count = 1);
	vkattn_table t = {.name = "t"};
	WRONG("tables[t]", (a.table_count = 1, a.tables = &t));

	vkattn_backward_args back = {.size = sizeof back, .forward = &good, .d_o = floats(Q)};
	INVALID("d_q is missing", vkattn_op_backward(op, NULL, &back));
	back.d_q = good.o;
	INVALID("overlapping o", vkattn_op_backward(op, NULL, &back));
	back.d_q = floats(Q);
	back.accumulate = 5;
	INVALID("accumulate", vkattn_op_backward(op, NULL, &back));
	back.accumulate = 0;
	back.forward = NULL;
	INVALID("forward is NULL", vkattn_op_backward(op, NULL, &back));
	back.forward = &good;
	back.d_o.bytes = 0;
	INVALID("d_o", vkattn_op_backward(op, NULL, &back));
	back.d_o = floats(Q);
	OK(vkattn_op_backward(op, NULL, &back));

	/* No sequences: nothing to do. Memory need not be aligned. */
	vkattn_args a = good;
	a.shape.b = 0;
	OK(vkattn_op_forward(op, NULL, &a));
	a = good;
	a.q = floats(Q + 1);
	a.q.data = (char *)a.q.data + 1;
	a.q.bytes -= 4;
	(void)c;
	REQUIRE(vkattn_op_forward(op, NULL, &a) == VKATTN_OK);
	OK(vkattn_op_forward(op, NULL, &good));
}

static void buffers(void)
{
	vkattn_buffer b;
	char bytes[16] = {0};
	INVALID("bytes is 0", vkattn_buffer_create(device, 0, &b));
	INVALID("bytes", vkattn_buffer_create(device, UINT64_MAX, &b));
	REFUSED(VKATTN_ERROR_OUT_OF_MEMORY, "", vkattn_buffer_create(device, (uint64_t)1 << 62, &b));
	OK(vkattn_buffer_create(device, 10, &b));
	OK(vkattn_buffer_write(b, 0, bytes, 10));
	OK(vkattn_buffer_read(b, 3, bytes, 7));
	OK(vkattn_buffer_read(b, 10, bytes, 0));
	INVALID("of a buffer of 10", vkattn_buffer_read(b, 0, bytes, 11));
	INVALID("of a buffer of 10", vkattn_buffer_read(b, 11, bytes, 0));
	INVALID("of a buffer of 10", vkattn_buffer_write(b, UINT64_MAX, bytes, 2));
	INVALID("NULL", vkattn_buffer_write(b, 0, NULL, 1));
	vkattn_args a = good;
	a.q = (vkattn_tensor){.buffer = b};
	INVALID("", vkattn_op_forward(op, NULL, &a));
	OK(vkattn_buffer_destroy(b));
}

static void devices(void)
{
	vkattn_device d = NULL;
	vkattn_device_options o = {.size = sizeof o, .device = "no device has this name"};
	REFUSED(VKATTN_ERROR_NO_DEVICE, "", vkattn_device_open(&o, &d));
	o = (vkattn_device_options){.size = sizeof o, .cpu = 2};
	INVALID("cpu", vkattn_device_open(&o, &d));
	o = (vkattn_device_options){.size = sizeof o, .timeout_ms = -1};
	INVALID("timeout_ms", vkattn_device_open(&o, &d));
	REQUIRE(!d);

	vkattn_config c = config();
	vkattn_requirements need;
	REFUSED(VKATTN_ERROR_UNSUPPORTED, "tier", vkattn_requirements_create(&c, &need)); /* tier auto */
	c.tier = VKATTN_TIER_SCALAR;
	OK(vkattn_requirements_create(&c, &need));
	const uint8_t uuid[16] = {1, 2, 3};
	REFUSED(VKATTN_ERROR_NO_DEVICE, "", vkattn_requirements_check(need, uuid));
	vkattn_requirements_info info = {.size = 8};
	INVALID("size", vkattn_requirements_get_info(need, 0, &info));
	vkattn_vulkan vulkan = {.size = sizeof vulkan, .requirements = need};
	INVALID("all needed", vkattn_device_wrap_vulkan(&vulkan, &d));
	OK(vkattn_requirements_destroy(need));
	INVALID("destroyed", vkattn_requirements_destroy(need));
	INVALID("destroyed", vkattn_device_wrap_vulkan(&vulkan, &d));
	vkattn_stream s;
	INVALID("did not make it", vkattn_stream_wrap_vulkan(device, &s, &s));
	vkattn_buffer b;
	INVALID("did not make it", vkattn_buffer_wrap_vulkan(device, 1, 0, 1, 0, &b));
}

/* Random members, which may be right: no crash, and an error has a text. */
static void random_calls(uint32_t seed, int count)
{
	const int64_t sizes[] = {0, 1, 2, 3, 4, 8, 10, 16, 20, 32, 64, -1, 1 << 20, INT32_MAX, INT64_MAX, INT64_MIN};
	for (int n = 0; n < count; n++) {
#define NEXT (seed = seed * 1664525u + 1013904223u, seed >> 10)
#define ANY (sizes[NEXT % (sizeof sizes / sizeof *sizes)])
#define RARELY(x) if (NEXT % 8 == 0) { x; }
		vkattn_config c = config();
		RARELY(c.dtype = (int32_t)(NEXT % 4))
		RARELY(c.head_dim = (int32_t)ANY)
		RARELY(c.head_dim_v = (int32_t)ANY)
		RARELY(c.causal = (int32_t)(NEXT % 4))
		RARELY(c.tier = (int32_t)(NEXT % 9))
		RARELY((c.has_window = 1, c.window_left = (int32_t)ANY))
		RARELY(c.key_type = (int32_t)(NEXT % 11))
		RARELY(c.value_type = (int32_t)(NEXT % 6))
		RARELY(c.fixed_split = (int32_t)ANY)
		RARELY(c.softcap = number(NEXT))
		vkattn_op made;
		vkattn_status s = vkattn_op_create(device, &c, &made);
		REQUIRE(s != VKATTN_ERROR_INTERNAL && (s == VKATTN_OK || *vkattn_last_error()));
		if (s != VKATTN_OK)
			continue;
		vkattn_args a = good;
		vkattn_tensor *all[] = {&a.q, &a.k, &a.v, &a.o, &a.lse};
		RARELY(a.shape.b = ANY)
		RARELY(a.shape.hq = ANY)
		RARELY(a.shape.hkv = ANY)
		RARELY(a.shape.sq = ANY)
		RARELY(a.shape.sk = ANY)
		for (int i = 0; i < 5; i++) {
			RARELY(all[i]->offset = ANY)
			RARELY(all[i]->stride_batch = ANY)
			RARELY(all[i]->stride_head = ANY)
			RARELY(all[i]->stride_row = ANY)
			RARELY(all[i]->bytes = NEXT % (all[i]->bytes + 1))
		}
		int32_t words[64];
		for (int i = 0; i < 64; i++)
			words[i] = (int32_t)(NEXT % 30);
		vkattn_vector v = {.data = words, .bytes = sizeof words};
		vkattn_varlen varlen = {.size = sizeof varlen, .total_q = ANY, .total_k = ANY};
		RARELY((a.varlen = &varlen, varlen.cu_q = v))
		RARELY((a.varlen = &varlen, varlen.used_k = v))
		vkattn_pages pages = {.size = sizeof pages, .table = v, .page_size = ANY, .count = ANY, .stride = ANY};
		RARELY(a.pages = &pages)
		vkattn_sparse_tokens tokens = {.size = sizeof tokens, .offsets = v, .tokens = v, .total = ANY};
		RARELY(a.sparse_tokens = &tokens)
		vkattn_bias bias = {.size = sizeof bias, .tensor = good.k, .dtype = ANY, .batches = ANY, .heads = ANY, .rows = ANY};
		RARELY(a.bias = &bias)
		s = vkattn_op_forward(made, NULL, &a);
		REQUIRE(s != VKATTN_ERROR_INTERNAL && (s == VKATTN_OK || *vkattn_last_error()));
		OK(vkattn_op_destroy(made));
	}
}

/* Threads that use and destroy the same handles. */
static void *use(void *argument)
{
	vkattn_op *shared = argument;
	for (int i = 0; i < 200; i++) {
		vkattn_args a = good;
		a.o = floats(Q);
		a.lse = floats(B * HQ * SQ);
		vkattn_status s = vkattn_op_forward(*shared, NULL, &a);
		REQUIRE(s == VKATTN_OK || s == VKATTN_ERROR_INVALID || s == VKATTN_ERROR_BUSY);
		if (i % 50 == 49) {
			s = vkattn_op_destroy(*shared);
			REQUIRE(s == VKATTN_OK || s == VKATTN_ERROR_INVALID || s == VKATTN_ERROR_BUSY);
		}
		free(a.o.data);
		free(a.lse.data);
	}
	return NULL;
}

static void *of_this_thread(void *unused)
{
	REQUIRE(!*vkattn_last_error());
	INVALID("NULL", vkattn_device_wait(NULL, 0));
	return unused;
}

static void threads(void)
{
	vkattn_config c = config();
	vkattn_op shared;
	OK(vkattn_op_create(device, &c, &shared));
	pthread_t list[8];
	for (int i = 0; i < 8; i++)
		REQUIRE(!pthread_create(&list[i], NULL, use, &shared));
	for (int i = 0; i < 8; i++)
		REQUIRE(!pthread_join(list[i], NULL));
	INVALID("head_dim", (c.head_dim = 0, vkattn_op_create(device, &c, &shared)));
	REQUIRE(!pthread_create(&list[0], NULL, of_this_thread, NULL));
	REQUIRE(!pthread_join(list[0], NULL));
	REQUIRE(strstr(vkattn_last_error(), "head_dim"));
}

int main(int argc, char **argv)
{
	REQUIRE(vkattn_abi() == VKATTN_ABI && !*vkattn_last_error());
	vkattn_device_options options = {.size = sizeof options, .cpu = argc < 2, .device = argc < 2 ? NULL : argv[1],
		.pipeline_cache = "off"};
	OK(vkattn_device_open(&options, &device));
	vkattn_config c = config();
	OK(vkattn_op_create(device, &c, &op));
	good = arguments();
	OK(vkattn_op_forward(op, NULL, &good));
	null_pointers();
	handles();
	sizes_of_structs();
	configs();
	calls();
	buffers();
	devices();
	if (argc < 2) {
		random_calls(1, 3000);
		threads();
	}
	OK(vkattn_device_wait(device, UINT64_MAX));
	OK(vkattn_device_destroy(device));
	return 0;
}
