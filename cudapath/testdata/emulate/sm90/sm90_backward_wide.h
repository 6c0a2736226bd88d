// The emulated forms of wgmma are in sm90_backward.h.
#pragma once
#include "sm90_backward.h"
