/* What the C and the Go side of the library share. */
#ifndef CALLS_H
#define CALLS_H

#include "vkattn.h"

#include <stdlib.h>

enum { KIND_DEVICE, KIND_OP, KIND_BUFFER, KIND_STREAM, KIND_REQUIREMENTS, KIND_CALL, KIND_APPEND };

void vka_keep_error(char *text); /* which it frees */
void vka_at_exit(void);
int vka_call_run(vkattn_call call, vkattn_stream stream, const void *const *data); /* 0: it is left to Go */

/* What call.c needs of an object to work without Go. Go writes it, under the locks of the object. */
typedef struct vka_slot {
	uint64_t key;   /* twice the number of the object, plus one of a stream; 0: C leaves the object to Go */
	uint32_t users; /* threads that are in here. Of a stream at most one, which excludes those in Go */
	uint32_t reserved;
	void *data;     /* vka_stream or vka_recipe */
} vka_slot;

enum { SLOTS = 4096 }; /* an object has the slot of its number modulo this, if no other object has it */
extern vka_slot vka_slots[SLOTS];

typedef struct vka_stream {
	uint64_t device; /* number of its object */
	uint64_t handle; /* CUstream */
	uint64_t workspace, workspace_bytes;
	uint64_t captured; /* a CUDA graph may have the workspace already */
} vka_stream;

enum { CALL_TENSORS = 10, CALL_MAPS = 4, CALL_ADDRESSES = 20, CALL_WORDS = 64 };

/* A word or a tensor map that is an address: of a tensor, or of the workspace if `of` is CALL_TENSORS. */
typedef struct vka_address {
	uint32_t word, of;
	uint64_t offset;
} vka_address;

typedef struct vka_map {
	vka_address base;
	uint64_t dims[4], strides[3];
	uint32_t box[4];
	int32_t kind, swizzle;
} vka_map;

typedef struct vka_launch {
	uint64_t function;
	uint32_t grid[3], threads, shared, early, maps, words, addresses, reserved;
	uint64_t params[CALL_WORDS];
	vka_address address[CALL_ADDRESSES];
	vka_map map[CALL_MAPS];
} vka_launch;

/* The launches of a call, but for the addresses of its tensors. The functions are the driver's. */
typedef struct vka_recipe {
	uint64_t device;
	uint64_t context, push, pop, encode, launch, launch_ex, is_captured;
	uint64_t workspace;           /* bytes */
	uint64_t bytes[CALL_TENSORS]; /* 0: the call has none */
	uint32_t outputs;             /* a bit for each tensor that the call writes */
	int32_t v_is_k;               /* whether V and K have one address; -1: either */
	uint64_t count;
	vka_launch list[];
} vka_recipe;

#endif
