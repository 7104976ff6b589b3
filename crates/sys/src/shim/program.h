// A recorded graph of host kernels as one primitive of MLX's graph. C++ side: program.cpp; Rust side: strata-tensor.
#ifndef STRATA_PROGRAM_H
#define STRATA_PROGRAM_H

#include <stddef.h>

#include "mlx/c/array.h"
#include "mlx/c/stream.h"
#include "mlx/c/string.h"
#include "mlx/c/vector.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct strata_program_ {
  void* ctx;
} strata_program;

// An array without a value, which stands for an input while a graph is recorded. Returns 0, or 1 after calling mlx-c's
// error handler.
int strata_placeholder(mlx_array* res, const int* shape, size_t ndim, mlx_dtype dtype, const mlx_stream stream);

// Records the host kernels, and changes of shape, that lead from `inputs`, which are placeholders, to `outputs`. What does
// not depend on a placeholder is computed now and stays as it is. Where something else lies on the way, `res` stays empty
// and `obstacle` says what. Returns 0, or 1 after calling the handler.
int strata_program_record(
    strata_program* res,
    mlx_string* obstacle,
    const mlx_vector_array inputs,
    const mlx_vector_array outputs,
    const mlx_stream stream);

// Adds a run of the program to the graph. Inputs have the placeholders' shapes and types, and outputs are as recorded;
// an output that took over an input's buffer in the recorded graph does so here. Returns 0, or 1 after calling the handler.
int strata_program_apply(mlx_vector_array* outputs, const mlx_vector_array inputs, const strata_program program);

// Lets go of the program; runs that are under way keep it alive.
void strata_program_free(strata_program program);

#ifdef __cplusplus
}
#endif

#endif
