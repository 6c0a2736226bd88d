// Kernels that find out what a launch by VK_NVX_binary_import has. For each architecture:
//   nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -cubin -o probe.sm_90a.cubin probe.cu
//   nvcc -std=c++17 -O3 -gencode=arch=compute_80,code=sm_80 -cubin -o probe.sm_80.cubin probe.cu

// Writes and reads `words` words of dynamic shared memory. out[0] counts the CTAs that read what they wrote.
extern "C" __global__ void probe_shared(unsigned *out, unsigned words) {
	extern __shared__ unsigned shared[];
	for (unsigned i = threadIdx.x; i < words; i += blockDim.x) shared[i] = i * 3 + blockIdx.x;
	__syncthreads();
	int right = 1;
	for (unsigned i = threadIdx.x; i < words; i += blockDim.x) right &= shared[words - 1 - i] == (words - 1 - i) * 3 + blockIdx.x;
	right = __syncthreads_and(right);
	if (threadIdx.x == 0) atomicAdd(out, right);
}

// out[0] counts CTAs that started. out[1] counts those that saw all of the grid running at once; others give up after
// about 0.1 s.
extern "C" __global__ void probe_resident(unsigned *out, unsigned words) {
	extern __shared__ unsigned shared[];
	if (words > 0 && threadIdx.x < words) shared[threadIdx.x] = threadIdx.x;
	if (threadIdx.x != 0) return;
	atomicAdd(out, 1);
	const long long start = clock64();
	bool all = false;
	while (!all && clock64() - start < 200000000) all = *reinterpret_cast<volatile unsigned *>(out) >= gridDim.x;
	if (all) atomicAdd(out + 1, 1);
}
