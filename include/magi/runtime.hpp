// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "magi/attention.hpp"
#include "magi/comm.hpp"
#include "magi/device_allocator.hpp"
#include "magi/plan.hpp"
#include "magi/tensor.hpp"

namespace magi {

/// The way gradients of an undispatched (replicated) tensor reach the shards.
enum class UndispatchGradient : std::int32_t {
  Replicated = 0,  ///< every rank holds the whole gradient: keep the own rows
  Partial = 1,     ///< every rank holds a part of the sum: reduce-scatter
};

/// Global row of every local row of `rank`, in local order; padding rows are clamped to the last
/// valid row.
std::vector<std::int64_t> position_ids(const Placement& placement, std::int32_t rank,
                                       std::int32_t num_valid_rows);

/// The inputs of an attention call on one rank. Rows are the rank's own, in the placement's order.
struct AttentionInputs {
  TensorView q;          ///< [local rows_q, heads_q, dim_qk], float64, float32, float16 or bfloat16
  TensorView k;          ///< [local rows_k, heads_kv, dim_qk], type of q
  TensorView v;          ///< [local rows_k, heads_kv, dim_v], type of q
  TensorView sink = {};  ///< empty: none. [sinks, heads_q] or [local rows_q, sinks, heads_q],
                         ///< float32 (float64); heads have stride 1, but for the backend cpu
  AttentionParams params = {};
  /// If true on a GPU, dq may differ in its last bits from call to call, which is faster. Read by
  /// backward.
  bool is_fast_backward = false;
};

/// The result of one forward call on a rank; what backward needs besides the inputs.
struct AttentionResult {
  TensorView out;              ///< [local rows_q, heads_q, dim_v], type of q or float32
  TensorView lse;              ///< [local rows_q, heads_q], float32 (float64)
  TensorView max_logits = {};  ///< empty, or [heads_q] like lse: already the maximum over ranks
};

/// The gradients that backward starts from.
struct OutputGradients {
  TensorView dout;       ///< [local rows_q, heads_q, dim_v], type of q or float32 (float64)
  TensorView dlse = {};  ///< empty, or like lse: gradient through lse
};

/// The gradients that backward writes; types are those of q, k, v or float32.
struct InputGradients {
  TensorView dq, dk, dv;
  TensorView dsink = {};  ///< empty, or like sink: of this rank's rows; the caller sums over ranks
                          ///< if wanted
};

/// Choices of an attention that change no result beyond rounding.
struct AttentionOptions {
  /// The source of the device memory of calls. Empty: a stream-ordered pool of the library's,
  /// shared by all objects on a device.
  DeviceAllocator allocator = {};
  /// Multiprocessors that attention leaves to the transport while rows are on their way: 0 or more,
  /// and less than a GPU has.
  std::int32_t exchange_sms = 8;
  /// Partial gradients of keys travel in the type of k instead of the accumulator's: half of the
  /// bytes, and each is rounded once before owners add them. The same on all ranks.
  bool are_partials_rounded = false;
  /// Name of an attention backend that the process has; empty: the library's own for the device of
  /// a call's tensors.
  std::string backend = {};
};

/// The subject of a span: a whole pass, a step of its list, or a wait for the end of one.
enum class SpanKind : std::int32_t { Pass, Step, Await };

/// Something that a rank's host did in a call, by std::chrono::steady_clock. On a GPU that is to
/// enqueue: when the work ran, a profiler knows. An exchange is started in its step and ends in a
/// wait, which combines the rows that came back.
struct StepSpan {
  SpanKind kind = SpanKind::Step;
  bool is_backward = false;
  std::int32_t call = 0;  ///< number of the pass since the trace was started
  std::int32_t step = 0;  ///< position in RankPlan::forward or backward; -1: all of the pass
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

struct AttentionState;

/// Runs a plan on one rank: keeps the row tables and schedules derived from it, and in host memory
/// the buffers of calls. Calls are collective and come in the same order on every rank of the
/// group, with the same parameters and optional tensors: a rank without rows gives them with no
/// rows. Ranks that differ get a CommError, but over nccl (docs/reliability.md). The caller owns
/// all tensors. Same inputs give the same bits, unless `is_fast_backward`.
///
/// Tensors of a call are all in host memory or all on one GPU (bfloat16 or float16 q, k, v; head
/// dims that are multiples of 8 up to 256; strides that are multiples of 16 bytes). On a GPU a call
/// enqueues its work after that of `stream` (a cudaStream_t; null: the default stream) and
/// returns: nothing waits for the device but the first call of a kind, which makes its schedules.
class DistributedAttention {
 public:
  /// Collective: compares the plan's digest with the other ranks' (throws CommError naming them),
  /// but for groups whose first call on a GPU does so (Communicator::compares_plans): these leave
  /// NaN in that call's results, and throw from the next one or from Communicator::check.
  /// `communicator` must outlive the object.
  DistributedAttention(std::shared_ptr<const Plan> plan, Communicator& communicator,
                       const AttentionOptions& options = {});
  ~DistributedAttention();
  /// Calls of an object that was moved from throw InvalidArgument.
  DistributedAttention(DistributedAttention&&) noexcept;
  DistributedAttention& operator=(DistributedAttention&&) noexcept;

  const Plan& plan() const;
  /// Bytes held for received rows, partial gradients and accumulators; grows at the first calls. On
  /// a GPU: schedules that are held, and what the largest call took from the allocator.
  std::size_t workspace_bytes() const;

  /// Fills `result`. Throws InvalidArgument naming a tensor that does not fit the plan, before
  /// anything is sent.
  void forward(const AttentionInputs& inputs, const AttentionResult& result,
               void* stream = nullptr);
  /// Remote k and v are cast again; partial dk, dv are summed at the owner in rank order.
  void backward(const AttentionInputs& inputs, const AttentionResult& result,
                const OutputGradients& output_gradients, const InputGradients& input_gradients,
                void* stream = nullptr);

  /// Makes calls note from here on what the host does when; earlier notes are dropped.
  void start_trace();
  /// The notes in the order in which spans ended, and no more from here on. Empty where no trace
  /// was started.
  std::vector<StepSpan> stop_trace();

 private:
  AttentionState& state() const;

  std::unique_ptr<AttentionState> state_;
};

/// Global [rows, ...] -> local [local rows, ...]; rows beyond the global tensor (padding) are set
/// to pad_value. Any data type, up to three trailing axes, rows may be strided. No communication.
/// This and what follows take tensors on a GPU too, row-major without gaps: their work is enqueued
/// on `stream`, which host tensors ignore.
void dispatch(const TensorView& global, const Placement& placement, std::int32_t rank,
              const TensorView& local, double pad_value = 0.0, void* stream = nullptr);
/// Local -> global on every rank; padding is dropped: global holds up to placement.num_rows rows.
/// Collective.
void undispatch(const TensorView& local, const Placement& placement, Communicator& communicator,
                const TensorView& global, void* stream = nullptr);
/// Gradient of undispatch: global gradient -> local gradient, 0 in padding rows. Partial mode is
/// collective and takes floating-point types only; sums run in float32 (float64), own part first,
/// then the others in rank order.
void undispatch_backward(const TensorView& global_gradient, const Placement& placement,
                         Communicator& communicator, UndispatchGradient mode,
                         const TensorView& local_gradient, void* stream = nullptr);
/// Distributed roll along rows in the order of the sequence: out row (i + shift) mod num_valid_rows
/// = in row i; padding rows stay where they are. Moves only what changes rank. The gradient is the
/// roll by -shift. Collective.
void roll(const TensorView& local, const Placement& placement, std::int32_t num_valid_rows,
          std::int64_t shift, Communicator& communicator, const TensorView& out,
          void* stream = nullptr);

/// Runs `body` once per rank, each on a thread of this process with its communicator and its part
/// of the cores, and waits.
/// When a body throws, the group is aborted and the exception of the lowest such rank (one that is
/// not the abort itself) leaves here. Throws CommError at once where a thread cannot start, and
/// InvalidArgument for an empty body.
void run_ranks(std::int32_t num_ranks, const std::function<void(Communicator&)>& body,
               const CommOptions& options = {});

}  // namespace magi
