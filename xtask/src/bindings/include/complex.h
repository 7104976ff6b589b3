/* Stand-in for <complex.h>: `_Complex` is a keyword. */
