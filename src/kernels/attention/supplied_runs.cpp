// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/supplied_runs.hpp"

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "cuda/arena.hpp"
#include "kernels/attention/combine.hpp"
#include "kernels/attention/supplied_device.hpp"
#include "kernels/check/check_tensor.hpp"

namespace magi {
namespace {

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
struct MadeRuns {
  AttentionLimits limits;
  AttentionProblem problem;
  std::unique_ptr<const SuppliedHandle> handle;
  std::int64_t workspace_bytes = 0;

  DType sum_type() const { return accumulator_type(problem.type); }
  Output output(const TensorView& given, Combination how, RunTensors& own) const {
    return {given, how, limits.has_float_outputs || given.dtype == problem.type,
            limits.has_float_outputs ? sum_type() : problem.type, own};
  }
  Output sum_output(const TensorView& given, Combination how, RunTensors& own) const {
    return {given, how, true, sum_type(), own};
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
    arena.add<std::byte>(size * static_cast<std::int64_t>(dtype_bytes(accumulator_type(type))));
  }
  return static_cast<std::int64_t>(arena.size_bytes());
}

std::int64_t size_of(const AttentionProblem::Shape& shape) {
  return shape[0] * shape[1] * shape[2];
}

/// An optional tensor: none where it has no data, whatever shape it carries.
TensorView optional(const TensorView& tensor) { return tensor.empty() ? TensorView{} : tensor; }

class SuppliedForward final : public PreparedForward,
                              public std::enable_shared_from_this<SuppliedForward> {
 public:
  explicit SuppliedForward(MadeRuns made) : made_(std::move(made)) {
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
    // Where they are merged, `out` and `lse` need stand-ins, whose store() is merge() below.
    const Combination merged = is_merging ? Combination::Add : Combination::Write;
    const Output out = made_.output(args.out, merged, own);
    const Output lse = made_.sum_output(args.lse, merged, own);
    const Output max_logits = made_.sum_output(
        optional(args.max_logits), is_merging ? Combination::Max : Combination::Write, own);
    made_.place(own, workspace, stream);
    ForwardArgs plain = args;
    plain.sink = optional(args.sink);
    plain.out = out.written();
    plain.lse = lse.written();
    plain.max_logits = max_logits.written();
    made_.handle->forward(plain, stream);
    max_logits.store(stream);
    if (is_merging) {
      merge({out.written(), lse.written()}, {args.out, args.lse}, stream);
    } else {
      out.store(stream);
    }
  }

 private:
  MadeRuns made_;
};

class SuppliedBackward final : public PreparedBackward,
                               public std::enable_shared_from_this<SuppliedBackward> {
 public:
  explicit SuppliedBackward(MadeRuns made) : made_(std::move(made)) {
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
    if (args.q.device != kCpuDevice) keep_with_capture(shared_from_this(), stream);
    const Combination added = args.is_accumulating ? Combination::Add : Combination::Write;
    const Combination keys = args.is_writing_keys ? Combination::Write : added;
    RunTensors own;
    const Output dq = made_.output(args.dq, added, own);
    const Output dk = made_.output(args.dk, keys, own);
    const Output dv = made_.output(args.dv, keys, own);
    const Output dsink = made_.sum_output(optional(args.dsink), added, own);
    made_.place(own, workspace, stream);
    BackwardArgs plain = args;
    plain.dlse = optional(args.dlse);
    plain.sink = optional(args.sink);
    plain.dq = dq.written();
    plain.dk = dk.written();
    plain.dv = dv.written();
    plain.dsink = dsink.written();
    made_.handle->backward(plain, stream);
    for (const Output* output : {&dq, &dk, &dv, &dsink}) output->store(stream);
  }

 private:
  MadeRuns made_;
};

}  // namespace

std::shared_ptr<const PreparedForward> supplied_forward(
    const AttentionLimits& limits, const AttentionProblem& problem,
    std::unique_ptr<const SuppliedHandle> handle) {
  return std::make_shared<const SuppliedForward>(MadeRuns{limits, problem, std::move(handle)});
}

std::shared_ptr<const PreparedBackward> supplied_backward(
    const AttentionLimits& limits, const AttentionProblem& problem,
    std::unique_ptr<const SuppliedHandle> handle) {
  return std::make_shared<const SuppliedBackward>(MadeRuns{limits, problem, std::move(handle)});
}

}  // namespace magi
