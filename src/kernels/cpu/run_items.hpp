// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <new>
#include <vector>

#include "kernels/cpu/check_args.hpp"
#include "kernels/cpu/micro_kernel_table.hpp"

namespace magi::cpu {

/// Cache-line aligned elements.
template <typename T>
struct AlignedAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};
  AlignedAllocator() = default;
  template <typename U>
  explicit AlignedAllocator(const AlignedAllocator<U>&) {}
  T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), kAlignment));
  }
  void deallocate(T* data, std::size_t) { ::operator delete(data, kAlignment); }
  friend bool operator==(const AlignedAllocator&, const AlignedAllocator&) { return true; }
};

template <typename T>
using Buffer = std::vector<T, AlignedAllocator<T>>;

template <typename T>
Buffer<T> make_buffer(std::int64_t count) {
  return Buffer<T>(static_cast<std::size_t>(count));
}

/// Items of one kind and about what they cost, in floating-point operations all together.
struct Work {
  std::int64_t num_items = 0;
  double flops = 0;
};

/// Threads for independent items. Small work gets one: starting a team and waiting for it costs
/// more than it saves, above all where other processes use the cores.
std::int32_t num_threads_for(const Work& work);

/// The calling thread's place in its team.
std::size_t thread_index();

/// Runs run(item, workspace) for every item, workspaces being one per thread. An item's result
/// must not depend on the workspace it gets: that keeps results independent of the thread count.
/// The items must not throw.
template <typename Workspace, typename Run>
void run_items(const Work& work, const Workspace& prototype, const Run& run) {
  const std::int32_t num_threads = num_threads_for(work);
  std::vector<Workspace> workspaces(static_cast<std::size_t>(num_threads), prototype);
#pragma omp parallel for schedule(dynamic) num_threads(num_threads) if (num_threads > 1)
  for (std::int64_t item = 0; item < work.num_items; ++item) {
    run(item, workspaces[thread_index()]);
  }
}

/// Target number of rows of one tile: packed columns are reused that often.
inline constexpr std::int64_t kTileRows = 192;

/// The way query rows fall into items: a tile holds tile_tokens tokens x item_heads heads of one kv
/// head, row = token * item_heads + head, so that neighbours in a strip see nearly the same keys.
struct QueryTiling {
  std::int32_t tile_tokens = 1;
  std::int64_t item_heads = 1;
  std::int64_t num_splits = 1;  ///< items of a tile and kv head; the last may have fewer heads
  std::int64_t num_tiles = 0;
  std::int64_t num_items = 0;

  std::int64_t tile_rows() const { return tile_tokens * item_heads; }
};

/// Tiles hold at most `most_tokens` tokens.
QueryTiling tile_queries(const Sizes& sizes, std::int64_t most_tokens = kTileRows);

/// One item: tokens x heads [head_begin, head_begin + num_heads), all reading kv head kv_head.
struct QueryItem {
  std::int64_t tile = 0;
  Range tokens;
  std::int64_t kv_head = 0;
  std::int64_t head_begin = 0;
  std::int64_t num_heads = 0;

  std::int64_t num_rows() const { return (tokens.end - tokens.begin) * num_heads; }
};

/// Items in the order they should start: long (late) tiles first.
QueryItem query_item(const QueryTiling& tiling, const Sizes& sizes, std::int64_t index);

/// Calls visit(row, token, head) for the rows of an item.
template <typename Visit>
void for_each_row(const QueryItem& item, const Visit& visit) {
  std::int64_t row = 0;
  for (std::int32_t token = item.tokens.begin; token < item.tokens.end; ++token) {
    for (std::int64_t h = 0; h < item.num_heads; ++h) visit(row++, token, item.head_begin + h);
  }
}

/// Scores are computed in base 2: query_factor turns q.k into the argument of the softcap, or of
/// the base-2 exponential where there is none.
template <typename Real>
struct ScoreFactors {
  Real scale;         ///< softmax_scale
  Real query_factor;  ///< multiplies q (or k) before the product
  Real softcap;       ///< 0, or softcap * log2(e)
  Real logit_factor;  ///< turns a product into softmax_scale * q.k
};

template <typename Real>
ScoreFactors<Real> score_factors(const AttentionParams& params, std::int64_t dim_qk);

}  // namespace magi::cpu
