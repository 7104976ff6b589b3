// Recording and running programs (program.h).
//
// A program is a list of calls of host kernels. What lies between them is laid out once, in one block of memory; a run
// fills in where inputs and outputs are and makes the calls, all in one task of the stream. So a run costs MLX one node,
// however many kernels it is.
#include "program.h"

#include <future>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "host_kernel.hpp"
#include "mlx/c/error.h"
#include "mlx/c/private/array.h"
#include "mlx/c/private/stream.h"
#include "mlx/c/private/string.h"
#include "mlx/c/private/vector.h"

using namespace strata;

namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kNone = SIZE_MAX;

class Placeholder : public mlx::core::Primitive {
 public:
  using Primitive::Primitive;

  void eval_cpu(const std::vector<array>&, std::vector<array>&) override {
    throw std::runtime_error("a placeholder has no value");
  }

  void eval_gpu(const std::vector<array>&, std::vector<array>&) override {
    throw std::runtime_error("a placeholder has no value");
  }

  const char* name() const override {
    return "placeholder";
  }
};

// Memory that one or more values share.
struct Storage {
  enum Home { kInput, kOutput, kBlock } home;
  // Which input or output.
  size_t index;
  size_t bytes;
  // Last call that touches it.
  size_t last = 0;
  // Place in the block.
  size_t offset = kNone;
};

// An array as calls see it. Of constants `storage` is kNone and the view complete.
struct Operand {
  strata_view view;
  size_t storage;
};

struct Step {
  std::shared_ptr<HostKernel> kernel;
  std::vector<Operand> inputs;
  std::vector<Operand> outputs;
};

bool is_row_contiguous(const strata_view& v) {
  int64_t expected = 1;
  for (int i = v.ndim - 1; i >= 0; --i) {
    if (v.shape[i] != 1 && v.strides[i] != expected) {
      return false;
    }
    expected *= v.shape[i];
  }
  return true;
}

strata_view laid_out(const array& a) {
  auto v = describe(a);
  int64_t stride = 1;
  for (int i = v.ndim - 1; i >= 0; --i) {
    v.strides[i] = stride;
    stride *= v.shape[i];
  }
  return v;
}

bool changes_shape_only(const mlx::core::Primitive& p) {
  // By name: libmlx does not export the types.
  std::string name = p.name();
  return name == "Reshape" || name == "ExpandDims" || name == "Squeeze" || name == "Flatten" || name == "Unflatten";
}

struct Meta {
  Shape shape;
  Dtype dtype;
};

class Recorder {
 public:
  // False when something on the way cannot be recorded; `obstacle` is its name then.
  bool record(const std::vector<array>& inputs, const std::vector<array>& outputs) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      values_.emplace(inputs[i].id(), Operand{laid_out(inputs[i]), add(Storage::kInput, i, inputs[i].nbytes())});
    }
    for (const auto& out : outputs) {
      if (!visit(out)) {
        return false;
      }
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      auto found = values_.find(outputs[i].id());
      if (found == values_.end() || storages[found->second.storage].home != Storage::kBlock) {
        obstacle = "an output that no kernel computes";
        return false;
      }
      auto& storage = storages[found->second.storage];
      storage.home = Storage::kOutput;
      storage.index = i;
    }
    plan(outputs.size());
    return true;
  }

  std::vector<Step> steps;
  std::vector<Storage> storages;
  std::vector<array> constants;
  // The input whose buffer each output takes over, or -1.
  std::vector<int> donations;
  size_t bytes = 0;
  std::string obstacle;

 private:
  size_t add(Storage::Home home, size_t index, size_t bytes) {
    storages.push_back({home, index, bytes});
    return storages.size() - 1;
  }

  // Depth first, inputs before what is made of them.
  bool visit(const array& root) {
    std::vector<std::pair<array, size_t>> path{{root, 0}};
    while (!path.empty()) {
      auto& [a, next] = path.back();
      if (next == 0 && (values_.count(a.id()) || constant_.count(a.id()))) {
        path.pop_back();
      } else if (a.status() != array::Status::unscheduled || !a.has_primitive()) {
        constant_.insert(a.id());
        path.pop_back();
      } else if (next < a.inputs().size()) {
        auto input = a.inputs()[next++];
        path.emplace_back(std::move(input), 0);
      } else {
        auto done = a;
        path.pop_back();
        if (!add_node(done)) {
          return false;
        }
      }
    }
    return true;
  }

  bool add_node(const array& a) {
    bool depends = std::any_of(a.inputs().begin(), a.inputs().end(), [&](const array& in) {
      return values_.count(in.id()) > 0;
    });
    if (!depends) {
      constant_.insert(a.id());
      return true;
    }
    if (auto kernel = std::dynamic_pointer_cast<HostKernel>(a.primitive_ptr())) {
      add_call(std::move(kernel), a);
      return true;
    }
    if (changes_shape_only(a.primitive())) {
      const auto& source = values_.at(a.inputs()[0].id());
      if (is_row_contiguous(source.view)) {
        values_.emplace(a.id(), Operand{laid_out(a), source.storage});
        return true;
      }
    }
    obstacle = a.primitive().name();
    return false;
  }

  void add_call(std::shared_ptr<HostKernel> kernel, const array& a) {
    Step step;
    const auto& held = kernel->inputs();
    size_t edge = 0;
    for (size_t i = 0; i < held.views.size(); ++i) {
      step.inputs.push_back(held.is_constant[i] ? Operand{held.views[i], kNone} : operand(a.inputs()[edge++]));
    }
    for (const auto& out : a.outputs()) {
      Operand value{laid_out(out), add(Storage::kBlock, 0, out.nbytes())};
      values_.emplace(out.id(), value);
      step.outputs.push_back(value);
    }
    step.kernel = std::move(kernel);
    steps.push_back(std::move(step));
  }

  Operand operand(const array& a) {
    auto found = values_.find(a.id());
    if (found != values_.end()) {
      return found->second;
    }
    auto constant = a;
    constant.eval();
    constants.push_back(constant);
    return {view(constant), kNone};
  }

  void plan(size_t outputs) {
    donations.assign(outputs, -1);
    size_t n_inputs = 0;
    for (const auto& storage : storages) {
      n_inputs += storage.home == Storage::kInput;
    }
    for (size_t s = 0; s < steps.size(); ++s) {
      for (const auto* operands : {&steps[s].inputs, &steps[s].outputs}) {
        for (const auto& operand : *operands) {
          if (operand.storage != kNone) {
            storages[operand.storage].last = s;
          }
        }
      }
    }
    // Places that are free again, by size.
    std::unordered_multimap<size_t, size_t> free;
    std::vector<bool> taken(n_inputs, false);
    for (size_t s = 0; s < steps.size(); ++s) {
      auto& step = steps[s];
      std::vector<size_t> handed_on;
      for (size_t o = 0; o < step.outputs.size(); ++o) {
        auto& out = storages[step.outputs[o].storage];
        auto* donor = donor_of(step, o, s);
        if (donor != nullptr && donor->home == Storage::kInput && out.home == Storage::kOutput && !taken[donor->index]) {
          donations[out.index] = static_cast<int>(donor->index);
          taken[donor->index] = true;
        }
        if (out.home != Storage::kBlock) {
          continue;
        }
        if (donor != nullptr && donor->home == Storage::kBlock &&
            std::find(handed_on.begin(), handed_on.end(), donor->offset) == handed_on.end()) {
          out.offset = donor->offset;
          handed_on.push_back(donor->offset);
        } else if (auto place = free.find(out.bytes); place != free.end()) {
          out.offset = place->second;
          free.erase(place);
        } else {
          out.offset = bytes;
          bytes += (out.bytes + kAlignment - 1) / kAlignment * kAlignment;
        }
      }
      release(step, s, handed_on, free);
    }
  }

  // The storage that output `o` may take over: this call is the last to use it, and uses it once.
  Storage* donor_of(const Step& step, size_t o, size_t s) {
    int donated = step.kernel->donations()[o];
    if (donated < 0) {
      return nullptr;
    }
    const auto& input = step.inputs[donated];
    if (input.storage == kNone || !is_row_contiguous(input.view)) {
      return nullptr;
    }
    auto& storage = storages[input.storage];
    auto uses = std::count_if(step.inputs.begin(), step.inputs.end(), [&](const Operand& operand) {
      return operand.storage == input.storage;
    });
    return storage.last == s && uses == 1 && storage.bytes == storages[step.outputs[o].storage].bytes ? &storage : nullptr;
  }

  void release(
      const Step& step, size_t s, const std::vector<size_t>& handed_on, std::unordered_multimap<size_t, size_t>& free) {
    std::vector<size_t> seen;
    for (const auto* operands : {&step.inputs, &step.outputs}) {
      for (const auto& operand : *operands) {
        if (operand.storage == kNone || std::find(seen.begin(), seen.end(), operand.storage) != seen.end()) {
          continue;
        }
        seen.push_back(operand.storage);
        const auto& storage = storages[operand.storage];
        bool is_donor = operands == &step.inputs &&
            std::find(handed_on.begin(), handed_on.end(), storage.offset) != handed_on.end();
        if (storage.home == Storage::kBlock && storage.last == s && !is_donor) {
          free.emplace(storage.bytes, storage.offset);
        }
      }
    }
  }

  std::unordered_map<std::uintptr_t, Operand> values_;
  // What depends on no placeholder.
  std::unordered_set<std::uintptr_t> constant_;
};

// A block of MLX's memory, so that it is counted.
class Block {
 public:
  explicit Block(size_t bytes) : buffer_(mlx::core::allocator::malloc(bytes + kAlignment)) {}
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() {
    mlx::core::allocator::free(buffer_);
  }

  char* start() {
    auto address = reinterpret_cast<std::uintptr_t>(buffer_.raw_ptr());
    return reinterpret_cast<char*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }

 private:
  mlx::core::allocator::Buffer buffer_;
};

class Program : public mlx::core::Primitive, public std::enable_shared_from_this<Program> {
 public:
  Program(
      mlx::core::Stream stream,
      Recorder recorder,
      const std::vector<array>& inputs,
      const std::vector<array>& outputs)
      : Primitive(stream),
        constants_(std::move(recorder.constants)),
        donations_(std::move(recorder.donations)),
        reshaped_(inputs.size(), false),
        block_(recorder.bytes) {
    for (const auto& in : inputs) {
      inputs_.push_back({in.shape(), in.dtype()});
    }
    for (const auto& out : outputs) {
      outputs_.push_back({out.shape(), out.dtype()});
    }
    for (auto& step : recorder.steps) {
      Entry entry{std::move(step.kernel), {}};
      for (auto [operands, views] : {std::pair{&step.inputs, &entry.call.inputs}, {&step.outputs, &entry.call.outputs}}) {
        for (const auto& operand : *operands) {
          views->push_back(operand.view);
          if (operand.storage != kNone) {
            place(recorder.storages[operand.storage], operands == &step.outputs, views->size() - 1, operand.view);
            if (recorder.storages[operand.storage].home == Storage::kBlock) {
              views->back().data = block_.start() + recorder.storages[operand.storage].offset;
            }
          }
        }
      }
      entries_.push_back(std::move(entry));
    }
  }

  std::vector<array> apply(std::vector<array> inputs) {
    if (inputs.size() != inputs_.size()) {
      throw std::invalid_argument(
          "[program] takes " + std::to_string(inputs_.size()) + " inputs but has " + std::to_string(inputs.size()));
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].shape() != inputs_[i].shape || inputs[i].dtype() != inputs_[i].dtype) {
        throw std::invalid_argument("[program] input " + std::to_string(i) + " is not of the recorded shape and type");
      }
    }
    std::vector<Shape> shapes;
    std::vector<Dtype> dtypes;
    for (const auto& [shape, dtype] : outputs_) {
      shapes.push_back(shape);
      dtypes.push_back(dtype);
    }
    return array::make_arrays(std::move(shapes), dtypes, shared_from_this(), std::move(inputs));
  }

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    if (inputs.size() != inputs_.size()) {
      throw std::runtime_error("[program] inputs are gone: an earlier evaluation failed");
    }
    auto call = std::make_shared<QueuedCall>();
    for (size_t i = 0; i < inputs.size(); ++i) {
      call->add_input(inputs[i]);
      if (reshaped_[i] && !is_row_contiguous(call->operands().inputs.back())) {
        throw std::runtime_error("[program] input " + std::to_string(i) + " is not contiguous");
      }
    }
    let_go_of_inputs(inputs, outputs);
    bool shared = std::any_of(donations_.begin(), donations_.end(), [&](int donor) {
      return donor >= 0 && !inputs[donor].is_donatable();
    });
    if (shared) {
      // Perhaps only by what MLX queues behind a run to keep its buffers: the run before this one is under way. Waiting for
      // it costs less than copying what it gives.
      wait_for_queue();
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      allocate(outputs[i], donations_[i] < 0 ? nullptr : &inputs[donations_[i]]);
      call->add_output(outputs[i]);
    }
    mlx::core::scheduler::enqueue(stream(), [self = shared_from_this(), call = std::move(call)]() {
      self->run(call->located());
    });
  }

  void eval_gpu(const std::vector<array>&, std::vector<array>&) override {
    throw std::runtime_error("[program] host kernels run on CPU streams only");
  }

  const char* name() const override {
    return "program";
  }

  bool is_equivalent(const Primitive& other) const override {
    return this == &other;
  }

  std::vector<Shape> output_shapes(const std::vector<array>&) override {
    std::vector<Shape> shapes;
    for (const auto& out : outputs_) {
      shapes.push_back(out.shape);
    }
    return shapes;
  }

 private:
  struct Entry {
    std::shared_ptr<HostKernel> kernel;
    Call call;
  };

  // A view to be filled in at each run.
  struct Patch {
    size_t entry;
    bool of_outputs;
    size_t position;
    bool from_outputs;
    size_t index;
    // Strides are those of the input at hand.
    bool with_strides;
  };

  void place(const Storage& storage, bool of_outputs, size_t position, const strata_view& v) {
    if (storage.home == Storage::kBlock) {
      return;
    }
    bool from_outputs = storage.home == Storage::kOutput;
    bool same_shape = false;
    if (!from_outputs) {
      const auto& shape = inputs_[storage.index].shape;
      same_shape = std::equal(shape.begin(), shape.end(), v.shape, v.shape + v.ndim);
      reshaped_[storage.index] = reshaped_[storage.index] || !same_shape;
    }
    patches_.push_back({entries_.size(), of_outputs, position, from_outputs, storage.index, same_shape});
  }

  // Until all that has been queued on the stream is done and gone.
  void wait_for_queue() {
    auto done = std::make_shared<std::promise<void>>();
    auto future = done->get_future();
    // Also ready when the queue is given up and the task dropped.
    mlx::core::scheduler::enqueue(stream(), [done = std::move(done)]() { done->set_value(); });
    future.wait();
  }

  void run(const Call& at) {
    // Runs share the block: on one stream they come one after the other anyway.
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& p : patches_) {
      const auto& from = (p.from_outputs ? at.outputs : at.inputs)[p.index];
      auto& call = entries_[p.entry].call;
      auto& to = (p.of_outputs ? call.outputs : call.inputs)[p.position];
      to.data = from.data;
      if (p.with_strides) {
        std::copy(from.strides, from.strides + from.ndim, to.strides);
      }
    }
    for (const auto& entry : entries_) {
      entry.kernel->run(entry.call);
    }
  }

  std::vector<Meta> inputs_;
  std::vector<Meta> outputs_;
  std::vector<array> constants_;
  std::vector<int> donations_;
  std::vector<bool> reshaped_;
  std::vector<Entry> entries_;
  std::vector<Patch> patches_;
  Block block_;
  std::mutex mutex_;
};

} // namespace

extern "C" int strata_placeholder(
    mlx_array* res, const int* shape, size_t ndim, mlx_dtype dtype, const mlx_stream stream) {
  try {
    mlx_array_set_(
        *res,
        array(
            Shape(shape, shape + ndim),
            mlx_dtype_to_cpp(dtype),
            std::make_shared<Placeholder>(mlx_stream_get_(stream)),
            std::vector<array>{}));
  } catch (std::exception& e) {
    mlx_error(e.what());
    return 1;
  }
  return 0;
}

extern "C" int strata_program_record(
    strata_program* res,
    mlx_string* obstacle,
    const mlx_vector_array inputs,
    const mlx_vector_array outputs,
    const mlx_stream stream) {
  try {
    auto s = mlx_stream_get_(stream);
    if (s.device != mlx::core::Device::cpu) {
      throw std::invalid_argument("[program] host kernels run on CPU streams only");
    }
    const auto& in = mlx_vector_array_get_(inputs);
    const auto& out = mlx_vector_array_get_(outputs);
    Recorder recorder;
    if (!recorder.record(in, out)) {
      mlx_string_set_(*obstacle, recorder.obstacle);
      return 0;
    }
    res->ctx = new std::shared_ptr<Program>(std::make_shared<Program>(s, std::move(recorder), in, out));
  } catch (std::exception& e) {
    mlx_error(e.what());
    return 1;
  }
  return 0;
}

extern "C" int strata_program_apply(
    mlx_vector_array* outputs, const mlx_vector_array inputs, const strata_program program) {
  try {
    auto& p = *static_cast<std::shared_ptr<Program>*>(program.ctx);
    mlx_vector_array_set_(*outputs, p->apply(mlx_vector_array_get_(inputs)));
  } catch (std::exception& e) {
    mlx_error(e.what());
    return 1;
  }
  return 0;
}

extern "C" void strata_program_free(strata_program program) {
  delete static_cast<std::shared_ptr<Program>*>(program.ctx);
}
