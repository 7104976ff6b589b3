// The primitive behind host.h. Inputs are kept alive by MLX until the queued task has run: its CPU evaluator queues a
// task of its own that owns their buffers after each primitive (mlx/backend/cpu/eval.cpp, 0.32.2).
#include "host.h"

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "mlx/c/error.h"
#include "mlx/c/private/array.h"
#include "mlx/c/private/enums.h"
#include "mlx/c/private/stream.h"
#include "mlx/c/private/string.h"
#include "mlx/c/private/vector.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"
#include "mlx/scheduler.h"

namespace {

using mlx::core::array;
using mlx::core::Dtype;
using mlx::core::Shape;

constexpr size_t kErrorCapacity = 512;

strata_view describe(const array& a) {
  if (a.ndim() > STRATA_MAX_NDIM) {
    throw std::invalid_argument("host kernels take at most 8 dimensions");
  }
  strata_view v{};
  v.dtype = mlx_dtype_to_c(a.dtype());
  v.ndim = static_cast<int>(a.ndim());
  for (int i = 0; i < v.ndim; ++i) {
    v.shape[i] = a.shape(i);
  }
  return v;
}

strata_view view(const array& a) {
  auto v = describe(a);
  v.data = const_cast<void*>(static_cast<const void*>(a.data<char>()));
  for (int i = 0; i < v.ndim; ++i) {
    v.strides[i] = a.strides(i);
  }
  return v;
}

struct Call {
  std::vector<strata_view> inputs;
  std::vector<strata_view> outputs;
};

// A kernel's inputs. Those whose values were there when the node was made, weights above all, are constants of the node
// and no edges of the graph: an evaluation does not visit them again at every step.
struct Inputs {
  // One for each input, in order; those of constants are complete.
  std::vector<strata_view> views;
  std::vector<bool> is_constant;
  std::vector<array> constants;
};

class HostKernel : public mlx::core::Primitive {
 public:
  HostKernel(
      mlx::core::Stream stream,
      const strata_host_vtable* vtable,
      std::shared_ptr<void> kernel,
      std::vector<int> donations,
      std::shared_ptr<const Inputs> inputs)
      : Primitive(stream),
        vtable_(vtable),
        kernel_(std::move(kernel)),
        donations_(std::move(donations)),
        inputs_(std::move(inputs)) {}

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    auto call = std::make_shared<Call>();
    call->inputs = views(inputs, view);
    // Every output holds the inputs, which would then never be free to be taken over. The outputs have been reached, so
    // one list of inputs, the one at hand, is enough.
    for (auto& out : outputs) {
      if (!out.is_tracer() && &out.inputs() != &inputs) {
        out.inputs().clear();
      }
    }
    call->outputs.reserve(outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      allocate(outputs[i], donations_[i] < 0 ? nullptr : &inputs[edge(donations_[i])]);
      call->outputs.push_back(view(outputs[i]));
    }
    // Past the encoder, which counts tasks to hold the evaluating thread back: MLX queues one of its own after each
    // primitive, and counting that is enough. The task keeps the constants: the node may be gone before it runs.
    mlx::core::scheduler::enqueue(stream(), [vtable = vtable_, kernel = kernel_, constants = inputs_, call = std::move(call)]() {
      char error[kErrorCapacity] = "";
      if (vtable->run(
              kernel.get(), call->inputs.data(), call->inputs.size(), call->outputs.data(), error, kErrorCapacity)) {
        throw std::runtime_error(std::string("[") + vtable->name + "] " + error);
      }
    });
  }

  void eval_gpu(const std::vector<array>&, std::vector<array>&) override {
    throw std::runtime_error(std::string("[") + vtable_->name + "] host kernels run on CPU streams only");
  }

  const char* name() const override {
    return vtable_->name;
  }

  bool is_equivalent(const Primitive& other) const override {
    const auto& o = static_cast<const HostKernel&>(other);
    return vtable_ == o.vtable_ && donations_ == o.donations_ && same_constants(*o.inputs_) &&
        vtable_->equivalent(kernel_.get(), o.kernel_.get());
  }

  std::vector<Shape> output_shapes(const std::vector<array>& inputs) override {
    return infer(inputs).first;
  }

  std::pair<std::vector<Shape>, std::vector<Dtype>> infer(const std::vector<array>& inputs) const {
    auto in = views(inputs, describe);
    std::vector<strata_view> out(vtable_->n_outputs);
    char error[kErrorCapacity] = "";
    if (vtable_->infer(kernel_.get(), in.data(), in.size(), out.data(), error, kErrorCapacity)) {
      throw std::invalid_argument(std::string("[") + vtable_->name + "] " + error);
    }
    std::pair<std::vector<Shape>, std::vector<Dtype>> result;
    for (const auto& v : out) {
      result.first.emplace_back(v.shape, v.shape + v.ndim);
      result.second.push_back(mlx_dtype_to_cpp(v.dtype));
    }
    return result;
  }

 private:
  // Views of all of the kernel's inputs, given those that are edges.
  template <class View>
  std::vector<strata_view> views(const std::vector<array>& edges, View&& view_of) const {
    // An evaluation that failed (memory ran out) may have left an output that is asked for again without its inputs.
    if (edges.size() + inputs_->constants.size() != inputs_->views.size()) {
      throw std::runtime_error(std::string("[") + vtable_->name + "] inputs are gone: an earlier evaluation failed");
    }
    auto all = inputs_->views;
    size_t next = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      if (!inputs_->is_constant[i]) {
        all[i] = view_of(edges[next++]);
      }
    }
    return all;
  }

  // Place among the edges of an input that is one.
  size_t edge(int input) const {
    return std::count(inputs_->is_constant.begin(), inputs_->is_constant.begin() + input, false);
  }

  bool same_constants(const Inputs& other) const {
    const auto& own = *inputs_;
    return own.is_constant == other.is_constant &&
        std::equal(
               own.constants.begin(), own.constants.end(), other.constants.begin(), other.constants.end(),
               [](const array& a, const array& b) { return a.id() == b.id(); });
  }

  static void allocate(array& out, const array* donor) {
    if (donor != nullptr && donor->is_donatable() && donor->flags().row_contiguous && donor->dtype() == out.dtype() &&
        donor->size() == out.size() && donor->data_size() == out.size()) {
      out.copy_shared_buffer(*donor);
    } else {
      out.set_data(mlx::core::allocator::malloc(out.nbytes()));
    }
  }

  const strata_host_vtable* vtable_;
  std::shared_ptr<void> kernel_;
  std::vector<int> donations_;
  std::shared_ptr<const Inputs> inputs_;
};

} // namespace

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
    std::unordered_set<const mlx::core::Primitive*> seen;
    std::vector<array> pending = mlx_vector_array_get_(outputs);
    std::string names;
    while (!pending.empty()) {
      auto a = std::move(pending.back());
      pending.pop_back();
      // A computed array has let go of its inputs; one that was made from data never had any.
      if (a.status() != array::Status::unscheduled || !a.has_primitive() || !seen.insert(a.primitive_ptr().get()).second) {
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
