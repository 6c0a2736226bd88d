//go:build !windows

#define _GNU_SOURCE
#include "nccl.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(nccl_id) == 128 && sizeof(nccl_config) == 24, "layout of nccl.h");

#define POINTER(x) ((void *)(uintptr_t)(x))

nccl_api *nccl_open(const char *library, const char *driver, char **why)
{
	*why = NULL;
	void *l = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!l) {
		*why = strdup(dlerror());
		return NULL;
	}
	nccl_api *a = calloc(1, sizeof *a);
	const char *missing = NULL;
#define F(name, symbol, args) \
	a->name = (int(*) args)dlsym(l, symbol); \
	if (!a->name && !missing) \
		missing = symbol;
	NCCL_FUNCTIONS(F)
#undef F
	a->GetErrorString = (const char *(*)(int))dlsym(l, "ncclGetErrorString");
	if (missing) {
		if (asprintf(why, "it has no %s: NCCL 2.14 or newer is needed", missing) < 0)
			*why = strdup("functions are missing");
		free(a);
		dlclose(l);
		return NULL;
	}
	void *cuda = dlopen(driver, RTLD_NOW | RTLD_LOCAL);
	if (cuda) {
		a->CtxPush = (int (*)(void *))dlsym(cuda, "cuCtxPushCurrent_v2");
		a->CtxPop = (int (*)(void **))dlsym(cuda, "cuCtxPopCurrent_v2");
	}
	return a;
}

// with(context, call): the result of call with the context current; context 0: call as it is.
#define with(context, call) \
	({ \
		int r_ = 0; \
		if (context) \
			r_ = !a->CtxPush || !a->CtxPop ? 100 /* CUDA_ERROR_NO_DEVICE */ : a->CtxPush(POINTER(context)); \
		if (r_) { \
			r_ = -r_; \
		} else { \
			r_ = (call); \
			void *was_; \
			if (context) \
				a->CtxPop(&was_); \
		} \
		r_; \
	})

int nccl_version(const nccl_api *a, int *version) { return a->GetVersion(version); }

int nccl_unique_id(const nccl_api *a, nccl_id *id) { return a->GetUniqueId(id); }

int nccl_init(const nccl_api *a, uint64_t context, const nccl_id *id, int rank, int ranks, uint64_t *comm)
{
	nccl_config config = {sizeof config, NCCL_API_MAGIC, NCCL_CONFIG_VERSION, 0};
	void *c = NULL;
	int r = with(context, a->CommInitRankConfig(&c, ranks, *id, rank, &config));
	*comm = (uint64_t)(uintptr_t)c;
	return r;
}

// A group belongs to a thread: it begins and ends in one call from Go.
static int group(const nccl_api *a, uint64_t comm, uint64_t stream, const nccl_message *list, int n)
{
	int r = a->GroupStart();
	if (r != NCCL_SUCCESS)
		return r;
	for (int i = 0; i < n && (r == NCCL_SUCCESS || r == NCCL_IN_PROGRESS); i++) {
		const nccl_message *m = list + i;
		if (m->send)
			r = a->Send(POINTER(m->address), m->bytes, NCCL_INT8, m->peer, POINTER(comm), POINTER(stream));
		else
			r = a->Recv(POINTER(m->address), m->bytes, NCCL_INT8, m->peer, POINTER(comm), POINTER(stream));
	}
	int end = a->GroupEnd();
	return r == NCCL_SUCCESS || r == NCCL_IN_PROGRESS ? end : r;
}

int nccl_exchange(const nccl_api *a, uint64_t context, uint64_t comm, uint64_t stream, const nccl_message *list, int n)
{
	return with(context, group(a, comm, stream, list, n));
}

int nccl_all_gather(const nccl_api *a, uint64_t context, uint64_t comm, uint64_t stream, uint64_t send, uint64_t receive, uint64_t bytes)
{
	return with(context, a->AllGather(POINTER(send), POINTER(receive), bytes, NCCL_INT8, POINTER(comm), POINTER(stream)));
}

int nccl_async_error(const nccl_api *a, uint64_t comm, int *error) { return a->CommGetAsyncError(POINTER(comm), error); }

int nccl_abort(const nccl_api *a, uint64_t context, uint64_t comm) { return with(context, a->CommAbort(POINTER(comm))); }

int nccl_who(const nccl_api *a, uint64_t comm, int *rank, int *ranks)
{
	int r = a->CommUserRank(POINTER(comm), rank);
	return r == NCCL_SUCCESS ? a->CommCount(POINTER(comm), ranks) : r;
}

const char *nccl_error(const nccl_api *a, int code) { return a->GetErrorString ? a->GetErrorString(code) : NULL; }
