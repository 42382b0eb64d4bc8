// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/schedule/host/tile_run.hpp"
#include "kernels/sm90/forward/scheduler.cuh"

namespace magi::mma {

using sm90::ForwardConfig;
using sm90::ForwardParams;

/// The place of a CTA in its walk of items; in shared memory, as one thread needs it.
struct WalkState {
  sm90::Item item;
  sm90::ItemPart part;
  sm90::ItemWait wait;  ///< not used: all keys are there
  std::int32_t record;  ///< the next one of the item
};

/// Takes items and walks their records, run by run, when the CTA asks for the next one. One thread
/// does so. Every CTA also draws the ticket that tells it that there are no more.
template <ForwardConfig kC>
class RunWalk {
 public:
  __device__ __forceinline__ RunWalk(WalkState& state, const ForwardParams& params)
      : at_(state), params_(params) {}

  __device__ __forceinline__ void begin() const { at_.record = at_.item.record_end = 0; }

  /// Fills in the next run: one of a record, or without tiles where an item has no keys, or the end
  /// of items.
  __device__ __forceinline__ void next(sm90::RunMessage& run) const {
    while (true) {
      while (at_.record < at_.item.record_end) {
        if (run_record(run, at_.record++)) return;
      }
      const std::int32_t ticket = take_ticket();
      if (ticket >= num_items()) {
        run = {.flags = sm90::kEndOfItems};
        return;
      }
      at_.item = sm90::load_item<kC>(params_, num_works(), ticket, at_.part, at_.wait);
      at_.record = at_.item.record_begin;
      if (at_.item.record_begin >= at_.item.record_end) {
        run = {.token_begin = at_.item.tile * params_.tile_tokens,
               .head_begin = at_.item.head_begin,
               .flags = sm90::kFirstRun | sm90::kLastRun};
        return;
      }
    }
  }

 private:
  __device__ __forceinline__ std::int32_t num_works() const {
    return params_.outcome == nullptr ? params_.num_works : params_.outcome->num_works;
  }
  __device__ __forceinline__ std::int32_t num_items() const {
    return num_works() * params_.head_groups;
  }
  /// The counter wraps to 0 by itself when all CTAs have come to the end.
  __device__ __forceinline__ std::int32_t take_ticket() const {
    const unsigned limit = static_cast<unsigned>(num_items()) + gridDim.x - 1;
    return static_cast<std::int32_t>(atomicInc(params_.ticket, limit));
  }

  /// Returns false for a record that leaves the tile no pair.
  __device__ __forceinline__ bool run_record(sm90::RunMessage& message, std::int32_t index) const {
    const std::int32_t token = at_.item.tile * params_.tile_tokens;
    const Range rows{token, token + params_.tile_tokens};
    BandSlice band = shrink(cut_q(sm90::load_band(params_.records + index), rows));
    if (band.q0 >= band.q1) return false;
    const bool is_first = index == at_.item.record_begin;
    const bool is_last = index + 1 == at_.item.record_end;
    if (is_first) band.k1 = min(band.k1, at_.part.k_end);
    if (is_last) band.k0 = max(band.k0, at_.part.k_begin);
    const std::int32_t row_end = min(rows.end, params_.rows_q);
    const TileRun run = tile_run(band, token, row_end, kC.keys);
    message = {.token_begin = token,
               .head_begin = at_.item.head_begin,
               .num_tiles = run.num_tiles,
               .flags = (is_first ? sm90::kFirstRun : 0) | (is_last ? sm90::kLastRun : 0),
               .k_end = run.k_end,
               .full_begin = run.full_begin,
               .full_end = run.full_end,
               .partial = at_.part.partial,
               .q0 = band.q0,
               .q1 = band.q1,
               .k0 = band.k0,
               .k1 = band.k1,
               .d_min = band.d_min,
               .d_max = band.d_max};
    return true;
  }

  WalkState& at_;
  const ForwardParams& params_;
};

}  // namespace magi::mma
