/* Stand-in for <stdbool.h>. */
#pragma once
#define bool _Bool
