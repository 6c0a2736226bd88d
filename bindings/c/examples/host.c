/* host.c computes attention and its gradients of arrays in host memory, on the best GPU, or on the CPU.
 *
 *	make c
 *	cc -std=c99 -I build/c bindings/c/examples/host.c -L build/c -lvkattn -lm -Wl,-rpath,build/c -o host && ./host
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <vkattn.h>

enum { B = 1, HQ = 8, HKV = 2, SQ = 100, SK = 300, D = 64 };

static void check(vkattn_status status)
{
	if (status == VKATTN_OK)
		return;
	fprintf(stderr, "host: %s\n", vkattn_last_error());
	exit(1);
}

static vkattn_tensor tensor(size_t n)
{
	float *x = malloc(n * sizeof *x);
	vkattn_tensor t = {.data = x, .bytes = n * sizeof *x};
	for (size_t i = 0; i < n; i++)
		x[i] = (float)(i * 2654435761u % 2001u) / 1000.0f - 1.0f;
	return t;
}

/* The first row of the first head in double, which attends to keys 0 to SK - SQ. */
static double difference(const float *q, const float *k, const float *v, const float *o)
{
	double p[SK], sum = 0, worst = 0;
	for (int j = 0; j <= SK - SQ; j++) {
		double s = 0;
		for (int d = 0; d < D; d++)
			s += (double)q[d] * k[j * D + d];
		sum += p[j] = exp(s / sqrt(D));
	}
	for (int d = 0; d < D; d++) {
		double want = 0;
		for (int j = 0; j <= SK - SQ; j++)
			want += p[j] / sum * v[j * D + d];
		worst = fmax(worst, fabs(want - o[d]));
	}
	return worst;
}

int main(void)
{
	vkattn_device device;
	check(vkattn_device_open(NULL, &device));
	vkattn_device_info info = {.size = sizeof info};
	check(vkattn_device_get_info(device, &info));

	vkattn_config config = {.size = sizeof config, .dtype = VKATTN_F32, .head_dim = D, .causal = VKATTN_BOTTOM_RIGHT};
	vkattn_op op;
	check(vkattn_op_create(device, &config, &op));

	const size_t rows = B * HQ * SQ, keys = B * HKV * SK;
	vkattn_args args = {.size = sizeof args, .shape = {B, HQ, HKV, SQ, SK}};
	args.q = tensor(rows * D);
	args.k = tensor(keys * D);
	args.v = tensor(keys * D);
	args.o = tensor(rows * D);
	args.lse = tensor(rows);
	vkattn_plan plan = {.size = sizeof plan};
	check(vkattn_op_plan(op, &args, &plan));
	printf("%s: %s\n", info.name, plan.text);
	check(vkattn_op_forward(op, NULL, &args));
	double worst = difference(args.q.data, args.k.data, args.v.data, args.o.data);
	printf("O differs from double by at most %.1e\n", worst);

	vkattn_backward_args back = {.size = sizeof back, .forward = &args};
	back.d_o = tensor(rows * D);
	back.d_q = tensor(rows * D);
	back.d_k = tensor(keys * D);
	back.d_v = tensor(keys * D);
	check(vkattn_op_backward(op, NULL, &back));
	printf("dQ begins with %g, dK with %g, dV with %g\n", *(float *)back.d_q.data, *(float *)back.d_k.data,
		*(float *)back.d_v.data);

	void *all[] = {args.q.data, args.k.data, args.v.data, args.o.data, args.lse.data,
		back.d_o.data, back.d_q.data, back.d_k.data, back.d_v.data};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		free(all[i]);
	check(vkattn_op_destroy(op));
	check(vkattn_device_destroy(device));
	return worst < 1e-5 ? 0 : 1;
}
