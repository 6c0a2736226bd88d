#include "host.h"

#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#include <windows.h>
typedef SRWLOCK mutex;
#define mutex_init(m) InitializeSRWLock(m)
#define mutex_lock(m) AcquireSRWLockExclusive(m)
#define mutex_unlock(m) ReleaseSRWLockExclusive(m)
#define mutex_destroy(m) ((void)(m))
#else
#include <pthread.h>
typedef pthread_mutex_t mutex;
#define mutex_init(m) pthread_mutex_init(m, NULL)
#define mutex_lock(m) pthread_mutex_lock(m)
#define mutex_unlock(m) pthread_mutex_unlock(m)
#define mutex_destroy(m) pthread_mutex_destroy(m)
#endif

/* Messages arrive on whatever thread Vulkan was called from, driver threads
 * included. They are queued here rather than handed to Go at once: a callback
 * into Go from a foreign thread would need a Go thread set up under a layer's
 * locks. */

enum { MAX_QUEUED = 4096 }; /* later ones are dropped: the first ones matter */

struct message {
	struct message *next;
	uint32_t severity;
	int32_t number;
	char *id, *text;
};

struct vka_messages {
	mutex lock;
	struct message *first, **last;
	uint32_t unread;
};

vka_messages *vka_messages_new(void)
{
	vka_messages *q = calloc(1, sizeof *q);
	if (!q)
		return NULL;
	mutex_init(&q->lock);
	q->last = &q->first;
	return q;
}

void vka_messages_free(vka_messages *q)
{
	if (!q)
		return;
	while (q->first) {
		struct message *m = q->first;
		q->first = m->next;
		free(m->id);
		free(m->text);
		free(m);
	}
	mutex_destroy(&q->lock);
	free(q);
}

uint32_t *vka_messages_unread(vka_messages *q)
{
	return &q->unread;
}

/* Copies s to end and returns the new end. Windows has no stpcpy. */
static char *append(char *end, const char *s)
{
	size_t n = strlen(s);
	memcpy(end, s, n + 1);
	return end + n;
}

/* The text, followed by the names that objects were given. */
static char *with_names(const VkDebugUtilsMessengerCallbackDataEXT *data)
{
	const char *text = data->pMessage ? data->pMessage : "";
	size_t size = strlen(text) + 1;
	for (uint32_t i = 0; i < data->objectCount; i++)
		if (data->pObjects[i].pObjectName)
			size += strlen(data->pObjects[i].pObjectName) + 3;
	char *out = malloc(size), *end = out;
	if (!out)
		return NULL;
	end = append(end, text);
	for (uint32_t i = 0; i < data->objectCount; i++)
		if (data->pObjects[i].pObjectName)
			end = append(append(append(end, " ["), data->pObjects[i].pObjectName), "]");
	return out;
}

VkBool32 vka_on_message(uint32_t severity, VkFlags types, const VkDebugUtilsMessengerCallbackDataEXT *data, void *user)
{
	vka_messages *q = user;
	(void)types;
	struct message *m = calloc(1, sizeof *m);
	if (!m)
		return 0;
	m->severity = severity;
	m->number = data->messageIdNumber;
	m->id = strdup(data->pMessageIdName ? data->pMessageIdName : "");
	m->text = with_names(data);
	mutex_lock(&q->lock);
	int keep = q->unread < MAX_QUEUED;
	if (keep) {
		*q->last = m;
		q->last = &m->next;
		__atomic_fetch_add(&q->unread, 1, __ATOMIC_RELEASE);
	}
	mutex_unlock(&q->lock);
	if (!keep) {
		free(m->id);
		free(m->text);
		free(m);
	}
	return 0; /* the call goes ahead */
}

int vka_messages_take(vka_messages *q, uint32_t *severity, int32_t *number, char **id, char **text)
{
	mutex_lock(&q->lock);
	struct message *m = q->first;
	if (m) {
		q->first = m->next;
		if (!q->first)
			q->last = &q->first;
		__atomic_fetch_sub(&q->unread, 1, __ATOMIC_RELEASE);
	}
	mutex_unlock(&q->lock);
	if (!m)
		return 0;
	*severity = m->severity;
	*number = m->number;
	*id = m->id;
	*text = m->text;
	free(m);
	return 1;
}
