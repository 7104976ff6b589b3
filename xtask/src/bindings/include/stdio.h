/* Stand-in for <stdio.h>: `FILE` is only passed by pointer. */
#pragma once
#include <stddef.h>
typedef struct FILE FILE;
