/* Stand-in for <float.h>: the mlx-c headers use none of its constants. */
