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
  TensorView report;  ///< empty, or int64 [2], written by the forward: how many entries are no
                      ///< block, and where the first is in row-major indices (-1: none)
};

/// As attention_forward_cpu and attention_backward_cpu of attention.hpp, under lists; args.slices
/// is empty. Each result is summed in the order of its list and of the queries, so that it does not
/// depend on the number of threads.
void attention_forward_cpu(const ForwardArgs& args, const KeyLists& lists);
void attention_backward_cpu(const BackwardArgs& args, const KeyLists& lists);

}  // namespace magi
