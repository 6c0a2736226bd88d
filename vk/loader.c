//go:build !windows

#include "host.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* The library stays open for the life of the process: drivers start threads and
 * register exit handlers, and unloading them under those is a crash. */
static void *open_library(const char *path, char **error)
{
	*error = NULL;
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		const char *why = dlerror();
		*error = strdup(why ? why : "dlopen failed");
	}
	return library;
}

void *vka_open_loader(const char *path, char **error)
{
	void *library = open_library(path, error);
	if (!library)
		return NULL;
	void *get = dlsym(library, "vkGetInstanceProcAddr");
	if (!get) {
		*error = strdup("no vkGetInstanceProcAddr in it");
		dlclose(library);
	}
	return get;
}

char *vka_try_library(const char *path)
{
	char *error;
	open_library(path, &error);
	return error;
}
