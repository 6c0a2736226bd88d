/* What the test programs share. */
#ifndef TEST_H
#define TEST_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vkattn.h>

#define REQUIRE(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, vkattn_last_error()); \
			exit(1); \
		} \
	} while (0)

#define OK(call) REQUIRE((call) == VKATTN_OK)

/* The call is refused, with a text that has the words. */
#define REFUSED(status, words, call) \
	do { \
		REQUIRE((call) == (status)); \
		REQUIRE(strstr(vkattn_last_error(), words)); \
	} while (0)

#define INVALID(words, call) REFUSED(VKATTN_ERROR_INVALID, words, call)

/* Numbers between -1 and 1. */
static inline float number(uint32_t i) { return (float)(i * 2654435761u >> 8 & 0xffff) / 32768.0f - 1.0f; }

static inline vkattn_tensor floats(size_t n)
{
	vkattn_tensor t = {.data = malloc(n * sizeof(float)), .bytes = n * sizeof(float)};
	for (size_t i = 0; i < n; i++)
		((float *)t.data)[i] = number((uint32_t)(i + n));
	return t;
}

#endif
