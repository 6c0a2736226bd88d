/* The faces of a device compute the same: calls in host memory and in buffers of the device that the first argument
 * names ("cpu" or a Vulkan device) against calls in host memory on the CPU. */
#include "test.h"

#include <math.h>

enum { B = 2, HQ = 4, HKV = 2, SQ = 12, SK = 37, D = 32, Q = B * HQ * SQ * D, K = B * HKV * SK * D, ROWS = B * HQ * SQ };

static vkattn_device cpu, other;
static const char *name = "";

/* Tensors that a case may use, and the outputs of one device. */
typedef struct problem {
	vkattn_config config;
	vkattn_args args;
	vkattn_backward_args back;
	int gradients;
	vkattn_varlen varlen;
	vkattn_pages pages;
	vkattn_sparse_tokens tokens;
	vkattn_blocks blocks;
	vkattn_bias bias;
	vkattn_mask mask;
	vkattn_table_type type;
	vkattn_table table, d_table;
} problem;

static vkattn_vector ints(const int32_t *x, size_t n)
{
	vkattn_vector v = {.data = malloc(n * 4), .bytes = n * 4};
	memcpy(v.data, x, n * 4);
	return v;
}

static vkattn_vector vector(size_t n)
{
	vkattn_tensor t = floats(n);
	vkattn_vector v = {.data = t.data, .bytes = t.bytes};
	return v;
}

#define INTS(...) ints((const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4)

static void plain(problem *p) { (void)p; }

static void causal_window(problem *p)
{
	p->config.causal = VKATTN_BOTTOM_RIGHT;
	p->config.has_window = 1;
	p->config.window_left = 9;
	p->config.window_right = -1;
	p->config.softcap = 3;
	p->config.has_scale = 1;
	p->config.scale = 0.3f;
}

/* Rows of [B, S, heads, D], and between the heads of O a gap that no call writes. */
static void layouts(problem *p)
{
	p->args.q.stride_batch = SQ * HQ * D;
	p->args.q.stride_head = D;
	p->args.q.stride_row = HQ * D;
	p->args.o = floats(B * SQ * HQ * (D + 8));
	p->args.o.stride_batch = SQ * HQ * (D + 8);
	p->args.o.stride_head = D + 8;
	p->args.o.stride_row = HQ * (D + 8);
	p->args.v = p->args.k;
}

/* One row of V stands for all. */
static void expanded(problem *p)
{
	p->args.v.bytes = D * sizeof(float);
	p->args.v.expanded = 1;
}

static void packed(problem *p)
{
	p->varlen.cu_q = INTS(0, 5, 9);
	p->varlen.cu_k = INTS(0, 30, 41);
	p->varlen.total_q = 11; /* the last rows are in no sequence */
	p->varlen.total_k = 41;
	p->args.varlen = &p->varlen;
	p->config.causal = VKATTN_BOTTOM_RIGHT;
}

static void paged(problem *p)
{
	p->pages.table = INTS(4, 0, 1, 3, 2, 0, 0, 0, 0, 1);
	p->pages.page_size = 8;
	p->pages.count = 5;
	p->args.pages = &p->pages;
	p->varlen.used_k = INTS(37, 20);
	p->args.varlen = &p->varlen;
	p->gradients = 0;
}

static void biased(problem *p)
{
	p->bias.tensor = floats(HQ * SQ * SK);
	p->bias.dtype = VKATTN_F32;
	p->bias.batches = 1;
	p->args.bias = &p->bias;
	p->mask.tensor.data = malloc(B * SK);
	p->mask.tensor.bytes = B * SK;
	for (int i = 0; i < B * SK; i++)
		((uint8_t *)p->mask.tensor.data)[i] = i % 3 != 0;
	p->mask.heads = p->mask.rows = 1;
	p->args.mask = &p->mask;
	p->args.sinks = vector(HQ);
	p->args.alibi = vector(B * HQ);
	p->args.alibi_per_sequence = 1;
	p->config.align = VKATTN_BOTTOM_RIGHT;
	p->back.d_bias = floats(HQ * SQ * SK);
	p->back.d_sinks = vector(HQ);
}

static void listed(problem *p)
{
	p->tokens.offsets = INTS(0, 3, 5, 5, 9);
	p->tokens.tokens = INTS(0, 7, 36, 1, 2, 30, 31, 32, 5);
	p->tokens.total = 9;
	p->args.sparse_tokens = &p->tokens;
}

static void blocked(problem *p)
{
	p->blocks.map = INTS(5);
	p->blocks.block_q = p->blocks.block_k = 16;
	p->blocks.batches = p->blocks.heads = 1;
	p->args.blocks = &p->blocks;
	p->config.dropout = 0.25f;
	p->args.dropout_seed = 1234567890123u;
	p->args.dropout_offset = 5;
}

static void quantized(problem *p)
{
	p->config.key_type = p->config.value_type = VKATTN_KV_INT8;
	p->config.kv_block = 4;
	p->args.k_scale = p->args.v_scale = vector(B * HKV * 10);
	for (int i = 0; i < B * HKV * 10; i++)
		((float *)p->args.k_scale.data)[i] = 0.01f + (float)i / 1000.0f;
	p->gradients = 0;
}

static void modified(problem *p)
{
	p->config.score_mod = "s + 0.1 * t[h, j]";
	p->type.name = "t";
	p->type.rank = 2;
	p->type.is_float = 1;
	p->config.tables = &p->type;
	p->config.table_count = 1;
	p->table.name = "t";
	p->table.vector = vector(HQ * SK);
	p->table.dims[0] = HQ;
	p->table.dims[1] = SK;
	p->args.tables = &p->table;
	p->args.table_count = 1;
	p->d_table.name = "t";
	p->d_table.vector = vector(HQ * SK);
	p->back.d_tables = &p->d_table;
	p->back.d_table_count = 1;
}

static void accumulated(problem *p) { p->back.accumulate = 1; }

static void half(problem *p)
{
	p->config.dtype = VKATTN_F16;
	p->config.f32_o = 1;
	p->gradients = 0;
	vkattn_tensor *all[] = {&p->args.q, &p->args.k, &p->args.v};
	for (int i = 0; i < 3; i++)
		for (size_t j = 0; j < all[i]->bytes / 2; j++)
			((uint16_t *)all[i]->data)[j] = (uint16_t)(0x3000 + (j * 37 & 0x8fff)); /* 0.125 to 2, of either sign */
}

static void make(problem *p, void (*change)(problem *))
{
	problem fresh = {.config = {.size = sizeof p->config, .dtype = VKATTN_F32, .head_dim = D},
		.args = {.size = sizeof p->args, .shape = {B, HQ, HKV, SQ, SK}, .q = floats(Q), .k = floats(K), .v = floats(K),
			.o = floats(Q), .lse = floats(ROWS)},
		.back = {.size = sizeof p->back, .d_o = floats(Q), .d_lse = floats(ROWS), .d_q = floats(Q), .d_k = floats(K), .d_v = floats(K)},
		.gradients = 1, .varlen = {.size = sizeof p->varlen}, .pages = {.size = sizeof p->pages},
		.tokens = {.size = sizeof p->tokens}, .blocks = {.size = sizeof p->blocks}, .bias = {.size = sizeof p->bias},
		.mask = {.size = sizeof p->mask}};
	*p = fresh;
	change(p);
	p->back.forward = &p->args;
}

static vkattn_tensor *outputs(problem *p, int i)
{
	vkattn_tensor *all[] = {&p->args.o, &p->args.lse, &p->back.d_q, &p->back.d_k, &p->back.d_v, &p->back.d_bias};
	return i < 6 ? all[i] : NULL;
}

static void run(vkattn_device device, problem *p)
{
	vkattn_op op;
	vkattn_plan plan = {.size = sizeof plan};
	OK(vkattn_op_create(device, &p->config, &op));
	OK(vkattn_op_prepare(op, &p->args));
	OK(vkattn_op_plan(op, &p->args, &plan));
	REQUIRE((plan.tier == VKATTN_TIER_CPU) == (device == cpu) && *plan.text);
	OK(vkattn_op_forward(op, NULL, &p->args));
	if (p->gradients) {
		OK(vkattn_op_prepare_backward(op, &p->back));
		OK(vkattn_op_plan_backward(op, &p->back, &plan));
		OK(vkattn_op_backward(op, NULL, &p->back));
	}
	OK(vkattn_op_destroy(op));
}

static void compare(const char *face, problem *want, problem *got)
{
	for (int i = 0; outputs(want, i); i++) {
		float *x = outputs(want, i)->data, *y = outputs(got, i)->data;
		for (size_t j = 0; x && j < outputs(want, i)->bytes / sizeof(float); j++)
			if (!(fabsf(x[j] - y[j]) <= 2e-4f * (1 + fabsf(x[j]))) && x[j] != y[j]) {
				fprintf(stderr, "%s, %s: output %d is %g at %zu, want %g\n", name, face, i, (double)y[j], j, (double)x[j]);
				exit(1);
			}
	}
	float *x = want->back.d_sinks.data, *y = got->back.d_sinks.data;
	for (int j = 0; x && j < HQ; j++)
		REQUIRE(fabsf(x[j] - y[j]) < 1e-4f);
	x = want->d_table.vector.data, y = got->d_table.vector.data;
	for (int j = 0; x && j < HQ * SK; j++)
		REQUIRE(fabsf(x[j] - y[j]) < 1e-4f);
}

/* Moves the memory of a tensor to a buffer. */
#define MOVE(t) \
	do { \
		if ((t)->data) { \
			OK(vkattn_buffer_create(other, (t)->bytes, &(t)->buffer)); \
			OK(vkattn_buffer_write((t)->buffer, 0, (t)->data, (t)->bytes)); \
			(t)->data = NULL; \
			(t)->bytes = 0; \
		} \
	} while (0)

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*change)(problem *);
	} cases[] = {{"plain", plain}, {"causal window", causal_window}, {"layouts", layouts}, {"expanded", expanded}, {"packed", packed}, {"paged", paged},
		{"biased", biased}, {"listed", listed}, {"blocked", blocked}, {"quantized", quantized}, {"modified", modified},
		{"accumulated", accumulated}, {"half", half}};
	REQUIRE(argc == 2);
	vkattn_device_options options = {.size = sizeof options, .cpu = 1};
	OK(vkattn_device_open(&options, &cpu));
	options.cpu = !strcmp(argv[1], "cpu");
	options.device = options.cpu ? NULL : argv[1];
	options.pipeline_cache = "off";
	if (options.cpu)
		other = cpu;
	else
		OK(vkattn_device_open(&options, &other));
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		name = cases[i].name;
		problem want, got, moved;
		make(&want, cases[i].change);
		make(&got, cases[i].change);
		make(&moved, cases[i].change);
		run(cpu, &want);
		run(other, &got);
		compare("host memory", &want, &got);
		problem there = moved;
		there.args.varlen = moved.args.varlen ? &there.varlen : NULL;
		there.args.pages = moved.args.pages ? &there.pages : NULL;
		there.args.sparse_tokens = moved.args.sparse_tokens ? &there.tokens : NULL;
		there.args.blocks = moved.args.blocks ? &there.blocks : NULL;
		there.args.bias = moved.args.bias ? &there.bias : NULL;
		there.args.mask = moved.args.mask ? &there.mask : NULL;
		there.args.tables = moved.args.tables ? &there.table : NULL;
		there.back.d_tables = moved.back.d_tables ? &there.d_table : NULL;
		there.back.forward = &there.args;
		for (int j = 0; outputs(&there, j); j++)
			MOVE(outputs(&there, j));
		vkattn_tensor *inputs[] = {&there.args.q, &there.args.k, &there.args.v, &there.back.d_o, &there.back.d_lse,
			&there.bias.tensor, &there.mask.tensor};
		for (int j = 0; j < 7; j++)
			MOVE(inputs[j]);
		vkattn_vector *vectors[] = {&there.varlen.cu_q, &there.varlen.cu_k, &there.varlen.used_k, &there.pages.table,
			&there.tokens.offsets, &there.tokens.tokens, &there.blocks.map, &there.args.alibi, &there.args.sinks,
			&there.args.k_scale, &there.args.v_scale, &there.table.vector, &there.back.d_sinks, &there.d_table.vector};
		for (int j = 0; j < 14; j++)
			MOVE(vectors[j]);
		run(other, &there);
		for (int j = 0; outputs(&moved, j); j++)
			if (outputs(&moved, j)->data)
				OK(vkattn_buffer_read(outputs(&there, j)->buffer, 0, outputs(&moved, j)->data, outputs(&moved, j)->bytes));
		if (there.back.d_sinks.buffer)
			OK(vkattn_buffer_read(there.back.d_sinks.buffer, 0, moved.back.d_sinks.data, HQ * sizeof(float)));
		if (there.d_table.vector.buffer)
			OK(vkattn_buffer_read(there.d_table.vector.buffer, 0, moved.d_table.vector.data, HQ * SK * sizeof(float)));
		compare("buffers", &want, &moved);
	}
	OK(vkattn_device_wait(other, UINT64_MAX));
	return 0;
}
