// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "magi/attention.hpp"

// Attention on GPUs of compute capability 8.0 and later, best 9.0 (H100, H200). Inputs are bfloat16
// or float16, head dims multiples of 8 up to 256. The last dimension of q, k, v, out and their
// gradients is contiguous, their other strides are multiples of 16 bytes; other tensors are
// refused. Queries that see no key and keys that no query sees may hold anything, in q, k, v and
// dout, and have gradients of 0. What a NaN reaches in rows that are seen: docs/reliability.md.
namespace magi {

class PreparedForward;
class PreparedBackward;

/// Choices of a launch that do not change its result beyond rounding.
struct ForwardTuning {
  std::int32_t sm_margin = 0;     ///< multiprocessors left to others
  std::int32_t packed_heads = 0;  ///< query heads of one kv head per tile; 0: by modelled cost
  /// Tiles of rows with very many keys are cut by keys into splits, here called pieces, for many
  /// multiprocessors, and merged in order: into so many at most, all heads together. 0: two per
  /// multiprocessor; 1: none.
  std::int32_t max_pieces = 0;
  std::int32_t piece_cost = 0;  ///< least of a piece, in half tiles of 128 keys; 0: by the library
};

/// The schedule of one mask and shape, kept on the device: made once, used by any number of calls
/// with the same shapes and slices, from any threads and on any streams at once. Calls may be
/// captured; their graphs keep it, and executables of one captured graph must not run at the
/// same time. Destroying the last owner waits for the device.
class ForwardWork {
 public:
  /// Prepares for the shapes, types and slices of `args` (its data may be null) on the device of
  /// args.q. Blocks. Throws InvalidArgument naming what is not allowed.
  explicit ForwardWork(const ForwardArgs& args, const ForwardTuning& tuning = {});
  ~ForwardWork();
  ForwardWork(ForwardWork&&) noexcept;
  ForwardWork& operator=(ForwardWork&&) noexcept;

  /// Query heads per tile, as chosen.
  std::int32_t packed_heads() const;
  /// Pieces of tiles that were cut, all heads together. A call with pieces takes memory for them
  /// from the library's pool in stream order; a graph holds its own.
  std::int32_t num_pieces() const;
  std::int64_t size_bytes() const;  ///< on the device

  const PreparedForward& prepared() const { return *prepared_; }

 private:
  std::shared_ptr<const PreparedForward> prepared_;
};

/// Enqueues out, lse and max_logits of `args` on `stream` (a cudaStream_t; null: the default
/// stream). The slices are those of `work`; args.slices is not read. Bitwise equal results from
/// call to call. Throws InvalidArgument naming the tensor, CudaError when the launch fails.
void attention_forward_cuda(const ForwardArgs& args, const ForwardWork& work, void* stream);

/// Slices in device memory, as int32 tensors without gaps: ranges with types, as MagiAttention's.
struct DeviceSlices {
  TensorView q_ranges;    ///< [slices, 2]: begin, end
  TensorView k_ranges;    ///< [slices, 2]
  TensorView types = {};  ///< [slices], numbers of MaskType; empty: all full
};

/// Choices of a call whose list is made on the device.
struct DeviceListTuning {
  ForwardTuning forward = {};  ///< packed_heads 0: as many as are allowed
  /// Records (one per q tile and slice that it sees) that the workspace has room for; 0: by rows
  /// and number of slices. Tiles whose records do not fit search the slices instead, which is slow.
  std::int64_t record_capacity = 0;
  std::string backend = {};  ///< "sm90" or "mma"; empty: the first that serves the device
};

/// Device memory of the caller, aligned to 256 bytes; its contents need not survive between calls,
/// but calls that overlap in time must not share one.
struct DeviceWorkspace {
  void* data = nullptr;
  std::int64_t size_bytes = 0;
};

/// The findings of the device while it made a list.
struct DeviceListReport {
  struct BadSlice {
    std::int64_t index = 0;
    std::string field;  ///< "q_ranges[0]", "q_ranges[1]", "k_ranges[0]", "k_ranges[1]", "types"
  };
  std::optional<BadSlice> first_bad;  ///< lowest index, then the first field in that order
  bool is_overflowing = false;        ///< the capacity was exceeded: slow (forward), NaN (backward)
  std::int64_t num_records = 0;
  std::int32_t packed_heads = 0;  ///< as chosen
  std::int32_t num_pieces = 0;    ///< of tiles that were cut, all heads together
};

/// Bytes that a call with `num_slices` slices needs. args.slices is not read, data may be null.
std::int64_t forward_workspace_bytes(const ForwardArgs& args, std::int64_t num_slices,
                                     const DeviceListTuning& tuning = {});

/// Does the above with a list made on the device in stream order, which is the host's for the same
/// packed heads: nothing waits and the host reads no slice, so the call can be captured in a graph
/// and replayed with other slices in the same tensors. Range ends outside the tensors are clamped,
/// reversed ranges and unknown types are empty; the report tells. Throws InvalidArgument naming the
/// tensor, CudaError when a launch fails.
void attention_forward_cuda(const ForwardArgs& args, const DeviceSlices& slices,
                            const DeviceWorkspace& workspace, const DeviceListTuning& tuning,
                            void* stream);

/// The report of the last call that used the workspace; waits for `stream`.
DeviceListReport read_device_list_report_sync(const DeviceWorkspace& workspace, void* stream);

/// The order in which a CTA walks its query heads of a k tile.
enum class HeadWalk : std::uint8_t {
  ByCost,
  Together,  ///< rows from the last to the first, all heads of each
  InTurn,    ///< all rows of a head, then those of the next
};

/// Choices of a backward call that do not change its result beyond rounding.
struct BackwardTuning {
  std::int32_t sm_margin = 0;       ///< multiprocessors that the main kernel leaves to others
  std::int32_t packed_heads = 0;    ///< query heads of one kv head per q tile; 0: by modelled cost
  std::int32_t heads_per_item = 0;  ///< query heads that one CTA walks for a k tile; 0: by cost
  /// Bitwise equal dq from call to call; dk, dv and dsink always are. False: dq is added in any
  /// order where that is faster, which it is not for windows and short documents.
  bool is_deterministic = true;
  std::int32_t section_heads = 0;  ///< kv heads walked at a time, all in the tail; 0: by cost
  HeadWalk head_walk = HeadWalk::ByCost;
  /// The plain schedule: made by one rule without a search (docs/kernels/schedules.md).
  /// heads_per_item, section_heads and head_walk are 0, and no keys come.
  bool is_plain = false;
};

/// The backward's schedule of one mask and shape, kept on the device. Calls change nothing in it:
/// calls with different workspaces may share it, from any threads and on any streams at once.
/// Graphs of captured calls keep it.
class BackwardWork {
 public:
  /// Prepares for the shapes, types and slices of `args` (its data may be null) on the device of
  /// args.q. Blocks. Throws InvalidArgument naming what is not allowed.
  explicit BackwardWork(const BackwardArgs& args, const BackwardTuning& tuning = {});
  ~BackwardWork();
  BackwardWork(BackwardWork&&) noexcept;
  BackwardWork& operator=(BackwardWork&&) noexcept;

  /// Query heads per tile and per item of the first k tiles, as chosen.
  std::int32_t packed_heads() const;
  std::int32_t heads_per_item() const;
  std::int64_t size_bytes() const;       ///< of the schedule, on the device
  std::int64_t workspace_bytes() const;  ///< that a call needs

  const PreparedBackward& prepared() const { return *prepared_; }

 private:
  std::shared_ptr<const PreparedBackward> prepared_;
};

/// Enqueues the gradients of `args` on `stream`. Tensors as for the forward, out and dout each of
/// the input type or float32 (dout is then rounded), dq, dk and dv likewise, float32 where they
/// are added to. The slices are those of `work`; args.slices is not read. Nothing waits, so the
/// call can be captured in a graph. Throws InvalidArgument naming the tensor, CudaError when a
/// launch fails.
void attention_backward_cuda(const BackwardArgs& args, const BackwardWork& work,
                             const DeviceWorkspace& workspace, void* stream);

/// Choices of a backward call whose list is made on the device.
struct DeviceBackwardTuning {
  std::int32_t sm_margin = 0;     ///< multiprocessors that the main kernel leaves to others
  std::int32_t packed_heads = 0;  ///< query heads of one kv head per q tile; 0: by rows and slices
  bool is_deterministic = true;   ///< dq is bitwise equal from call to call; slower
  /// Records (one per k tile and slice that sees it) that the workspace has room for; 0: by rows
  /// and number of slices. Where they do not fit the gradients become NaN.
  std::int64_t record_capacity = 0;
  std::string backend = {};  ///< see DeviceListTuning
};

/// Bytes that a call with `num_slices` slices needs. args.slices is not read, data may be null.
std::int64_t backward_workspace_bytes(const BackwardArgs& args, std::int64_t num_slices,
                                      const DeviceBackwardTuning& tuning = {});

/// Does the above with the plain list (BackwardTuning::is_plain) made on the device in stream
/// order: nothing waits and the host reads no slice, so the call can be captured in a graph, with
/// the forward before it, and replayed with other slices in the same tensors. Bad slices act as in
/// the forward. If records or their semaphore values do not fit the workspace, dq, dk and dv become
/// NaN. The report says both. Throws InvalidArgument naming the tensor, CudaError when a launch
/// fails.
void attention_backward_cuda(const BackwardArgs& args, const DeviceSlices& slices,
                             const DeviceWorkspace& workspace, const DeviceBackwardTuning& tuning,
                             void* stream);

/// The report of the last backward call that used the workspace, num_pieces 0; waits for `stream`.
DeviceListReport read_backward_list_report_sync(const DeviceWorkspace& workspace, void* stream);

}  // namespace magi
