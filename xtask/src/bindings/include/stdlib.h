/* Stand-in for <stdlib.h>. */
#pragma once
#include <stddef.h>
