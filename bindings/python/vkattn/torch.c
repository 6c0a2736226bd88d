/* torch.c: the operators vkattn::plain_forward and vkattn::plain_backward of PyTorch without Python, which is half of what a
 * call costs the host inside a training step. They find the vkattn_call of a layout, allocate the outputs and run it.
 *
 * What they do not know they leave to the operators python_forward and python_backward (_torch.py), which compute and tell
 * them: a layout not seen before, another stream, and every error. PyTorch's functions are those of its stable C interface
 * (torch/csrc/inductor/aoti_torch/c/shim.h, from PyTorch 2.9 on), which _torch.py looks up: nothing of PyTorch is needed to
 * compile this file. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef void *tensor; /* AtenTensorHandle */
typedef uint64_t value; /* StableIValue: a tensor, an integer or the bits of a double */

/* PyTorch's functions, in the order of _torch.py; NULL where a build has none: stream without CUDA, and what. Those of type int return 0, or an error. */
typedef struct functions {
	int (*call)(const char *operator, const char *overload, value *stack);
	void (*check)(bool holds, const char *function, const char *file, uint32_t line, const char *message);
	int (*free)(tensor);
	int (*empty_strided)(int64_t dims, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device_type,
		int32_t device_index, tensor *);
	int (*data)(tensor, void **);
	int (*dims)(tensor, int64_t *);
	int (*sizes)(tensor, int64_t **);
	int (*strides)(tensor, int64_t **);
	int (*dtype)(tensor, int32_t *);
	int (*device_type)(tensor, int32_t *);
	int (*device_index)(tensor, int32_t *);
	int (*stream)(int32_t device_index, void **);
	int32_t (*float32)(void);
	int32_t (*cpu)(void);
	const char *(*what)(void); /* the text of the last error; NULL: it has been printed */
} functions;

static functions f;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

enum { DIMS = 4, OPTIONS = 5, LAYOUTS = 1024, STREAMS = 64 };

typedef struct view {
	int64_t sizes[DIMS], strides[DIMS];
} view;

/* What calls of one layout have in common. */
typedef struct key {
	view q, k, v;
	value options[OPTIONS]; /* causal, left, right, softcap, scale */
	int64_t dtype, device_type, device_index;
} key;

/* What _torch.py tells about a layout: the calls, and the strides of the outputs. */
typedef struct known {
	int (*run)(void *call, void *stream, const void *const *data); /* vkattn_call_run */
	void *forward, *backward;
	int64_t o[DIMS], d_q[DIMS], d_k[DIMS], d_v[DIMS];
} known;

static struct {
	key key;
	known known;
	bool used;
} layouts[LAYOUTS];
static int layout_count;

static struct {
	int64_t device;
	void *stream, *handle;
} streams[STREAMS];
static int stream_count;

static __thread key pending; /* the layout that this thread has asked Python for */
static __thread bool is_pending;

static uint64_t hash(const key *k)
{
	const uint64_t *words = (const uint64_t *)k;
	uint64_t h = 0;
	for (size_t i = 0; i < sizeof *k / sizeof *words; i++)
		h = (h ^ words[i]) * 0x9e3779b97f4a7c15u;
	return h >> 32;
}

/* place returns where a layout is, or where it would be. There is always room. The lock is held. */
static int place(const key *k)
{
	int i = (int)(hash(k) % LAYOUTS);
	while (layouts[i].used && memcmp(&layouts[i].key, k, sizeof *k))
		i = (i + 1) % LAYOUTS;
	return i;
}

static bool find(const key *k, known *to)
{
	pthread_mutex_lock(&lock);
	const int i = place(k);
	const bool found = layouts[i].used;
	if (found)
		*to = layouts[i].known;
	pthread_mutex_unlock(&lock);
	return found;
}

void vkattn_torch_add(const known *of)
{
	if (!is_pending)
		return;
	is_pending = false;
	pthread_mutex_lock(&lock);
	if (layout_count > LAYOUTS / 2) {
		memset(layouts, 0, sizeof layouts);
		layout_count = 0;
	}
	const int i = place(&pending);
	layout_count += !layouts[i].used;
	layouts[i].key = pending, layouts[i].known = *of, layouts[i].used = true;
	pthread_mutex_unlock(&lock);
}

void vkattn_torch_add_stream(int64_t device, void *stream, void *handle)
{
	pthread_mutex_lock(&lock);
	const int i = stream_count < STREAMS ? stream_count++ : 0;
	streams[i].device = device, streams[i].stream = stream, streams[i].handle = handle;
	pthread_mutex_unlock(&lock);
}

/* The handle of the current stream of a device. On the CPU there is none. */
static bool stream_of(const key *k, void **handle)
{
	void *stream;
	*handle = NULL;
	if (k->device_type == f.cpu())
		return true;
	if (!f.stream || f.stream((int32_t)k->device_index, &stream))
		return false;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < stream_count && !*handle; i++)
		if (streams[i].device == k->device_index && streams[i].stream == stream)
			*handle = streams[i].handle;
	pthread_mutex_unlock(&lock);
	return *handle;
}

/* layout reads a tensor of four dimensions. */
static bool layout(tensor t, view *to)
{
	int64_t dims, *sizes, *strides;
	if (f.dims(t, &dims) || dims != DIMS || f.sizes(t, &sizes) || f.strides(t, &strides))
		return false;
	memcpy(to->sizes, sizes, sizeof to->sizes);
	memcpy(to->strides, strides, sizeof to->strides);
	return true;
}

/* is_of says whether a tensor has a type and lies where the key says. */
static bool is_of(tensor t, const key *k, int64_t dtype)
{
	int32_t got, type, index;
	return !f.dtype(t, &got) && !f.device_type(t, &type) && !f.device_index(t, &index) && got == dtype && type == k->device_type &&
		index == k->device_index;
}

static bool key_of(const value *qkv, const value *options, key *k)
{
	int32_t dtype, type, index;
	tensor q = (tensor)qkv[0];
	if (f.dtype(q, &dtype) || f.device_type(q, &type) || f.device_index(q, &index))
		return false;
	memset(k, 0, sizeof *k);
	k->dtype = dtype, k->device_type = type, k->device_index = index;
	memcpy(k->options, options, sizeof k->options);
	return layout(q, &k->q) && layout((tensor)qkv[1], &k->k) && layout((tensor)qkv[2], &k->v) && is_of((tensor)qkv[1], k, dtype) &&
		is_of((tensor)qkv[2], k, dtype);
}

static bool make(const key *k, int dims, const int64_t *sizes, const int64_t *strides, int64_t dtype, value *to)
{
	tensor t = NULL;
	const bool made = !f.empty_strided(dims, sizes, strides, (int32_t)dtype, (int32_t)k->device_type, (int32_t)k->device_index, &t);
	*to = (value)(uintptr_t)t;
	return made;
}

/* run runs a call on tensors; those that are 0 it does not have. */
static bool run(const known *of, void *call, void *stream, int n, const value *tensors)
{
	void *data[10];
	for (int i = 0; i < n; i++)
		if (data[i] = NULL, tensors[i] && f.data((tensor)tensors[i], &data[i]))
			return false;
	return !of->run(call, stream, (const void *const *)data);
}

/* done frees the arguments and returns the results in their place. */
static void done(value *stack, int arguments, const value *results, int n)
{
	for (int i = 0; i < arguments; i++)
		f.free((tensor)stack[i]);
	memcpy(stack, results, (size_t)n * sizeof *stack);
}

static void drop(const value *results, int n)
{
	for (int i = 0; i < n; i++)
		if (results[i])
			f.free((tensor)results[i]);
}

/* leave lets Python make a call, which takes the arguments. An error there is one here. */
static void leave(const char *operator, value *stack, const key *k)
{
	if ((is_pending = k != NULL))
		pending = *k;
	const int failed = f.call(operator, "", stack);
	is_pending = false;
	f.check(!failed, operator, __FILE__, __LINE__, failed && f.what ? f.what() : "the call failed, as the message above says");
}

static void forward(value *stack, uint64_t arguments, uint64_t results)
{
	(void)arguments, (void)results;
	key k;
	known of;
	void *stream;
	value out[2] = {0};
	const bool keyed = key_of(stack, stack + 3, &k);
	if (keyed && find(&k, &of) && stream_of(&k, &stream)) {
		const int64_t o[] = {k.q.sizes[0], k.q.sizes[1], k.q.sizes[2], k.v.sizes[3]}, lse[] = {o[1] * o[2], o[2], 1};
		if (make(&k, DIMS, o, of.o, k.dtype, &out[0]) && make(&k, 3, o, lse, f.float32(), &out[1])) {
			const value all[] = {stack[0], stack[1], stack[2], out[0], out[1]};
			if (run(&of, of.forward, stream, 5, all)) {
				done(stack, 3, out, 2);
				return;
			}
		}
		drop(out, 2);
	}
	leave("vkattn::python_forward", stack, keyed ? &k : NULL);
}

static void backward(value *stack, uint64_t arguments, uint64_t results)
{
	(void)arguments, (void)results;
	key k;
	known of;
	void *stream;
	view o, d_o;
	int64_t dims, *sizes, *strides;
	value out[3] = {0};
	const tensor lse = (tensor)stack[2];
	const bool keyed = key_of(stack + 3, stack + 6, &k);
	if (keyed && find(&k, &of) && layout((tensor)stack[0], &d_o) && layout((tensor)stack[1], &o) &&
		is_of((tensor)stack[0], &k, k.dtype) && is_of((tensor)stack[1], &k, k.dtype) && is_of(lse, &k, f.float32()) &&
		!f.dims(lse, &dims) && dims == 3 && !f.sizes(lse, &sizes) && !f.strides(lse, &strides)) {
		const int64_t want[] = {k.q.sizes[0], k.q.sizes[1], k.q.sizes[2], k.v.sizes[3]}, packed[] = {want[1] * want[2], want[2], 1};
		if (!memcmp(o.sizes, want, sizeof want) && !memcmp(d_o.sizes, want, sizeof want) && !memcmp(sizes, want, sizeof packed) &&
			!memcmp(strides, packed, sizeof packed) && !memcmp(o.strides, of.o, sizeof of.o) &&
			!memcmp(d_o.strides, of.o, sizeof of.o) && stream_of(&k, &stream)) {
			if (make(&k, DIMS, k.q.sizes, of.d_q, k.dtype, &out[0]) && make(&k, DIMS, k.k.sizes, of.d_k, k.dtype, &out[1]) &&
				make(&k, DIMS, k.v.sizes, of.d_v, k.dtype, &out[2])) {
				const value all[] = {stack[3], stack[4], stack[5], stack[1], stack[2], stack[0], 0, out[0], out[1], out[2]};
				if (run(&of, of.backward, stream, 10, all)) {
					done(stack, 6, out, 3);
					return;
				}
			}
			drop(out, 3);
		}
	}
	leave("vkattn::python_backward", stack, keyed ? &k : NULL);
}

typedef int (*init_function)(const char *ns, const char *key, const char *file, uint32_t line, void **library);
typedef int (*impl_function)(void *library, const char *name, void (*)(value *, uint64_t, uint64_t));

/* Makes the operators of a dispatch key those of this file. It returns 0 if PyTorch has taken them. */
int vkattn_torch_register(const functions *of, init_function init, impl_function impl, const char *dispatch_key)
{
	void *library; /* it lives as long as the process */
	f = *of;
	return init("vkattn", dispatch_key, __FILE__, __LINE__, &library) || impl(library, "plain_forward", forward) ||
		impl(library, "plain_backward", backward);
}
