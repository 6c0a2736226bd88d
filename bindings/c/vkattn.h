/* vkattn.h: exact attention, forward and gradients, on Vulkan and CUDA devices and on the CPU.
 *
 * docs/c.md shows how to use it and says what it guarantees. In short:
 *
 *   - A call returns VKATTN_OK, or an error whose text vkattn_last_error returns on the same
 *     thread. It has then written nothing. Wrong handles, sizes and pointers that are NULL
 *     are errors.
 *   - A handle is a number that is never used again. NULL is no handle, and destroying NULL
 *     does nothing. Any thread may use any handle; two that cannot use it at once get
 *     VKATTN_ERROR_BUSY.
 *   - A struct with a member `size` is set to zero, but for size = sizeof the struct. A zero
 *     in any other member is its default. The library keeps no pointer of a call.
 */
#ifndef VKATTN_H
#define VKATTN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A program runs with every library of the ABI that it was compiled for. */
#define VKATTN_ABI 1
int32_t vkattn_abi(void);

typedef enum vkattn_status {
	VKATTN_OK = 0,
	VKATTN_ERROR_INVALID = 1,       /* a wrong argument, or a handle that is none or was destroyed */
	VKATTN_ERROR_UNSUPPORTED = 2,   /* well-formed, but the device or the tier cannot compute it */
	VKATTN_ERROR_NO_DEVICE = 3,     /* no Vulkan loader, no device, or none of that name */
	VKATTN_ERROR_OUT_OF_MEMORY = 4, /* the text has the needed and the available bytes */
	VKATTN_ERROR_DEVICE_LOST = 5,
	VKATTN_ERROR_TIMEOUT = 6,
	VKATTN_ERROR_BUSY = 7,          /* another thread is in a call that excludes this one */
	VKATTN_ERROR_PROCESS = 8,       /* in the child of a fork, or while the process exits */
	VKATTN_ERROR_INTERNAL = 9       /* a fault of the library */
} vkattn_status;

/* The text of the last error on this thread, until the next error on it; "" if there was none. */
const char *vkattn_last_error(void);

/* Devices, operations, memory, streams, and what a device has to be created with. */
typedef struct vkattn_device_t *vkattn_device;
typedef struct vkattn_op_t *vkattn_op;
typedef struct vkattn_call_t *vkattn_call;
typedef struct vkattn_append_t *vkattn_append;
typedef struct vkattn_buffer_t *vkattn_buffer;
typedef struct vkattn_stream_t *vkattn_stream;
typedef struct vkattn_requirements_t *vkattn_requirements;

/* Values of members of type int32_t. */
/* dtype */
enum { VKATTN_F16 = 0, VKATTN_BF16 = 1, VKATTN_F32 = 2 };
/* causal, align */
enum { VKATTN_CAUSAL_NONE = 0, VKATTN_TOP_LEFT = 1, VKATTN_BOTTOM_RIGHT = 2 };
/* kv_block: a scale for each KV head, of all sequences: [Hkv]; one scale: [1] */
enum { VKATTN_KV_BLOCK_HEAD = -1, VKATTN_KV_BLOCK_TENSOR = -2 };
/* key_type, value_type */
enum {
    VKATTN_KV_SAME = 0,
    VKATTN_KV_INT8 = 1,
    VKATTN_KV_FP8 = 2, /* e4m3 */
    VKATTN_KV_Q8_0 = 3,
    VKATTN_KV_Q4_0 = 4,
    VKATTN_KV_Q4_1 = 5,
    VKATTN_KV_Q5_0 = 6,
    VKATTN_KV_Q5_1 = 7,
    VKATTN_KV_IQ4_NL = 8,
    VKATTN_KV_FP8_E5M2 = 9,
    VKATTN_KV_FP8_DS_MLA = 10 /* rows of 656 bytes of latent attention; V is the tensor of K */
};
/* access */
enum { VKATTN_ACCESS_AUTO = 0, VKATTN_ADDRESSES = 1, VKATTN_DESCRIPTORS = 2 };
/* tuning */
enum { VKATTN_TUNING_AUTO = 0, VKATTN_TUNING_OFF = 1, VKATTN_TUNING_ON = 2 };
/* tier */
enum {
	VKATTN_TIER_AUTO = 0,
	VKATTN_TIER_CPU = 1,
	VKATTN_TIER_SCALAR = 2,
	VKATTN_TIER_COOPMAT = 3,
	VKATTN_TIER_COOPMAT2 = 4,
	VKATTN_TIER_CUBIN = 5,
	VKATTN_TIER_CUDA = 6,
	VKATTN_TIER_NO_CUDA = 7
};

/* ---- Devices ---- */

typedef struct vkattn_device_options {
	size_t size;
	const char *device;         /* index, UUID or part of a name of a Vulkan device; NULL: the best GPU, or the CPU */
	int32_t cpu;                /* 1: the CPU even where there is a GPU */
	int32_t validation;         /* 1: load VK_LAYER_KHRONOS_validation, which prints to standard error */
	const char *pipeline_cache; /* folder of compiled pipelines; NULL: in the user's cache; "off": none */
	int64_t timeout_ms;         /* a wait without a timeout of its own ends after this; 0: 30 s without progress */
} vkattn_device_options;

/* Opens a device. options may be NULL. */
vkattn_status vkattn_device_open(const vkattn_device_options *options, vkattn_device *device);

enum { VKATTN_DEVICE_CPU = 0, VKATTN_DEVICE_VULKAN = 1, VKATTN_DEVICE_CUDA = 2 };

typedef struct vkattn_device_info {
	size_t size;
	int32_t kind;       /* VKATTN_DEVICE_... */
	int32_t wrapped;    /* 1: vkattn_device_wrap_vulkan made it */
	char name[256];
	char why_cpu[1024]; /* why vkattn_device_open took the CPU */
} vkattn_device_info;

vkattn_status vkattn_device_get_info(vkattn_device device, vkattn_device_info *info);

/* Waits for the calls without a stream. UINT64_MAX: without a timeout. */
vkattn_status vkattn_device_wait(vkattn_device device, uint64_t timeout_ns);

/* Destroys a device with its operations, buffers and streams. It waits for work in flight. */
vkattn_status vkattn_device_destroy(vkattn_device device);

/* ---- Memory ---- */

/* Memory of the device, of zeros. Reads and writes come after earlier calls without a stream, and wait for them. */
vkattn_status vkattn_buffer_create(vkattn_device device, uint64_t bytes, vkattn_buffer *buffer);
vkattn_status vkattn_buffer_write(vkattn_buffer buffer, uint64_t at, const void *from, uint64_t bytes);
vkattn_status vkattn_buffer_read(vkattn_buffer buffer, uint64_t at, void *to, uint64_t bytes);
vkattn_status vkattn_buffer_destroy(vkattn_buffer buffer);

/* A tensor [batch, heads, rows, dim], in a buffer or in host memory: bytes of it at data. In a call on a stream of CUDA,
 * data is memory of the device. */
typedef struct vkattn_tensor {
	vkattn_buffer buffer;
	void *data;
	uint64_t bytes;        /* of data */
	int64_t offset;        /* of the first element, in elements */
	int64_t stride_batch;  /* in elements; all three 0: packed */
	int64_t stride_head;
	int64_t stride_row;
	int64_t expanded;      /* 1: strides of 0 are meant, one row stands for all */
} vkattn_tensor;

/* Contiguous int32_t or float, as the member says. */
typedef struct vkattn_vector {
	vkattn_buffer buffer;
	void *data;
	uint64_t bytes;
	int64_t offset;
} vkattn_vector;

/* ---- Operations ---- */

/* A table that a modifier reads. */
typedef struct vkattn_table_type {
	const char *name;
	int32_t rank;     /* axes */
	int32_t is_float; /* 1: float, 0: int32_t */
} vkattn_table_type;

/* What to compute, except for sizes. */
typedef struct vkattn_config {
	size_t size;
	int32_t dtype;            /* of Q, K, V and O */
	int32_t head_dim;         /* elements of a row of Q and K */
	int32_t head_dim_v;       /* of V and O; 0: head_dim */
	int32_t causal;
	int32_t has_scale;        /* 0: the scale is 1/sqrt(head_dim) */
	float scale;
	int32_t tier;
	int32_t access;           /* how Vulkan kernels reach tensors */
	int32_t tuning;
	int32_t has_window;       /* 1: a row attends to window_left keys before it and window_right after it; -1: all */
	int32_t window_left;
	int32_t window_right;
	int32_t attention_chunk;  /* keys of a chunk; 0: no chunks */
	int32_t align;            /* of rows with keys for a window and ALiBi without a causal mask */
	float softcap;            /* 0: none */
	float dropout;            /* probability, below 1 */
	int32_t key_type;         /* storage type of K */
	int32_t value_type;       /* of V: as K, or both of types with scales, or both of blocks */
	int32_t kv_block;         /* keys of an entry of k_scale and v_scale, or VKATTN_KV_BLOCK_...; 0: 1 */
	int32_t fixed_split;      /* splits of the keys; 0: as many as keep the device busy */
	int32_t f32_o;            /* 1: O is float */
	int32_t f32_gradients;    /* 1: d_q, d_k and d_v are float */
	int32_t check;            /* 1: read lengths, pages and offsets in device memory, and refuse wrong ones */
	const char *score_mod;    /* expressions: docs/modifiers.md */
	const char *mask_mod;
	const vkattn_table_type *tables; /* that the expressions read */
	size_t table_count;
	const char *kernel;       /* "fa3", "fa2" or "ref" with VKATTN_TIER_CUDA */
} vkattn_config;

/* Makes an operation. The error names what each tier of the device lacks. */
vkattn_status vkattn_op_create(vkattn_device device, const vkattn_config *config, vkattn_op *op);
vkattn_status vkattn_op_destroy(vkattn_op op);

typedef struct vkattn_shape {
	int64_t b;   /* batch */
	int64_t hq;  /* query heads */
	int64_t hkv; /* key heads, a divisor of hq; 0: hq */
	int64_t sq;  /* query rows */
	int64_t sk;  /* keys */
} vkattn_shape;

typedef struct vkattn_varlen {
	size_t size;
	vkattn_vector cu_q;     /* int32 [B+1], cumulative: Q, O and LSE are packed [1, heads, total_q, dim] */
	vkattn_vector cu_k;
	int64_t total_q;
	int64_t total_k;
	vkattn_vector used_q;   /* int32 [B]: rows in use */
	vkattn_vector used_k;
} vkattn_varlen;

typedef struct vkattn_pages {
	size_t size;
	vkattn_vector table;    /* int32 [B, stride]: the block table */
	int64_t stride;         /* 0: as many as sk needs */
	int64_t page_size;      /* keys of a page */
	int64_t count;          /* pages: K and V are [count, Hkv, page_size, dim] */
} vkattn_pages;

typedef struct vkattn_sparse_tokens {
	size_t size;
	vkattn_vector offsets;  /* int32 [lists+1]: list n is tokens[offsets[n]] to tokens[offsets[n+1]-1] */
	vkattn_vector tokens;   /* int32 [total]; a negative one pads a list */
	int64_t total;
	int64_t top_k;          /* tokens of every list, without offsets; total may be 0 then */
	int32_t per_row;        /* 1: a list for each query row and KV head, 0: for each sequence and KV head */
} vkattn_sparse_tokens;

typedef struct vkattn_blocks {
	size_t size;
	vkattn_vector map;      /* uint32 [batches, heads, ceil(Sq/block_q), ceil(ceil(Sk/block_k)/32)] */
	int64_t block_q;
	int64_t block_k;
	int64_t batches;
	int64_t heads;
} vkattn_blocks;

typedef struct vkattn_bias {
	size_t size;
	vkattn_tensor tensor;   /* [batches, heads, rows, Sk], each 1, or 0 for B, Hq and Sq */
	int64_t dtype;
	int64_t batches;
	int64_t heads;
	int64_t rows;
} vkattn_bias;

typedef struct vkattn_mask {
	size_t size;
	vkattn_tensor tensor;   /* bytes [batches, heads, rows, Sk]: 0 excludes */
	int64_t batches;
	int64_t heads;
	int64_t rows;
} vkattn_mask;

typedef struct vkattn_table {
	vkattn_vector vector;
	const char *name;
	int64_t dims[3];        /* 0 behind the last axis */
} vkattn_table;

/* The tensors of a call. All lie in buffers, or all at data. */
typedef struct vkattn_args {
	size_t size;
	vkattn_shape shape;
	vkattn_tensor q;        /* [B, Hq,  Sq, head_dim] */
	vkattn_tensor k;        /* [B, Hkv, Sk, head_dim] */
	vkattn_tensor v;        /* [B, Hkv, Sk, head_dim_v] */
	vkattn_tensor o;        /* [B, Hq,  Sq, head_dim_v] */
	vkattn_tensor lse;      /* float [B, Hq, Sq], packed; optional */
	const vkattn_varlen *varlen;             /* NULL: none; so for the others */
	const vkattn_pages *pages;
	const vkattn_sparse_tokens *sparse_tokens;
	const vkattn_blocks *blocks;
	const vkattn_bias *bias;
	const vkattn_mask *mask;
	vkattn_vector alibi;    /* float [Hq], or [B, Hq] with alibi_per_sequence */
	vkattn_vector sinks;    /* float [Hq] */
	const vkattn_table *tables;
	size_t table_count;
	uint64_t dropout_seed;
	uint64_t dropout_offset;
	vkattn_vector k_scale;  /* float: scales of int8, fp8 and fp8_e5m2 */
	vkattn_vector v_scale;
	vkattn_vector dropout_state; /* uint64_t [2], a seed and an offset that are added to those above; tiers cpu and cuda */
	vkattn_vector max_logits;    /* output: float [Hq], the largest score of each head; tiers cpu and cuda */
	int32_t alibi_per_sequence;  /* 1: alibi is [B, Hq] */
} vkattn_args;

typedef struct vkattn_backward_args {
	size_t size;
	const vkattn_args *forward; /* with O and LSE as the forward call has written them */
	vkattn_tensor d_o;          /* gradient of O */
	vkattn_tensor d_lse;        /* optional gradient of LSE */
	vkattn_tensor d_q;          /* gradients to compute, each optional */
	vkattn_tensor d_k;
	vkattn_tensor d_v;
	vkattn_tensor d_bias;       /* float */
	vkattn_vector d_sinks;      /* float [Hq] */
	int32_t accumulate;         /* 1: add to d_q, d_k and d_v */
	int32_t partial_keys;       /* 1: O and LSE are of more keys than K and V hold */
	const vkattn_table *d_tables; /* float, of the tables whose gradients are computed; dims may be 0 */
	size_t d_table_count;
} vkattn_backward_args;

/* Computes O and LSE, or the gradients.
 *
 * In buffers without a stream (NULL) the call begins at once, after the calls before it:
 * vkattn_buffer_read and vkattn_device_wait wait for it. On a stream of a command buffer it
 * is recorded, on one of CUDA it begins at once, behind the stream's work. In host memory the call is done when it returns; a GPU gets copies. */
vkattn_status vkattn_op_forward(vkattn_op op, vkattn_stream stream, const vkattn_args *args);
vkattn_status vkattn_op_backward(vkattn_op op, vkattn_stream stream, const vkattn_backward_args *args);

/* Compiles what a call like args needs, so that it does not wait for a compiler. On a CUDA device it allocates the
 * workspace of a backward call too, and data may be memory of the device; so for plans. */
vkattn_status vkattn_op_prepare(vkattn_op op, const vkattn_args *args);
vkattn_status vkattn_op_prepare_backward(vkattn_op op, const vkattn_backward_args *args);

/* A call that is made again and again, where only the addresses of its tensors change, such as that of a layer of a model. It
 * computes and refuses what vkattn_op_forward or vkattn_op_backward does, and takes the host a fraction of the time on a
 * stream of CUDA from the second run on. args has no buffer and no option, and data of a tensor says only whether the call
 * has the tensor. */
vkattn_status vkattn_call_create_forward(vkattn_op op, const vkattn_args *args, vkattn_call *call);
vkattn_status vkattn_call_create_backward(vkattn_op op, const vkattn_backward_args *args, vkattn_call *call);
vkattn_status vkattn_call_destroy(vkattn_call call);

/* Runs a call. data has the addresses of q, k, v, o and lse, and of a backward call of d_o, d_lse, d_q, d_k and d_v too, in
 * this order. The library does not read those of tensors that the call does not have. */
vkattn_status vkattn_call_run(vkattn_call call, vkattn_stream stream, const void *const *data);

/* How a call would be computed. */
typedef struct vkattn_plan {
	size_t size;
	int32_t tier;
	int32_t splits;
	uint64_t flops;
	uint64_t bytes;           /* of the tensors */
	uint64_t workspace_bytes; /* device memory in addition to the tensors */
	char text[2048];          /* the tier, the kernel, and why faster tiers do not run it */
} vkattn_plan;

vkattn_status vkattn_op_plan(vkattn_op op, const vkattn_args *args, vkattn_plan *plan);
vkattn_status vkattn_op_plan_backward(vkattn_op op, const vkattn_backward_args *args, vkattn_plan *plan);

/* ---- Appending to a KV cache ---- */

/* style: elements 2 i and 2 i + 1 of those that are rotated are a pair, or i and i + dim / 2 */
enum { VKATTN_ROTARY_INTERLEAVED = 0, VKATTN_ROTARY_HALF_SPLIT = 1 };

/* Rotary embedding: pair i of a row at position t, x and y, becomes x cos[t, i] - y sin[t, i] and y cos[t, i] + x sin[t, i]. */
typedef struct vkattn_rotary {
	int32_t dim;   /* elements that are rotated; 0: none */
	int32_t first; /* the first of them */
	int32_t style;
} vkattn_rotary;

typedef struct vkattn_append_config {
	size_t size;
	int32_t dtype;            /* of new rows and Q, and of a cache of VKATTN_KV_SAME */
	int32_t head_dim;
	int32_t head_dim_v;
	int32_t key_type;         /* storage types of the cache, as in vkattn_config */
	int32_t value_type;
	int32_t kv_block;         /* of types with scales: 0: it finds a scale of each row; VKATTN_KV_BLOCK_...: it reads them */
	vkattn_rotary rotary;     /* of K and Q */
	int32_t cos_sin_of_dtype; /* 1: cos and sin are of dtype, 0: float */
	int32_t access;
	int32_t check;            /* as in vkattn_config */
} vkattn_append_config;

/* The tensors of an append. All lie in buffers, or all at data. */
typedef struct vkattn_append_args {
	size_t size;
	int64_t b;              /* sequences */
	int64_t hkv;            /* heads of K and V */
	int64_t hq;             /* of Q, a multiple of hkv */
	int64_t new_rows;       /* of each sequence; ignored with cu_new */
	vkattn_tensor k;        /* [B, Hkv, new_rows, head_dim] */
	vkattn_tensor v;        /* [B, Hkv, new_rows, head_dim_v]; v and v_cache are optional */
	vkattn_vector used_new; /* int32 [B]: new rows that exist; optional */
	vkattn_vector cu_new;   /* int32 [B+1], cumulative: K, V and Q are packed [1, heads, total_new, dim]; optional */
	int64_t total_new;
	vkattn_tensor k_cache;  /* [B, Hkv, capacity, head_dim]; with pages [count, Hkv, page_size, head_dim] */
	vkattn_tensor v_cache;
	int64_t capacity;       /* keys that a sequence may have; with pages 0: as many as the block table has room for */
	const vkattn_pages *pages;
	vkattn_vector used;     /* int32 [B]: keys that the cache has; new row i goes to position used + i; without it all are 0 */
	vkattn_vector k_scale;  /* float, of types with scales: [B, Hkv, capacity], with pages [count, Hkv, page_size] */
	vkattn_vector v_scale;
	vkattn_vector cos;      /* [positions, rotary.dim / 2] */
	vkattn_vector sin;
	int64_t positions;
	vkattn_tensor q;        /* [B, Hq, new_rows, head_dim], rotated as K's row of the same number into q_out; optional */
	vkattn_tensor q_out;    /* may be q */
	int64_t rows_q;         /* rows of Q, if they are not the new rows; not with cu_new */
	int32_t q_at_used;      /* 1: all rows of Q are rotated as at position used */
	int32_t shard;          /* 1: the cache holds a part of each sequence: rows outside of it are no mistake */
} vkattn_append_args;

/* Makes an operation that appends, and compiles its kernels. */
vkattn_status vkattn_append_create(vkattn_device device, const vkattn_append_config *config, vkattn_append *append);
vkattn_status vkattn_append_destroy(vkattn_append append);

/* Writes new rows of K and V behind the keys that a cache has, and rotates Q, in the order of calls that vkattn_op_forward
 * has. It changes no lengths. Rows at positions outside of the cache are skipped; in host memory, where the CPU computes on every
 * device, they are an error. */
vkattn_status vkattn_append_forward(vkattn_append append, vkattn_stream stream, const vkattn_append_args *args);

/* ---- In a Vulkan program ---- */

/* Finds what a device must have for config on config->tier, which names scalar, coopmat, coopmat2 or cubin. */
vkattn_status vkattn_requirements_create(const vkattn_config *config, vkattn_requirements *requirements);
vkattn_status vkattn_requirements_destroy(vkattn_requirements requirements);

typedef struct vkattn_feature {
	const char *name;      /* such as "timelineSemaphore"; "": an extension without features */
	const char *structure; /* such as "VkPhysicalDeviceTimelineSemaphoreFeatures" */
	const char *extension; /* "": none */
	uint32_t core;         /* the Vulkan version that contains the extension; 0: none */
	uint32_t reserved;
} vkattn_feature;

typedef struct vkattn_limit {
	const char *name; /* such as "maxComputeSharedMemorySize" */
	uint64_t least;
} vkattn_limit;

/* Its memory lives until vkattn_requirements_destroy. */
typedef struct vkattn_requirements_info {
	size_t size;
	uint32_t api_version;           /* of the instance and the device, at least */
	uint32_t extension_count;
	const char *const *extensions;  /* VkDeviceCreateInfo.ppEnabledExtensionNames */
	void *features2;                /* VkDeviceCreateInfo.pNext: a filled VkPhysicalDeviceFeatures2 and its chain */
	const vkattn_feature *features; /* the same by name */
	size_t feature_count;
	const vkattn_limit *limits;
	size_t limit_count;
	const char *text;               /* a line for each requirement */
} vkattn_requirements_info;

/* api_version is the smaller of the versions of the instance and the device: newer ones contain some extensions. */
vkattn_status vkattn_requirements_get_info(vkattn_requirements requirements, uint32_t api_version,
	vkattn_requirements_info *info);

/* VKATTN_OK if a physical device supports them. The error lists all that it does not support. uuid is
 * VkPhysicalDeviceIDProperties.deviceUUID. */
vkattn_status vkattn_requirements_check(vkattn_requirements requirements, const uint8_t uuid[16]);

typedef struct vkattn_vulkan {
	size_t size;
	void *instance;                      /* VkInstance, and so on */
	void *physical_device;
	void *device;
	void *queue;                         /* of a family with compute */
	uint32_t queue_family;
	uint32_t api_version;                /* given to vkCreateInstance; 0: Vulkan 1.1 */
	vkattn_requirements requirements;    /* that the device was created with */
	void (*get_instance_proc_addr)(void); /* vkGetInstanceProcAddr; NULL: that of libvulkan.so.1 */
	const char *pipeline_cache;
	int64_t timeout_ms;
} vkattn_vulkan;

/* Makes a device of the caller's objects, which outlive it. The error lists all that is missing. */
vkattn_status vkattn_device_wrap_vulkan(const vkattn_vulkan *vulkan, vkattn_device *device);

/* A part of a VkBuffer of the caller with storage usage. buffer is (uint64_t)VkBuffer. address is the device
 * address of its first byte plus offset, or 0. */
vkattn_status vkattn_buffer_wrap_vulkan(vkattn_device device, uint64_t vk_buffer, uint64_t offset, uint64_t bytes,
	uint64_t address, vkattn_buffer *buffer);

/* A stream that records into a VkCommandBuffer in the recording state. The caller orders calls with barriers. */
vkattn_status vkattn_stream_wrap_vulkan(vkattn_device device, void *command_buffer, vkattn_stream *stream);

/* Records a barrier between what was recorded on the stream and what will be. */
vkattn_status vkattn_stream_barrier(vkattn_stream stream);

/* Begins to record again: after vkBeginCommandBuffer, when the command buffer has run. */
vkattn_status vkattn_stream_reset(vkattn_stream stream);

/* Frees what the commands use: when they have run, or will not run. On a stream of CUDA it waits if it frees memory. */
vkattn_status vkattn_stream_destroy(vkattn_stream stream);

/* ---- In a CUDA program ---- */

typedef struct vkattn_cuda {
	size_t size;
	const char *device; /* ordinal, or UUID as nvidia-smi prints it; NULL: the first, or that of context */
	void *context;      /* a CUcontext of the caller, which outlives the device; NULL: the device's primary context */
} vkattn_cuda;

/* Opens a CUDA device without Vulkan. It has tier cuda alone. */
vkattn_status vkattn_device_open_cuda(const vkattn_cuda *cuda, vkattn_device *device);

/* Memory of the caller at a CUdeviceptr of a CUDA device, which outlives the buffer. */
vkattn_status vkattn_buffer_wrap_cuda(vkattn_device device, uint64_t address, uint64_t bytes, vkattn_buffer *buffer);

/* A CUstream of the caller on a CUDA device, which outlives it; NULL: CUDA's default stream. Calls neither allocate nor
 * wait once one like them has been made on it, so that a CUDA graph can capture them. */
vkattn_status vkattn_stream_wrap_cuda(vkattn_device device, void *cuda_stream, vkattn_stream *stream);

#ifdef __cplusplus
}
#endif

#endif
