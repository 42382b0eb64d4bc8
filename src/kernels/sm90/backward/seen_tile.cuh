// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/copy.cuh"
#include "kernels/schedule/device/seen_rows.cuh"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/shared.cuh"
#include "kernels/tile/descriptor.cuh"

// Tiles that contain rows which nobody sees. Such a row has weight 0, but may hold NaN, and 0 * NaN
// is NaN. So it is loaded as zeros, by a copy from before the tensor's begin.
namespace magi::sm90 {

/// Whether a launch may have such tiles.
__device__ __forceinline__ bool has_unseen_rows(const BackwardParams& params) {
  if (params.seen.queries == nullptr && params.seen.keys == nullptr) return false;
  const BackwardOutcome* outcome = params.items.outcome;
  return outcome == nullptr || __ldg(&outcome->has_unseen) != 0;
}

/// The origin of this CTA's columns of the other CTA's keys.
template <BackwardConfig kC>
__device__ __forceinline__ ptx::BoxOrigin peer_keys(const ItemInfo& item) {
  constexpr int kColumns = kC.dim_qk / kC.ctas();
  const int rank = ptx::cluster_rank();
  return {rank * kColumns, item.kv_head, item.key_begin + (1 - rank) * kC.keys};
}

/// Loads kDim columns of a tile of kRows rows, each token's packed heads in a row.
template <int kRows, int kDim>
__device__ __forceinline__ void load_panels(std::uint8_t* tile, const CUtensorMap& map,
                                            ptx::BoxOrigin box, ptx::Mbarrier& barrier) {
  const int first_dim = box.dim;
#pragma unroll
  for (int panel = 0; panel < kDim / tile::kPanelElements; ++panel) {
    box.dim = first_dim + panel * tile::kPanelElements;
    ptx::load_box(tile + panel * kRows * tile::kPanelRowBytes, map, box, barrier);
  }
}

/// Does what load_panels does, but with zeros for tokens that nobody sees: unit by unit, and token
/// by token if a unit has both kinds. NOTE: `at` holds the progress, because registers are few.
template <int kRows, int kDim>
__device__ __forceinline__ void load_seen_panels(CutRequest& at, std::uint8_t* tile,
                                                 const TilePieces& pieces,
                                                 const std::uint32_t* seen, int packed_shift,
                                                 ptx::BoxOrigin box, ptx::Mbarrier& barrier) {
  constexpr int kNowhere = -1024;
  const int first_token = box.token;
  at.num_left = 0;
#pragma unroll 1
  for (at.row = 0; at.row < kRows;) {
    const int unit = unit_tokens(packed_shift);
    const int token = first_token + (at.row >> packed_shift);
    if (at.num_left == 0) {
      const std::uint32_t all = (1u << unit) - 1;
      at.bits = seen_from(seen, token) & all;
      at.num_left = at.bits == 0 || at.bits == all ? 1 : unit;
      at.step = (at.num_left == 1 ? unit : 1) << packed_shift;
    }
    box.token = (at.bits & 1) != 0 ? token : kNowhere;
    const CUtensorMap& map = pieces.maps[at.step >> packed_shift == unit ? 0 : 1];
    load_panels<kRows, kDim>(tile + at.row * tile::kPanelRowBytes, map, box, barrier);
    at.row += at.step;
    at.bits >>= 1;
    --at.num_left;
  }
}

/// The one thread that loads tiles with rows that nobody sees, on request of the producer, which
/// has too few registers for it.
template <BackwardConfig kC>
class CutLoader {
 public:
  __device__ __forceinline__ CutLoader(BackwardStorage<kC>& shared, const BackwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ void run() const {
    if (!has_unseen_rows(params_)) return;
    for (RingPlace<1> place;; place.advance()) {
      shared_.cut_ring.wait_full(place);
      if (shared_.cut.kind == CutRequest::kEnd) return;
      load(shared_.cut.kind, shared_.cut.number);
      ptx::mbarrier_arrive(shared_.cut_ring.empty.at(place));
    }
  }

 private:
  __device__ __forceinline__ void load(std::int32_t kind, std::uint32_t number) const {
    if (kind == CutRequest::kRows) return load_rows(number);
    // Bulk copies are asynchronous; the request implies that the keys have arrived.
    ptx::fence_async_global();
    const ItemInfo& item = shared_.items[number & 1];
    const RingPlace<1> place(number);
    ptx::BoxOrigin box{0, item.kv_head, item.key_begin};
    if constexpr (kC.ctas() > 1) box.token += ptx::cluster_rank() * kC.keys;
    if (kind == CutRequest::kValues) {
      return load_seen_panels<kC.keys, kC.dim_v>(shared_.cut, shared_.v, params_.seen.v,
                                                 params_.seen.keys, 0, box,
                                                 shared_.v_ring.full.at(place));
    }
    ptx::Mbarrier& full = shared_.k_ring.full.at(place);
    load_seen_panels<kC.keys, kC.dim_qk>(shared_.cut, shared_.k, params_.seen.k, params_.seen.keys,
                                         0, box, full);
    if constexpr (kC.ctas() > 1) {
      load_seen_panels<kC.keys, kC.dim_qk / kC.ctas()>(shared_.cut, shared_.peer_k, params_.seen.k,
                                                       params_.seen.keys, 0, peer_keys<kC>(item),
                                                       full);
    }
  }

  __device__ __forceinline__ void load_rows(std::uint32_t number) const {
    const StepInfo& step = shared_.steps[RingPlace<kC.step_stages()>(number).stage()];
    const QueryTiles& query = params_.query;
    const ptx::BoxOrigin box{0, step.group << query.packed_shift, step.q_tile << query.token_shift};
    const RingPlace<kC.q_stages> q(number);
    load_seen_panels<kC.rows, kC.dim_qk>(shared_.cut, shared_.q[q.stage()], params_.seen.q,
                                         params_.seen.queries, query.packed_shift, box,
                                         shared_.q_ring.full.at(q));
    const RingPlace<kC.dout_stages> dout(number);
    load_seen_panels<kC.rows, kC.dim_v>(shared_.cut, shared_.dout[dout.stage()], params_.seen.dout,
                                        params_.seen.queries, query.packed_shift, box,
                                        shared_.dout_ring.full.at(dout));
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
};

}  // namespace magi::sm90
