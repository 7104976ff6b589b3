// A Rust function as a primitive of MLX's graph, on the CPU stream. C++ side: host.cpp; Rust side: strata-tensor.
#ifndef STRATA_HOST_H
#define STRATA_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mlx/c/array.h"
#include "mlx/c/stream.h"
#include "mlx/c/string.h"
#include "mlx/c/vector.h"

#ifdef __cplusplus
extern "C" {
#endif

#define STRATA_MAX_NDIM 8

// One array as a kernel sees it. Strides count elements. `data` is null while shapes are inferred.
typedef struct strata_view_ {
  void* data;
  mlx_dtype dtype;
  int ndim;
  int shape[STRATA_MAX_NDIM];
  int64_t strides[STRATA_MAX_NDIM];
} strata_view;

// What Rust gives for one type of kernel. Functions return 0, or 1 after writing a message (NUL-terminated, at most
// `capacity` bytes) to `error`. None of them may unwind. All may be called from any thread.
typedef struct strata_host_vtable_ {
  const char* name;
  size_t n_outputs;
  int (*infer)(
      const void* kernel,
      const strata_view* inputs,
      size_t n_inputs,
      strata_view* outputs,
      char* error,
      size_t capacity);
  int (*run)(
      const void* kernel,
      const strata_view* inputs,
      size_t n_inputs,
      const strata_view* outputs,
      char* error,
      size_t capacity);
  bool (*equivalent)(const void* a, const void* b);
  void (*drop)(void* kernel);
} strata_host_vtable;

// Adds the kernel to the graph and fills `outputs`, as many handles as the vtable says. Takes ownership of `kernel` in
// every case. `donations[i]` is the input whose buffer output i takes over when nobody else needs it (same dtype and size,
// row-contiguous), or -1; the kernel recognises a takeover by equal data pointers. `stream` must be a CPU stream. Returns
// 0, or 1 after calling mlx-c's error handler.
int strata_host_apply(
    mlx_array* outputs,
    const mlx_array* inputs,
    size_t n_inputs,
    const strata_host_vtable* vtable,
    void* kernel,
    const int* donations,
    const mlx_stream stream);

// Address of an evaluated array's first element; null (after calling the error handler) when it is not evaluated.
const void* strata_array_data(const mlx_array arr);

// Names of the primitives that evaluating `outputs` would run, one a line. Returns 0, or 1 after calling the handler.
int strata_graph_names(mlx_string* res, const mlx_vector_array outputs);

// The operand in `arr`'s place (the last one, if there are fewer) of what will compute `arr`; `res` stays as it is when
// there is none, or `arr` is computed or under way. Returns 0, or 1 after calling the handler.
int strata_array_source(mlx_array* res, const mlx_array arr);

// Starts MLX's scheduler, unless something has: MLX takes the calling thread for its main one from then on.
void strata_start_scheduler(void);

#ifdef __cplusplus
}
#endif

#endif
