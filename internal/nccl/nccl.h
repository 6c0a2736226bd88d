// The part of NCCL's interface that the package uses, as nccl.h of NCCL 2.14 and newer declares it. RCCL has the same.
#ifndef VKATTN_NCCL_H
#define VKATTN_NCCL_H

#include <stddef.h>
#include <stdint.h>

enum {
	NCCL_SUCCESS = 0,
	NCCL_IN_PROGRESS = 7,
	NCCL_INT8 = 0, // ncclDataType_t
	NCCL_API_MAGIC = 0xcafebeef,
	NCCL_CONFIG_VERSION = 21400, // of the layout below: newer libraries add the rest themselves
};

typedef struct {
	char internal[128];
} nccl_id; // ncclUniqueId; passed by value

typedef struct {
	size_t size;
	unsigned magic, version;
	int blocking;
} nccl_config; // ncclConfig_t of 2.14

#define NCCL_FUNCTIONS(F) \
	F(GetVersion, "ncclGetVersion", (int *)) \
	F(GetUniqueId, "ncclGetUniqueId", (nccl_id *)) \
	F(CommInitRankConfig, "ncclCommInitRankConfig", (void **, int, nccl_id, int, nccl_config *)) \
	F(CommAbort, "ncclCommAbort", (void *)) \
	F(CommGetAsyncError, "ncclCommGetAsyncError", (void *, int *)) \
	F(CommCount, "ncclCommCount", (void *, int *)) \
	F(CommUserRank, "ncclCommUserRank", (void *, int *)) \
	F(Send, "ncclSend", (const void *, size_t, int, int, void *, void *)) \
	F(Recv, "ncclRecv", (void *, size_t, int, int, void *, void *)) \
	F(AllGather, "ncclAllGather", (const void *, void *, size_t, int, void *, void *)) \
	F(GroupStart, "ncclGroupStart", (void)) \
	F(GroupEnd, "ncclGroupEnd", (void))

typedef struct {
#define F(name, symbol, args) int(*name) args;
	NCCL_FUNCTIONS(F)
#undef F
	const char *(*GetErrorString)(int);
	// Of the CUDA driver: they make the communicator's context current on this thread.
	int (*CtxPush)(void *);
	int (*CtxPop)(void **);
} nccl_api;

// A message of a group.
typedef struct {
	uint64_t address, bytes;
	int32_t peer, send;
} nccl_message;

nccl_api *nccl_open(const char *library, const char *driver, char **why);
// Results of the CUDA driver are returned as -CUresult.
int nccl_init(const nccl_api *a, uint64_t context, const nccl_id *id, int rank, int ranks, uint64_t *comm);
int nccl_exchange(const nccl_api *a, uint64_t context, uint64_t comm, uint64_t stream, const nccl_message *list, int n);
int nccl_all_gather(const nccl_api *a, uint64_t context, uint64_t comm, uint64_t stream, uint64_t send, uint64_t receive, uint64_t bytes);
int nccl_async_error(const nccl_api *a, uint64_t comm, int *error);
int nccl_abort(const nccl_api *a, uint64_t context, uint64_t comm);
int nccl_who(const nccl_api *a, uint64_t comm, int *rank, int *ranks);
int nccl_version(const nccl_api *a, int *version);
int nccl_unique_id(const nccl_api *a, nccl_id *id);
const char *nccl_error(const nccl_api *a, int code);

#endif
