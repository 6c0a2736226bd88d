// A library with NCCL's interface for ranks that are threads of one process and whose "device" memory is the host's. It
// uses the types of the real header: an ID of 128 bytes by value, and a config that says its size and version. Work runs
// in the background, as with the real library's communicators that do not block: NCCL accepts a group when its ranks are
// connected, which the first messages between two ranks do, and the transfers run in the order of the stream. A send ends
// when its message has been received, as one does that is larger than NCCL's buffers.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char internal[128]; } ncclUniqueId;
typedef struct { size_t size; unsigned int magic, version; int blocking; } config;
enum { Success = 0, InvalidArgument = 4, RemoteError = 6, InProgress = 7 };
enum { MAX = 8, STREAMS = 64 };

typedef struct op { int send, peer; char *at; size_t bytes; struct op *next; } op;
typedef struct world { char id[128]; int ranks, joined, gone; op *queue[MAX][MAX]; long sent[MAX][MAX], taken[MAX][MAX]; struct world *next; } world;
typedef struct comm { world *w; int rank, ranks, state, error, ended, linked[MAX]; } comm;
typedef struct stream { uint64_t id; long issued, finished; } stream;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static world *worlds;
static int ids;
static stream streams[STREAMS];
static int stuck;
static __thread op *list;
static __thread comm *of;
static __thread void *on;

static stream *stream_of(uint64_t id)
{
	for (int i = 0; i < STREAMS; i++)
		if (streams[i].id == id || !streams[i].issued)
			return streams[i].id = id, streams + i;
	abort();
}

// ---- what a test asks for ----

// The groups of a stream that were added to it, and those that have finished.
long fake_groups(uint64_t id, int finished)
{
	pthread_mutex_lock(&mu);
	stream *s = stream_of(id);
	long n = finished ? s->finished : s->issued;
	pthread_mutex_unlock(&mu);
	return n;
}

static comm *latest[MAX];

// The last communicator of a rank meets an asynchronous error.
void fake_error(int rank, int code)
{
	pthread_mutex_lock(&mu);
	latest[rank]->error = code;
	pthread_mutex_unlock(&mu);
}

// The last communicator of a rank.
void *fake_comm(int rank) { return latest[rank]; }

// Transfers do not finish, not even after an abort.
void fake_stuck(int on)
{
	pthread_mutex_lock(&mu);
	stuck = on;
	pthread_cond_broadcast(&cond);
	pthread_mutex_unlock(&mu);
}

// ---- the library ----

int ncclGetVersion(int *v) { return *v = 22803, Success; }
const char *ncclGetErrorString(int r) { return r == RemoteError ? "remote process exited or there was a network error" : "invalid argument"; }

int ncclGetUniqueId(ncclUniqueId *id)
{
	pthread_mutex_lock(&mu);
	memset(id, 0x5a, sizeof *id);
	id->internal[127] = (char)++ids; // the last byte: all 128 have to arrive
	pthread_mutex_unlock(&mu);
	return Success;
}

static void *join(void *arg)
{
	comm *c = arg;
	pthread_mutex_lock(&mu);
	c->w->joined++;
	pthread_cond_broadcast(&cond);
	while (c->w->joined < c->ranks && !c->ended)
		pthread_cond_wait(&cond, &mu);
	c->state = Success;
	pthread_mutex_unlock(&mu);
	return NULL;
}

static void background(void *(*f)(void *), void *arg)
{
	pthread_t t;
	pthread_create(&t, NULL, f, arg);
	pthread_detach(t);
}

int ncclCommInitRankConfig(void **out, int ranks, ncclUniqueId id, int rank, config *k)
{
	if (k->size != 24 || k->magic != 0xcafebeef || k->version != 21400 || k->blocking || ranks > MAX)
		return InvalidArgument;
	pthread_mutex_lock(&mu);
	world *w = worlds;
	while (w && memcmp(w->id, id.internal, 128))
		w = w->next;
	if (!w) {
		w = calloc(1, sizeof *w);
		memcpy(w->id, id.internal, 128);
		w->next = worlds, worlds = w;
	}
	comm *c = calloc(1, sizeof *c);
	*c = (comm){.w = w, .rank = rank, .ranks = ranks, .state = InProgress};
	latest[rank] = c;
	pthread_mutex_unlock(&mu);
	*out = c;
	background(join, c);
	return InProgress;
}

int ncclCommAbort(void *arg)
{
	comm *c = arg;
	pthread_mutex_lock(&mu);
	c->ended = 1, c->w->gone++;
	pthread_cond_broadcast(&cond);
	pthread_mutex_unlock(&mu);
	return Success;
}

int ncclCommGetAsyncError(void *arg, int *e)
{
	pthread_mutex_lock(&mu);
	comm *c = arg;
	*e = c->error ? c->error : c->state;
	pthread_mutex_unlock(&mu);
	return Success;
}
int ncclCommCount(void *arg, int *n) { return *n = ((comm *)arg)->ranks, Success; }
int ncclCommUserRank(void *arg, int *n) { return *n = ((comm *)arg)->rank, Success; }

int ncclGroupStart(void) { return list = NULL, of = NULL, on = NULL, Success; }

static int add(int send, void *at, size_t n, int type, int peer, comm *c, void *s)
{
	if (type != 0)
		return InvalidArgument;
	op **end = &list;
	while (*end)
		end = &(*end)->next;
	*end = malloc(sizeof **end);
	**end = (op){send, peer, at, n, NULL};
	of = c, on = s;
	return Success;
}
int ncclSend(const void *at, size_t n, int type, int peer, void *c, void *s) { return add(1, (void *)at, n, type, peer, c, s); }
int ncclRecv(void *at, size_t n, int type, int peer, void *c, void *s) { return add(0, at, n, type, peer, c, s); }

typedef struct { comm *c; op *list; stream *s; long turn; } work;

static void *run(void *arg)
{
	work *k = arg;
	comm *c = k->c;
	world *w = c->w;
	pthread_mutex_lock(&mu);
	int linked = 1;
	for (op *o = k->list; o; o = o->next)
		linked &= c->linked[o->peer];
	if (linked)
		c->state = Success;
	while (k->s->finished < k->turn)
		pthread_cond_wait(&cond, &mu);
	long sent[MAX] = {0};
	for (op *o = k->list; o && !c->ended; o = o->next) {
		if (!o->send)
			continue;
		sent[o->peer] = ++w->sent[c->rank][o->peer];
		op **end = &w->queue[c->rank][o->peer];
		while (*end)
			end = &(*end)->next;
		*end = malloc(sizeof **end);
		**end = (op){1, o->peer, memcpy(malloc(o->bytes + 1), o->at, o->bytes), o->bytes, NULL};
	}
	pthread_cond_broadcast(&cond);
	for (op *o = k->list; o; o = o->next) {
		op **from = &w->queue[o->peer][c->rank];
		c->linked[o->peer] = 1;
		if (o->send)
			continue;
		while (!*from && !w->gone && !c->ended)
			pthread_cond_wait(&cond, &mu);
		if (!*from || c->ended) {
			c->error = RemoteError;
			break;
		}
		op *got = *from;
		*from = got->next;
		memcpy(o->at, got->at, o->bytes);
		w->taken[o->peer][c->rank]++;
		pthread_cond_broadcast(&cond);
	}
	for (int peer = 0; peer < MAX; peer++)
		while (w->taken[c->rank][peer] < sent[peer] && !w->gone && !c->ended)
			pthread_cond_wait(&cond, &mu);
	while (stuck)
		pthread_cond_wait(&cond, &mu);
	c->state = Success;
	k->s->finished++;
	pthread_cond_broadcast(&cond);
	pthread_mutex_unlock(&mu);
	return NULL;
}

static int start(comm *c, op *ops, void *s)
{
	work *k = malloc(sizeof *k);
	pthread_mutex_lock(&mu);
	stream *x = stream_of((uint64_t)(uintptr_t)s);
	*k = (work){c, ops, x, x->issued++};
	c->state = InProgress;
	pthread_mutex_unlock(&mu);
	background(run, k);
	return InProgress;
}
int ncclGroupEnd(void) { return of ? start(of, list, on) : Success; }

int ncclAllGather(const void *send, void *receive, size_t n, int type, void *arg, void *s)
{
	comm *c = arg;
	ncclGroupStart();
	memcpy((char *)receive + c->rank * n, send, n);
	for (int r = 0; r < c->ranks; r++)
		if (r != c->rank) {
			add(1, (void *)send, n, type, r, c, s);
			add(0, (char *)receive + r * n, n, type, r, c, s);
		}
	return ncclGroupEnd();
}
