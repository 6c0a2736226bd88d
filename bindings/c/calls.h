/* What the C and the Go side of the library share. */
#ifndef CALLS_H
#define CALLS_H

#include "vkattn.h"

#include <stdlib.h>

enum { KIND_DEVICE, KIND_OP, KIND_BUFFER, KIND_STREAM, KIND_REQUIREMENTS };

void vka_keep_error(char *text); /* which it frees */
void vka_at_exit(void);

#endif
