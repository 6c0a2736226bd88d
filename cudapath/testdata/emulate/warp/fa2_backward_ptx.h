/* The instructions are in sm80.h. */
#pragma once
#include "sm80.h"
