// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "magi/attention.hpp"

namespace magi {

/// The keys of every query as lists, in place of slices, as an indexer makes them anew in each
/// layer. Entry e of list [i, h] lets query i see keys [e * block_keys, (e + 1) * block_keys), up
/// to rows_k, in all query heads of kv head h. Entries come in any order; -1 is none, and a block
/// that stands n times counts n times. Other entries that are no block of the keys count as none,
/// and the report tells of them.
struct KeyLists {
  TensorView indices;  ///< int32 [rows_q, heads_kv, entries]
  std::int32_t block_keys = 1;
  TensorView report = {};  ///< empty, or int64 [2], written by the forward: how many entries are no
                           ///< block, and where the first is in row-major indices (-1: none)
};

/// Does what attention_forward_cpu and attention_backward_cpu do, under lists; args.slices
/// is empty. Each result is summed in the order of its list and of the queries, so that it does not
/// depend on the number of threads.
void attention_forward_cpu(const ForwardArgs& args, const KeyLists& lists);
void attention_backward_cpu(const BackwardArgs& args, const KeyLists& lists);

/// The forward on a GPU of compute capability 9.0: all tensors in device memory, float16 or
/// bfloat16, head dims up to 128, any number of query heads of a kv head (of 64 or 128 at a time;
/// fewer take as long as 64). Of up to 32, without softcap and max_logits, neighbouring queries
/// share 64: keys that their lists share are read once. Their lists take up to about 256 MiB of the
/// library's pool, or of a graph's own memory, until the call is done. Or latents: q and k of 576
/// in bfloat16, v the first 512 columns of k in its memory, without softcap and max_logits.
/// Enqueued on `stream` (a cudaStream_t; null: the default stream): the host reads no entry and
/// nothing waits, so the call can be captured and replayed with other entries in the same tensor.
/// Bitwise equal results from call to call. sm_margin: multiprocessors left to others. Throws
/// InvalidArgument naming the tensor, CudaError when the launch fails.
void attention_forward_cuda(const ForwardArgs& args, const KeyLists& lists, std::int32_t sm_margin,
                            void* stream);

/// Choices of a backward call under lists on a GPU.
struct ListedBackwardTuning {
  std::int32_t sm_margin = 0;  ///< multiprocessors left to others
  /// dk and dv are sums in float32 that have no order, and may differ in their last bits from call
  /// to call. (dq and dsink repeat.) Else they have one: slower, with memory for parts of sums.
  bool is_fast = false;
};

/// The backward, as the forward. out and dout have the type of q, and nothing is added to what is
/// there. Latents have no dv: it is added to dk. Rows whose lse * log2(e) is 2^14 (float16: 2^11)
/// and more go through a slow kernel in float64: one float32 does not hold such an lse. Memory for
/// float32 sums, 4 * (2 * heads_q * rows_q + heads_kv * rows_k * (dim_qk + dim_v)) bytes, comes
/// from the library's pool in stream order; a graph holds its own. Where is_fast is false, it is
/// about 256 MiB more, or what one query needs.
void attention_backward_cuda(const BackwardArgs& args, const KeyLists& lists,
                             const ListedBackwardTuning& tuning, void* stream);

}  // namespace magi
