// host.cpp computes attention of tensors in memory of the best GPU, or of the CPU, in C++.
//
//	make c
//	c++ -I build/c bindings/c/examples/host.cpp -L build/c -lvkattn -Wl,-rpath,build/c -o host && ./host
#include <cmath>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

#include <vkattn.h>

namespace {

void check(vkattn_status status)
{
	if (status != VKATTN_OK)
		throw std::runtime_error(vkattn_last_error());
}

// A handle that destroys what it stands for.
template <typename T, vkattn_status (*destroy)(T)> struct handle {
	T h{};
	handle() = default;
	handle(const handle &) = delete;
	handle &operator=(const handle &) = delete;
	~handle() { destroy(h); }
};
using device = handle<vkattn_device, vkattn_device_destroy>;
using operation = handle<vkattn_op, vkattn_op_destroy>;
using buffer = handle<vkattn_buffer, vkattn_buffer_destroy>;

vkattn_tensor tensor(buffer &b, device &d, const std::vector<float> &x)
{
	check(vkattn_buffer_create(d.h, x.size() * sizeof(float), &b.h));
	check(vkattn_buffer_write(b.h, 0, x.data(), x.size() * sizeof(float)));
	vkattn_tensor t{};
	t.buffer = b.h;
	return t;
}

int run()
{
	device dev;
	check(vkattn_device_open(nullptr, &dev.h));
	vkattn_config config{};
	config.size = sizeof config;
	config.dtype = VKATTN_F32;
	config.head_dim = 32;
	operation op;
	check(vkattn_op_create(dev.h, &config, &op.h));

	// V is 1 everywhere, and so is every average of it.
	const std::size_t n = 4 * 50 * 32;
	std::vector<float> x(n), ones(n, 1.0f), result(n);
	for (std::size_t i = 0; i < n; i++)
		x[i] = std::sin(static_cast<float>(i));
	buffer q, k, v, o;
	vkattn_args args{};
	args.size = sizeof args;
	args.shape = {1, 4, 4, 50, 50};
	args.q = tensor(q, dev, x);
	args.k = tensor(k, dev, x);
	args.v = tensor(v, dev, ones);
	args.o = tensor(o, dev, result);
	check(vkattn_op_forward(op.h, nullptr, &args));
	check(vkattn_buffer_read(o.h, 0, result.data(), n * sizeof(float)));
	float worst = 0;
	for (float y : result)
		worst = std::fmax(worst, std::fabs(y - 1));
	std::printf("O differs from 1 by at most %.1e\n", static_cast<double>(worst));
	return worst < 1e-5f ? 0 : 1;
}

} // namespace

int main()
{
	try {
		return run();
	} catch (const std::exception &e) {
		std::fprintf(stderr, "host: %s\n", e.what());
		return 1;
	}
}
