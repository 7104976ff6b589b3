// Making host kernels part of MLX's graph, and looking at that graph (host.h).
#include "host_kernel.hpp"

#include <unordered_set>

#include "mlx/c/error.h"
#include "mlx/c/private/array.h"
#include "mlx/c/private/stream.h"
#include "mlx/c/private/string.h"
#include "mlx/c/private/vector.h"

using namespace strata;

extern "C" int strata_host_apply(
    mlx_array* outputs,
    const mlx_array* inputs,
    size_t n_inputs,
    const strata_host_vtable* vtable,
    void* kernel,
    const int* donations,
    const mlx_stream stream) {
  try {
    std::shared_ptr<void> owned(kernel, vtable->drop);
    auto s = mlx_stream_get_(stream);
    if (s.device != mlx::core::Device::cpu) {
      throw std::invalid_argument(std::string("[") + vtable->name + "] host kernels run on CPU streams only");
    }
    std::vector<int> donated(donations, donations + vtable->n_outputs);
    for (int d : donated) {
      if (d >= static_cast<int>(n_inputs)) {
        throw std::invalid_argument(std::string("[") + vtable->name + "] donated input does not exist");
      }
    }
    auto sorted = std::make_shared<Inputs>();
    sorted->views.reserve(n_inputs);
    sorted->constants.reserve(n_inputs);
    std::vector<array> edges;
    for (size_t i = 0; i < n_inputs; ++i) {
      const auto& a = mlx_array_get_(inputs[i]);
      bool donates = std::find(donated.begin(), donated.end(), static_cast<int>(i)) != donated.end();
      bool constant = !donates && !a.is_tracer() && a.is_available();
      sorted->is_constant.push_back(constant);
      sorted->views.push_back(constant ? view(a) : strata_view{});
      (constant ? sorted->constants : edges).push_back(a);
    }
    auto primitive = std::make_shared<HostKernel>(s, vtable, std::move(owned), std::move(donated), std::move(sorted));
    auto [shapes, dtypes] = primitive->infer(edges);
    auto made = array::make_arrays(std::move(shapes), dtypes, primitive, std::move(edges));
    for (size_t i = 0; i < made.size(); ++i) {
      mlx_array_set_(outputs[i], std::move(made[i]));
    }
  } catch (std::exception& e) {
    mlx_error(e.what());
    return 1;
  }
  return 0;
}

extern "C" const void* strata_array_data(const mlx_array arr) {
  try {
    const auto& a = mlx_array_get_(arr);
    if (!a.is_available()) {
      throw std::runtime_error("array is not evaluated");
    }
    return a.data<char>();
  } catch (std::exception& e) {
    mlx_error(e.what());
    return nullptr;
  }
}

extern "C" int strata_array_source(mlx_array* res, const mlx_array arr) {
  try {
    const auto& a = mlx_array_get_(arr);
    if (a.status() == array::Status::unscheduled && a.has_primitive() && !a.inputs().empty()) {
      auto outputs = a.outputs();
      size_t place = 0;
      while (place + 1 < outputs.size() && outputs[place].id() != a.id()) {
        ++place;
      }
      mlx_array_set_(*res, a.inputs()[std::min(place, a.inputs().size() - 1)]);
    }
  } catch (std::exception& e) {
    mlx_error(e.what());
    return 1;
  }
  return 0;
}

extern "C" void strata_start_scheduler(void) {
  mlx::core::scheduler::scheduler();
}

extern "C" int strata_graph_names(mlx_string* res, const mlx_vector_array outputs) {
  try {
    // First outputs of nodes: a compiled function is one primitive in each of its calls.
    std::unordered_set<std::uintptr_t> seen;
    std::vector<array> pending = mlx_vector_array_get_(outputs);
    std::string names;
    while (!pending.empty()) {
      auto a = std::move(pending.back());
      pending.pop_back();
      // A computed array has let go of its inputs; one that was made from data never had any.
      if (a.status() != array::Status::unscheduled || !a.has_primitive() || !seen.insert(a.outputs()[0].id()).second) {
        continue;
      }
      names += a.primitive().name();
      names += '\n';
      pending.insert(pending.end(), a.inputs().begin(), a.inputs().end());
    }
    mlx_string_set_(*res, names);
  } catch (std::exception& e) {
    mlx_error(e.what());
    return 1;
  }
  return 0;
}
