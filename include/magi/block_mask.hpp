// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "magi/attention_cuda.hpp"

// Attention on GPUs of compute capability 9.0 under a mask of blocks in device memory, which a
// router or an indexer makes anew in every layer and which may differ between kv heads.
namespace magi {

/// Block i of q_block queries sees block j of k_block keys in all query heads of kv head h as often
/// as visible[h, i, j] says; a block that counts n times adds n times. The last block of a side may
/// be shorter.
struct BlockMask {
  const std::uint8_t* visible = nullptr;  ///< [heads, q blocks, k blocks] without gaps, 0 to 254
  std::int32_t device = 0;                ///< that of q
  std::int32_t heads = 1;                 ///< the kv heads, or 1: the same for all
  std::int32_t q_block = 64;              ///< 1 to 256
  std::int32_t k_block = 64;              ///< 1 to 256
  bool is_causal = false;                 ///< query i sees no key after i + rows_k - rows_q
  /// Visible blocks of each head that there is room for, each as often as it counts; 0: all of a
  /// mask whose entries are 0 and 1.
  std::int64_t max_blocks = 0;
  /// Runs of neighbouring visible blocks of all heads that are allowed; 0: any number.
  std::int64_t max_runs = 0;
  /// Null, or [2] on the device. The forward writes how many runs or blocks there are beyond the
  /// room, or lists with entries above 254 (0: all results hold), and -1. A backward whose results
  /// do not hold writes the like of its own lists; another leaves it.
  std::int64_t* error_word = nullptr;
};

/// Why the kernels for blocks do not take a call, as one sentence; empty where they do. They take
/// bfloat16 and float16, head dims up to 128, blocks of keys that are multiples of 16, blocks of
/// queries that are multiples of 64 / h for some power of two h up to 16 that divides the query
/// heads of a kv head, no softcap and no max_logits. args.slices is not read, data may be null.
std::string block_mask_refusal(const ForwardArgs& args, const BlockMask& mask);

/// Bytes that a call needs. Throws InvalidArgument naming what is not allowed.
std::int64_t forward_workspace_bytes(const ForwardArgs& args, const BlockMask& mask);

/// Enqueues out and lse of `args` under the mask on `stream`. The host reads nothing of the mask
/// and nothing waits, so the call can be captured in a graph and replayed with another mask in the
/// same memory. Blocks that nobody sees are not read. A mask with more visible blocks or runs than
/// there is room for, or with an entry above 254, makes all of out and lse NaN. Results have equal
/// bits from call to call. Of `tuning` packed_heads and sm_margin are read. Throws InvalidArgument
/// naming what is not allowed, CudaError when a launch fails.
void attention_forward_cuda(const ForwardArgs& args, const BlockMask& mask,
                            const DeviceWorkspace& workspace, const ForwardTuning& tuning,
                            void* stream);

/// Bytes that a backward call needs, as deterministic as it is to be. Throws InvalidArgument naming
/// what is not allowed.
std::int64_t backward_workspace_bytes(const BackwardArgs& args, const BlockMask& mask,
                                      bool is_deterministic = false);

/// Enqueues the gradients of `args` under the mask on `stream`; the host reads nothing of the mask
/// and nothing waits. dk, dv and dsink have equal bits from call to call, dq with is_deterministic,
/// which calls with a softcap refuse and calls of other blocks than the forward takes. What lies in
/// blocks that no block sees, or that see none, may hold anything. Where the mask has no room,
/// or an entry above 254, all of dq, dk and dv is NaN; max_runs is not read. Of `tuning` sm_margin
/// and is_deterministic are read. Throws InvalidArgument naming what is not allowed, CudaError when
/// a launch fails.
void attention_backward_cuda(const BackwardArgs& args, const BlockMask& mask,
                             const DeviceWorkspace& workspace, const BackwardTuning& tuning,
                             void* stream);

}  // namespace magi
