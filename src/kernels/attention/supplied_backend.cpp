// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/supplied_backend.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "cuda/arena.hpp"
#include "kernels/attention/checks.hpp"
#include "kernels/attention/combine.hpp"

// A backend that others supply computes plain attention. What a call asks beyond that (an earlier
// result to merge into, gradients to add to, other types) the library does around it.
namespace magi {
namespace {

/// The table and its context, which ends with the last owner.
struct Table {
  explicit Table(const magi_attention_backend& given) : functions(given), name(given.name) {}
  ~Table() {
    if (functions.destroy != nullptr) functions.destroy(functions.context);
  }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  void check(std::int32_t status) const {
    if (status == MAGI_OK) return;
    const char* said = functions.last_error(functions.context);
    const std::string text = "backend " + name + ": " + (said != nullptr ? said : "a call failed");
    if (status == MAGI_INVALID_ARGUMENT) throw InvalidArgument(text);
    if (status == MAGI_CUDA_ERROR) throw CudaError(text, 0);
    throw InternalError(text);
  }

  magi_attention_backend functions;
  std::string name;
};

magi_tensor to_c(const TensorView& tensor) {
  magi_tensor result{.struct_size = sizeof(magi_tensor),
                     .data = tensor.data,
                     .dtype = static_cast<std::int32_t>(tensor.dtype),
                     .device = tensor.device,
                     .rank = tensor.rank,
                     .shape = {},
                     .stride = {}};
  std::copy(tensor.shape.begin(), tensor.shape.end(), result.shape);
  std::copy(tensor.stride.begin(), tensor.stride.end(), result.stride);
  return result;
}

/// A tensor of a call as the C structs point to it; no pointer where there is none.
class CTensor {
 public:
  explicit CTensor(const TensorView& tensor) : tensor_(to_c(tensor)) {}
  const magi_tensor* get() const { return tensor_.rank == 0 ? nullptr : &tensor_; }

 private:
  magi_tensor tensor_;
};

/// What a backend prepared for a problem.
class Handle {
 public:
  Handle(std::shared_ptr<const Table> table, const magi_attention_problem& problem)
      : table_(std::move(table)) {
    table_->check(table_->functions.plan(table_->functions.context, &problem, &handle_));
  }
  ~Handle() { table_->functions.release(table_->functions.context, handle_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  void forward(const magi_attention_inputs& inputs, const magi_attention_result& result,
               void* stream) const {
    table_->check(
        table_->functions.forward(table_->functions.context, handle_, &inputs, &result, stream));
  }
  void backward(const magi_attention_inputs& inputs, const magi_attention_result& result,
                const magi_attention_gradients& gradients, void* stream) const {
    table_->check(table_->functions.backward(table_->functions.context, handle_, &inputs, &result,
                                             &gradients, stream));
  }

 private:
  std::shared_ptr<const Table> table_;
  void* handle_ = nullptr;
};

struct Tensors {
  const TensorView &q, &k, &v;
};
struct Choices {
  bool is_backward = false;
  bool is_deterministic = true;
  std::int32_t sm_margin = 0;
};

std::unique_ptr<const Handle> make_handle(std::shared_ptr<const Table> table,
                                          const Tensors& tensors, std::span<const BandSlice> slices,
                                          const Choices& choices) {
  std::vector<std::int32_t> rows;
  rows.reserve(slices.size() * 6);
  for (const BandSlice& s : slices) {
    rows.insert(rows.end(), {s.q0, s.q1, s.k0, s.k1, s.d_min, s.d_max});
  }
  const CTensor q(tensors.q), k(tensors.k), v(tensors.v);
  const magi_attention_problem problem{.struct_size = sizeof(magi_attention_problem),
                                       .q = q.get(),
                                       .k = k.get(),
                                       .v = v.get(),
                                       .slices = rows.data(),
                                       .num_slices = std::ssize(slices),
                                       .is_backward = choices.is_backward,
                                       .is_deterministic = choices.is_deterministic,
                                       .sm_margin = choices.sm_margin};
  return std::make_unique<const Handle>(std::move(table), problem);
}

magi_attention_inputs to_c(const AttentionParams& params) {
  return {.struct_size = sizeof(magi_attention_inputs),
          .q = nullptr,
          .k = nullptr,
          .v = nullptr,
          .sink = nullptr,
          .softmax_scale = params.softmax_scale,
          .softcap = params.softcap,
          .sink_layout = static_cast<std::int32_t>(params.sink_layout),
          .sm_margin = 0,
          .is_fast_backward = 0,
          .backend = nullptr};
}

/// Tensors that a run needs of its own, laid out in the caller's workspace or in memory that the
/// run takes.
class RunTensors {
 public:
  /// A stand-in for `like` in `type`, without gaps; its data come with place().
  TensorView* add(const TensorView& like, DType type) {
    Entry& entry = entries_[num_entries_++];
    entry.tensor = like;
    entry.tensor.dtype = type;
    std::int64_t step = 1;
    for (auto axis = static_cast<std::size_t>(like.rank); axis-- > 0;) {
      entry.tensor.stride[axis] = step;
      step *= like.shape[axis];
    }
    entry.begin = arena_.add<std::byte>(step * static_cast<std::int64_t>(dtype_bytes(type)));
    return &entry.tensor;
  }
  std::int64_t size_bytes() const { return static_cast<std::int64_t>(arena_.size_bytes()); }

  void place(const DeviceWorkspace& workspace, std::int32_t device, void* stream) {
    if (num_entries_ == 0) return;
    void* memory = workspace.data;
    if (memory == nullptr) {
      own_ = take(size_bytes(), device, stream);
      memory = own_.get();
    }
    for (Entry& entry : std::span(entries_, num_entries_)) {
      entry.tensor.data = part_at<void>(memory, entry.begin);
    }
  }

 private:
  struct Entry {
    TensorView tensor;
    std::size_t begin = 0;
  };

  static std::shared_ptr<void> take(std::int64_t size_bytes, std::int32_t device, void* stream) {
    if (device != kCpuDevice) return take_device_memory(size_bytes, device, stream);
    auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(size_bytes));
    return {bytes, bytes->data()};
  }

  static constexpr std::size_t kMostEntries = 4;
  Entry entries_[kMostEntries];
  std::size_t num_entries_ = 0;
  Arena arena_;
  std::shared_ptr<void> own_;
};

/// An output of a run: the caller's tensor where the backend can write it, or a stand-in whose
/// values are then stored there.
struct Output {
  /// `own_type`: that of a stand-in.
  Output(const TensorView& given, Combination combination, bool is_known, DType own_type,
         RunTensors& own)
      : target(given), how(combination) {
    if (given.rank == 0 || (how == Combination::Write && is_known)) return;
    stand_in = own.add(given, own_type);
  }
  const TensorView& written() const { return stand_in != nullptr ? *stand_in : target; }
  void store(void* stream) const {
    if (stand_in != nullptr) combine(*stand_in, target, how, stream);
  }

  TensorView target;
  Combination how;
  const TensorView* stand_in = nullptr;
};

/// A problem of a supplied backend. Its outputs like q have the type of q or, where it knows
/// that, of sums; lse, max_logits and dsink have that of sums.
struct SuppliedProblem {
  AttentionLimits limits;
  AttentionProblem problem;
  std::unique_ptr<const Handle> handle;
  std::int64_t workspace_bytes = 0;

  DType sum_type() const { return accumulator_of(problem.type); }
  Output output(const TensorView& given, Combination how, RunTensors& own) const {
    return {given, how, limits.has_float_outputs || given.dtype == problem.type,
            limits.has_float_outputs ? sum_type() : problem.type, own};
  }
  Output sum_output(const TensorView& given, Combination how, RunTensors& own) const {
    return {given, how, true, sum_type(), own};
  }
  void check_input(const char* name, const TensorView& tensor) const {
    if (limits.has_float_outputs || tensor.dtype == problem.type) return;
    throw invalid(std::string(name) + ".dtype", dtype_name(tensor.dtype),
                  std::string(dtype_name(problem.type)) + " with this backend");
  }
  void place(RunTensors& own, const DeviceWorkspace& workspace, void* stream) const {
    if (workspace.data != nullptr && workspace.size_bytes < own.size_bytes()) {
      throw invalid("workspace.size_bytes", workspace.size_bytes,
                    std::to_string(own.size_bytes()) + " or more");
    }
    own.place(workspace, problem.device, stream);
  }
};

/// Bytes of stand-ins in the widest type for tensors of these sizes.
std::int64_t stand_in_bytes(DType type, std::initializer_list<std::int64_t> sizes) {
  Arena arena;
  for (const std::int64_t size : sizes) {
    arena.add<std::byte>(size * static_cast<std::int64_t>(dtype_bytes(accumulator_of(type))));
  }
  return static_cast<std::int64_t>(arena.size_bytes());
}

std::int64_t size_of(const AttentionProblem::Shape& shape) {
  return shape[0] * shape[1] * shape[2];
}

class SuppliedForward final : public PreparedForward,
                              public std::enable_shared_from_this<SuppliedForward> {
 public:
  explicit SuppliedForward(SuppliedProblem made) : made_(std::move(made)) {
    const AttentionProblem& problem = made_.problem;
    const std::int64_t rows = problem.q[0] * problem.q[1];
    made_.workspace_bytes = stand_in_bytes(problem.type, {rows * problem.v[2], rows, problem.q[1]});
  }

  std::int64_t size_bytes() const override { return 0; }
  std::int64_t workspace_bytes() const override { return made_.workspace_bytes; }

  void run(const ForwardArgs& args, const DeviceWorkspace& workspace, void* stream) const override {
    check_call(made_.limits, args, made_.problem);
    if (args.q.device != kCpuDevice) keep_with_capture(shared_from_this(), stream);
    const bool is_merging = args.is_merging;
    RunTensors own;
    const Output out =
        made_.output(args.out, is_merging ? Combination::Add : Combination::Write, own);
    const Output lse =
        made_.sum_output(args.lse, is_merging ? Combination::Add : Combination::Write, own);
    const Output max_logits =
        made_.sum_output(args.max_logits, is_merging ? Combination::Max : Combination::Write, own);
    made_.place(own, workspace, stream);
    call(args, out, lse, max_logits, stream);
    max_logits.store(stream);
    if (is_merging) {
      merge({out.written(), lse.written()}, {args.out, args.lse}, stream);
    } else {
      out.store(stream);
    }
  }

 private:
  void call(const ForwardArgs& args, const Output& out, const Output& lse, const Output& max_logits,
            void* stream) const {
    const CTensor q(args.q), k(args.k), v(args.v), sink(args.sink);
    const CTensor c_out(out.written()), c_lse(lse.written()), c_max(max_logits.written());
    magi_attention_inputs inputs = to_c(args.params);
    inputs.q = q.get();
    inputs.k = k.get();
    inputs.v = v.get();
    inputs.sink = sink.get();
    const magi_attention_result result{.struct_size = sizeof(magi_attention_result),
                                       .out = c_out.get(),
                                       .lse = c_lse.get(),
                                       .max_logits = c_max.get()};
    made_.handle->forward(inputs, result, stream);
  }

  SuppliedProblem made_;
};

class SuppliedBackward final : public PreparedBackward,
                               public std::enable_shared_from_this<SuppliedBackward> {
 public:
  explicit SuppliedBackward(SuppliedProblem made) : made_(std::move(made)) {
    const AttentionProblem& problem = made_.problem;
    made_.workspace_bytes =
        stand_in_bytes(problem.type, {size_of(problem.q), size_of(problem.k), size_of(problem.v),
                                      kMaxSinks * problem.q[0] * problem.q[1]});
  }

  std::int64_t size_bytes() const override { return 0; }
  std::int64_t workspace_bytes() const override { return made_.workspace_bytes; }

  void run(const BackwardArgs& args, const DeviceWorkspace& workspace,
           void* stream) const override {
    check_call(made_.limits, args, made_.problem);
    made_.check_input("out", args.out);
    made_.check_input("dout", args.dout);
    if (args.q.device != kCpuDevice) keep_with_capture(shared_from_this(), stream);
    const Combination added = args.is_accumulating ? Combination::Add : Combination::Write;
    const Combination keys = args.is_writing_keys ? Combination::Write : added;
    RunTensors own;
    const Output outputs[] = {made_.output(args.dq, added, own), made_.output(args.dk, keys, own),
                              made_.output(args.dv, keys, own),
                              made_.sum_output(args.dsink, added, own)};
    made_.place(own, workspace, stream);
    call(args, outputs, stream);
    for (const Output& output : outputs) output.store(stream);
  }

 private:
  void call(const BackwardArgs& args, std::span<const Output, 4> outputs, void* stream) const {
    const CTensor q(args.q), k(args.k), v(args.v), sink(args.sink), out(args.out), lse(args.lse);
    const CTensor dout(args.dout), dlse(args.dlse), dq(outputs[0].written());
    const CTensor dk(outputs[1].written()), dv(outputs[2].written()), dsink(outputs[3].written());
    magi_attention_inputs inputs = to_c(args.params);
    inputs.q = q.get();
    inputs.k = k.get();
    inputs.v = v.get();
    inputs.sink = sink.get();
    const magi_attention_result result{.struct_size = sizeof(magi_attention_result),
                                       .out = out.get(),
                                       .lse = lse.get(),
                                       .max_logits = nullptr};
    const magi_attention_gradients gradients{.struct_size = sizeof(magi_attention_gradients),
                                             .dout = dout.get(),
                                             .dlse = dlse.get(),
                                             .dq = dq.get(),
                                             .dk = dk.get(),
                                             .dv = dv.get(),
                                             .dsink = dsink.get(),
                                             .workspace = nullptr};
    made_.handle->backward(inputs, result, gradients, stream);
  }

  SuppliedProblem made_;
};

class SuppliedBackend final : public AttentionBackend {
 public:
  explicit SuppliedBackend(const magi_attention_backend& table)
      : table_(std::make_shared<const Table>(table)), limits_(to_limits(table.limits)) {}

  const std::string& name() const override { return table_->name; }
  const AttentionLimits& limits() const override { return limits_; }
  bool serves(std::int32_t device) const override {
    return (device == kCpuDevice ? table_->functions.serves_cpu : table_->functions.serves_gpu) !=
           0;
  }

  std::shared_ptr<const PreparedForward> prepare_forward(
      const ForwardArgs& args, const ForwardTuning& tuning) const override {
    check_problem(limits_, args);
    return std::make_shared<const SuppliedForward>(make(
        problem_of(args), {args.q, args.k, args.v}, args.slices, {.sm_margin = tuning.sm_margin}));
  }
  std::shared_ptr<const PreparedBackward> prepare_backward(
      const BackwardArgs& args, const BackwardTuning& tuning) const override {
    check_problem(limits_, args);
    return std::make_shared<const SuppliedBackward>(
        make(problem_of(args), {args.q, args.k, args.v}, args.slices,
             {.is_backward = true,
              .is_deterministic = tuning.is_deterministic,
              .sm_margin = tuning.sm_margin}));
  }

 private:
  SuppliedProblem make(const AttentionProblem& problem, const Tensors& tensors,
                       std::span<const BandSlice> slices, const Choices& choices) const {
    const std::int64_t heads_kv = problem.k[1];
    if (heads_kv < 1 || problem.q[1] % heads_kv != 0) {
      throw invalid("heads_q", problem.q[1], "multiples of heads_kv");
    }
    return {limits_, problem, make_handle(table_, tensors, slices, choices)};
  }

  std::shared_ptr<const Table> table_;
  AttentionLimits limits_;
};

void check_table(const magi_attention_backend& table) {
  if (table.name == nullptr) throw invalid("backend.name", "null", "a name");
  const bool is_whole = table.plan != nullptr && table.forward != nullptr &&
                        table.backward != nullptr && table.release != nullptr &&
                        table.last_error != nullptr;
  if (!is_whole) {
    throw invalid("backend", "a table with a null entry",
                  "plan, forward, backward, release and last_error");
  }
  if (table.serves_cpu == 0 && table.serves_gpu == 0) {
    throw invalid("backend.serves_cpu", 0, "1, or serves_gpu 1");
  }
  to_limits(table.limits);
}

HeadDims to_dims(const char* name, HeadDims dims) {
  if (dims.min >= 1 && dims.max >= dims.min && dims.multiple >= 1) return dims;
  throw invalid(std::string("backend.limits, dims of ") + name,
                std::to_string(dims.min) + " to " + std::to_string(dims.max) + " by " +
                    std::to_string(dims.multiple),
                "1 <= min <= max, multiples of 1 or more");
}

}  // namespace

AttentionLimits to_limits(const magi_attention_limits& given) {
  constexpr std::int32_t kAllTypes = 15;
  if (given.dtypes < 1 || given.dtypes > kAllTypes) {
    throw invalid("backend.limits.dtypes", given.dtypes, "bits 0 (float64) to 3 (bfloat16)");
  }
  if (given.stride_bytes < 1) {
    throw invalid("backend.limits.stride_bytes", given.stride_bytes, "1 or more");
  }
  return {.dim_qk = to_dims("q and k", {given.min_dim_qk, given.max_dim_qk, given.dim_qk_multiple}),
          .dim_v = to_dims("v", {given.min_dim_v, given.max_dim_v, given.dim_v_multiple}),
          .types = static_cast<std::uint32_t>(given.dtypes),
          .stride_bytes = given.stride_bytes,
          .has_float_outputs = given.has_float_outputs != 0,
          .has_sink = given.has_sink != 0,
          .has_softcap = given.has_softcap != 0,
          .has_max_logits = given.has_max_logits != 0,
          .has_dlse = given.has_dlse != 0,
          .has_any_scale = given.has_any_scale != 0};
}

magi_attention_limits to_c(const AttentionLimits& limits) {
  return {.struct_size = sizeof(magi_attention_limits),
          .min_dim_qk = limits.dim_qk.min,
          .max_dim_qk = limits.dim_qk.max,
          .dim_qk_multiple = limits.dim_qk.multiple,
          .min_dim_v = limits.dim_v.min,
          .max_dim_v = limits.dim_v.max,
          .dim_v_multiple = limits.dim_v.multiple,
          .dtypes = static_cast<std::int32_t>(limits.types),
          .stride_bytes = limits.stride_bytes,
          .has_float_outputs = limits.has_float_outputs,
          .has_sink = limits.has_sink,
          .has_softcap = limits.has_softcap,
          .has_max_logits = limits.has_max_logits,
          .has_dlse = limits.has_dlse,
          .has_any_scale = limits.has_any_scale};
}

std::shared_ptr<const AttentionBackend> make_supplied_backend(const magi_attention_backend& table) {
  check_table(table);
  return std::make_shared<const SuppliedBackend>(table);
}

}  // namespace magi
