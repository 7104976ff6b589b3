// The primitive that runs a host kernel (host.h), for the shim's own files. Inputs are kept alive by MLX until the queued
// task has run: its CPU evaluator queues a task of its own that owns their buffers after each primitive
// (mlx/backend/cpu/eval.cpp, 0.32.2).
#ifndef STRATA_HOST_KERNEL_HPP
#define STRATA_HOST_KERNEL_HPP

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "host.h"
#include "mlx/c/private/enums.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"
#include "mlx/scheduler.h"

namespace strata {

using mlx::core::array;
using mlx::core::Dtype;
using mlx::core::Shape;

constexpr size_t kErrorCapacity = 512;

inline strata_view describe(const array& a) {
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

// What is described already.
inline strata_view describe(const strata_view& v) {
  return v;
}

// An array that has memory: all but its address.
inline strata_view strided(const array& a) {
  auto v = describe(a);
  for (int i = 0; i < v.ndim; ++i) {
    v.strides[i] = a.strides(i);
  }
  return v;
}

// An array that is computed.
inline strata_view view(const array& a) {
  auto v = strided(a);
  v.data = const_cast<void*>(static_cast<const void*>(a.data<char>()));
  return v;
}

struct Call {
  std::vector<strata_view> inputs;
  std::vector<strata_view> outputs;
};

// A call that is yet to run. Addresses are asked for when it does and not before: asking for that of an array in a GPU's
// own memory moves the array to where both reach it (mlx/backend/cuda/allocator.cpp, 0.32.2, `Buffer::raw_ptr`), and the
// GPU may still be computing what a queued call waits for.
class QueuedCall {
 public:
  void add_input(const array& a) {
    add(call_.inputs, a);
  }

  // One whose address is known.
  void add_input(const strata_view& v) {
    call_.inputs.push_back(v);
  }

  void add_output(const array& a) {
    add(call_.outputs, a);
  }

  const Call& operands() const {
    return call_;
  }

  // The call with all addresses.
  const Call& located() {
    for (auto& [operands, index, buffer, offset] : places_) {
      (*operands)[index].data = static_cast<char*>(buffer.raw_ptr()) + offset;
    }
    return call_;
  }

  QueuedCall() = default;
  QueuedCall(const QueuedCall&) = delete;
  QueuedCall& operator=(const QueuedCall&) = delete;

 private:
  struct Place {
    std::vector<strata_view>* operands;
    size_t index;
    mlx::core::allocator::Buffer buffer;
    int64_t offset;
  };

  void add(std::vector<strata_view>& operands, const array& a) {
    places_.push_back({&operands, operands.size(), a.buffer(), a.offset()});
    operands.push_back(strided(a));
  }

  Call call_;
  std::vector<Place> places_;
};

// A kernel's inputs. Those whose values were there when the node was made, weights above all, are constants of the node
// and no edges of the graph: an evaluation does not visit them again at every step.
struct Inputs {
  // One for each input, in order; those of constants are complete.
  std::vector<strata_view> views;
  std::vector<bool> is_constant;
  std::vector<array> constants;
};

// Every output holds the inputs, which would then never be free to be taken over. The outputs have been reached, so one
// list of inputs, the one at hand, is enough.
inline void let_go_of_inputs(const std::vector<array>& at_hand, std::vector<array>& outputs) {
  for (auto& out : outputs) {
    if (!out.is_tracer() && &out.inputs() != &at_hand) {
      out.inputs().clear();
    }
  }
}

// Gives an output memory: the donor's, when nobody else needs it.
inline void allocate(array& out, const array* donor) {
  if (donor != nullptr && donor->is_donatable() && donor->flags().row_contiguous && donor->dtype() == out.dtype() &&
      donor->size() == out.size() && donor->data_size() == out.size()) {
    out.copy_shared_buffer(*donor);
  } else {
    out.set_data(mlx::core::allocator::malloc(out.nbytes()));
  }
}

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
    auto call = std::make_shared<QueuedCall>();
    each_input(inputs, [&](const auto& input) { call->add_input(input); });
    let_go_of_inputs(inputs, outputs);
    for (size_t i = 0; i < outputs.size(); ++i) {
      allocate(outputs[i], donations_[i] < 0 ? nullptr : &inputs[edge(donations_[i])]);
      call->add_output(outputs[i]);
    }
    // Past the encoder, which counts tasks to hold the evaluating thread back: MLX queues one of its own after each
    // primitive, and counting that is enough. The task keeps the kernel and its constants: the node may be gone before.
    mlx::core::scheduler::enqueue(
        stream(), [vtable = vtable_, kernel = kernel_, constants = inputs_, call = std::move(call)]() {
          run(*vtable, kernel.get(), call->located());
        });
  }

  // Runs the kernel on operands at hand.
  void run(const Call& call) const {
    run(*vtable_, kernel_.get(), call);
  }

  const Inputs& inputs() const {
    return *inputs_;
  }

  const std::vector<int>& donations() const {
    return donations_;
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
    std::vector<strata_view> in;
    each_input(inputs, [&](const auto& input) { in.push_back(describe(input)); });
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
  // Goes over all of the kernel's inputs in order, given those that are edges: views of constants, arrays of edges.
  template <class Visit>
  void each_input(const std::vector<array>& edges, Visit&& visit) const {
    // An evaluation that failed (memory ran out) may have left an output that is asked for again without its inputs.
    if (edges.size() + inputs_->constants.size() != inputs_->views.size()) {
      throw std::runtime_error(std::string("[") + vtable_->name + "] inputs are gone: an earlier evaluation failed");
    }
    size_t next = 0;
    for (size_t i = 0; i < inputs_->views.size(); ++i) {
      if (inputs_->is_constant[i]) {
        visit(inputs_->views[i]);
      } else {
        visit(edges[next++]);
      }
    }
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

  static void run(const strata_host_vtable& vtable, const void* kernel, const Call& call) {
    char error[kErrorCapacity] = "";
    if (vtable.run(kernel, call.inputs.data(), call.inputs.size(), call.outputs.data(), error, kErrorCapacity)) {
      throw std::runtime_error(std::string("[") + vtable.name + "] " + error);
    }
  }

  const strata_host_vtable* vtable_;
  std::shared_ptr<void> kernel_;
  std::vector<int> donations_;
  std::shared_ptr<const Inputs> inputs_;
};

} // namespace strata

#endif
