#ifndef CUDAPATH_WITH_H
#define CUDAPATH_WITH_H

#include "cua.h"

/* with(context, call): the result of call, or of what keeps the context from being
 * current around it. */
#define with(context, call) \
	({ \
		int r_ = a->CtxPush(context); \
		if (r_ == CUDA_SUCCESS) { \
			cua_handle was_; \
			r_ = (call); \
			int popped_ = a->CtxPop(&was_); \
			if (r_ == CUDA_SUCCESS) \
				r_ = popped_; \
		} \
		r_; \
	})

#endif
