#include "host.h"

/* The clock of the host that devices are calibrated against. */

#ifdef _WIN32
#include <windows.h>

static uint64_t ticks(void)
{
	LARGE_INTEGER t;
	QueryPerformanceCounter(&t);
	return (uint64_t)t.QuadPart;
}

static uint64_t nanoseconds(uint64_t ticks)
{
	const uint64_t second = 1000000000;
	LARGE_INTEGER frequency;
	QueryPerformanceFrequency(&frequency);
	uint64_t f = (uint64_t)frequency.QuadPart;
	return ticks / f * second + ticks % f * second / f;
}
#else
#include <time.h>

static uint64_t ticks(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint64_t nanoseconds(uint64_t ticks) { return ticks; }
#endif

uint64_t vka_now(void)
{
	return nanoseconds(ticks());
}

VkResult vka_calibrate(vka_device *d, uint64_t *device_ticks, uint64_t *host_ns, uint64_t *deviation_ns, uint64_t *before, uint64_t *after)
{
	VkCalibratedTimestampInfoKHR infos[2] = {
		{.sType = VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_KHR, .timeDomain = VK_TIME_DOMAIN_DEVICE_KHR},
		{.sType = VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_KHR, .timeDomain = VKA_HOST_TIME_DOMAIN},
	};
	uint64_t stamps[2] = {0, 0};
	*before = nanoseconds(ticks());
	VkResult r = d->GetCalibratedTimestamps(d->handle, 2, infos, stamps, deviation_ns);
	*after = nanoseconds(ticks());
	*device_ticks = stamps[0];
	*host_ns = nanoseconds(stamps[1]);
	return r;
}
