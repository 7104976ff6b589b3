/* Stand-in for <stddef.h>. */
#pragma once
typedef __SIZE_TYPE__ size_t;
