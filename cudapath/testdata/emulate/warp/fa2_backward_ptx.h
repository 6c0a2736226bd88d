/* see ptx.h */
#pragma once
#include "ptx.h"
