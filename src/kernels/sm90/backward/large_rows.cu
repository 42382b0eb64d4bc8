// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "cuda/launch.cuh"
#include "cuda/ptx/order.cuh"
#include "kernels/sm90/backward/large_rows.hpp"
#include "kernels/sm90/backward/packed_rows.cuh"
#include "kernels/sm90/exact_rows.cuh"
#include "kernels/sm90/global_memory.cuh"

// Rows whose lse is large (large_lse), in plain loops: they are rare, and right is all that
// they need to be. A warp works at a row, or at 4 or 8 keys; each lane has four or eight elements
// of dim. Scores do not depend on who computes them (exact_rows.cuh), and each row's largest score
// and sum are made anew.
//
//   1. Rows: the log of the row's sum over this call's keys and sinks; where no other keys share in
//      the row its delta, because that of a rounded out is wrong by more than queries so large
//      leave small; dq; dsink of its own sinks.
//   2. When all CTAs are done with 1: dk and dv of a few keys a warp; dsink of a head's sinks.
//
// CTAs draw what they do from tickets, so that nobody waits for a CTA that has not begun. Every sum
// has a fixed order: equal bits from call to call.
namespace magi::sm90 {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMostTileKeys = 128;
constexpr int kTilesPerTicket = 16;
enum Counter : int { kRowTicket, kRowsDone, kKeyTicket };
static_assert(kKeyTicket + 1 == kLargeRowCounters);

/// What rounding adds to a score or an lse, in units of their size: sums of products in float32 by
/// the forward, and conversions of the lse.
constexpr double kScoreRounding = 0x1p-20;
constexpr double kLseRounding = 0x1p-21;

/// The largest of the scores that a lane has met, and the sum of 2^(score - largest).
struct LaneSum {
  double top = -INFINITY;
  double sum = 0.0;
  std::int32_t top_key = -1;  ///< -1: a sink

  __device__ __forceinline__ void add(double exponent, std::int32_t key) {
    if (exponent == -INFINITY) return;
    if (exponent > top) {
      sum *= double{weight_of(top - exponent)};
      top = exponent;
      top_key = key;
    }
    sum += double{weight_of(exponent - top)};
  }
};

/// What the weights of a row are divided by.
struct RowSum {
  double log;     ///< in base 2
  bool is_whole;  ///< the weights of this call's keys and sinks sum up to 1
};

struct RowPlace {
  std::int32_t token;
  std::int32_t head;
};

/// kRuns: runs of kRunDims that hold a row.
template <DType kType, int kRuns>
class LargeRows {
  using Row = Elements<kRuns>;
  static constexpr int kWarpKeys = 8 / kRuns;  ///< as many as registers hold
  static constexpr int kItemKeys = kWarps * kWarpKeys;
  static constexpr int kItemsPerTile = kMostTileKeys / kItemKeys;

 public:
  __device__ explicit LargeRows(const LargeRowParams& params)
      : params_(params),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32),
        group_(params.packed.heads_q / params.heads_kv) {}

  /// Whether there are large rows at all.
  __device__ bool has_any() const {
    const std::int64_t num_tiles = num_row_tiles();
    const auto* chunks = reinterpret_cast<const uint4*>(params_.tile_flags);
    unsigned found = 0;
    for (std::int64_t i = threadIdx.x; i < num_tiles / 16; i += kThreads) {
      const uint4 flags = chunks[i];
      found |= flags.x | flags.y | flags.z | flags.w;
    }
    for (std::int64_t i = num_tiles / 16 * 16 + threadIdx.x; i < num_tiles; i += kThreads) {
      found |= params_.tile_flags[i];
    }
    return __syncthreads_or(static_cast<int>(found)) != 0;
  }

  __device__ void run() const {
    const std::int64_t num_chunks = (num_row_tiles() + kTilesPerTicket - 1) / kTilesPerTicket;
    for (std::int64_t i = draw(kRowTicket); i < num_chunks; i = draw(kRowTicket)) {
      run_tiles(i * kTilesPerTicket);
      __syncthreads();
      if (threadIdx.x == 0) ptx::signal_semaphore(params_.counters + kRowsDone);
    }
    if (threadIdx.x == 0) {
      ptx::wait_semaphore(params_.counters + kRowsDone, static_cast<unsigned>(num_chunks));
    }
    __syncthreads();
    const std::int64_t num_key_items =
        std::int64_t{num_key_tiles()} * kItemsPerTile * params_.heads_kv;
    const bool has_shared_sinks = params_.dsink != nullptr && params_.dsink_row_stride == 0;
    const std::int64_t num_items = num_key_items + (has_shared_sinks ? params_.packed.heads_q : 0);
    for (std::int64_t i = draw(kKeyTicket); i < num_items; i = draw(kKeyTicket)) {
      if (i < num_key_items) {
        run_keys(i);
      } else if (warp_ == 0) {
        run_sinks(static_cast<std::int32_t>(i - num_key_items));
      }
    }
  }

 private:
  /// Tiles of the prepare kernel, whose rows lie side by side in memory.
  __device__ std::int64_t num_row_tiles() const {
    return static_cast<std::int64_t>(params_.packed.tiles_per_group) *
           (params_.packed.heads_q / params_.packed.packed_heads);
  }

  /// The CTA's next number of a counter.
  __device__ std::int64_t draw(Counter counter) const {
    __shared__ unsigned ticket;
    __syncthreads();
    if (threadIdx.x == 0) ticket = atomicAdd(params_.counters + counter, 1u);
    __syncthreads();
    return ticket;
  }

  __device__ bool is_large_row(RowPlace row) const {
    constexpr float kLeast = large_lse(kType);
    return is_large(*row_at<float>(params_.lse, row.token, row.head), kLeast);
  }

  /// The log of a large row's sum in base 2, once step 1 has been there.
  __device__ double log_sum_of(RowPlace row, std::int64_t at) const {
    const float lse = *row_at<float>(params_.lse, row.token, row.head);
    return in_base_2(lse) + double{__ldcg(params_.lse_log2 + at)};
  }

  __device__ std::int64_t place(RowPlace row) const {
    return place_of(params_.packed, row.token, row.head);
  }

  __device__ Row load(const StridedRows& rows, std::int64_t row, std::int64_t head,
                      std::int32_t dim) const {
    return load_row<kType, kRuns>(row_at<std::uint16_t>(rows, row, head), dim, lane_);
  }

  __device__ Score score_of(double product) const { return exact_score(params_.score, product); }

  __device__ double sink_exponent(RowPlace row, int sink) const {
    const SinkRows& sinks = params_.sink;
    const float logit =
        sinks.data[row.token * sinks.row_stride + sink * sinks.sink_stride + row.head];
    return in_base_2(logit);
  }

  /// Works at the large rows of some tiles.
  __device__ void run_tiles(std::int64_t first) const {
    const std::int64_t end = min(first + kTilesPerTicket, num_row_tiles());
    for (std::int64_t tile = first; tile < end; ++tile) {
      if (params_.tile_flags[tile] == 0) continue;
      for (int r = warp_; r < kTileRows; r += kWarps) {
        const std::int64_t index = tile * kTileRows + r;
        const RowPlace row{static_cast<std::int32_t>(index / params_.packed.heads_q),
                           static_cast<std::int32_t>(index % params_.packed.heads_q)};
        if (row.token < params_.packed.rows_q && is_large_row(row)) run_row(row);
      }
    }
  }

  __device__ void run_row(RowPlace row) const {
    const std::int64_t at = place(row);
    const Row q = load(params_.q, row.token, row.head, params_.dim_qk);
    const double lse = in_base_2(*row_at<float>(params_.lse, row.token, row.head));
    const RowSum sum = sum_of(row, q, lse);
    // Rounded down: where that counts, at 2^40 and more, the largest weight stays 1.
    const float correction = __double2float_rd(sum.log - lse);
    const double log_sum = lse + double{correction};
    const float delta = sum.is_whole ? delta_of(row, q, log_sum) : params_.delta[at];
    if (lane_ == 0) {
      __stcg(params_.lse_log2 + at, correction);
      __stcg(params_.delta + at, delta);
    }
    add_queries(row, q, log_sum, delta);
    if (params_.dsink == nullptr || params_.dsink_row_stride == 0 || lane_ >= params_.sink.count) {
      return;
    }
    float* target = params_.dsink + row.token * params_.dsink_row_stride +
                    lane_ * params_.dsink_sink_stride + row.head;
    *target += weight_of(sink_exponent(row, lane_) - log_sum) * delta;
  }

  __device__ std::int32_t num_key_tiles() const {
    return params_.outcome == nullptr ? params_.num_tiles : params_.outcome->num_tiles;
  }
  /// The list of a kv head: its number among those that follow one another.
  __device__ std::int64_t list_of(std::int32_t kv_head) const {
    return params_.tiles_per_list > 0 ? kv_head : 0;
  }
  __device__ std::int64_t num_records(std::int32_t kv_head) const {
    return params_.outcome == nullptr ? params_.num_records
                                      : params_.outcome[list_of(kv_head)].num_records;
  }
  __device__ const KeyRecord* records_of(std::int32_t kv_head) const {
    return params_.records + list_of(kv_head) * params_.records_per_list;
  }

  /// Calls visit(begin, end) for each run of keys that a row sees.
  template <typename Visit>
  __device__ void for_each_run(RowPlace place, const Visit& visit) const {
    const std::int32_t kv_head = place.head / group_;
    const std::int64_t count = num_records(kv_head);
    const KeyRecord* records = records_of(kv_head);
    const std::int32_t token = place.token;
    for (std::int64_t base = 0; base < count; base += 32) {
      std::int32_t begin = 0;
      std::int32_t end = 0;
      if (base + lane_ < count) {
        const BandSlice band = load_band(records + base + lane_);
        if (token >= band.q0 && token < band.q1) {
          const std::int64_t row = token;
          begin = static_cast<std::int32_t>(max(std::int64_t{band.k0}, row + band.d_min));
          end = static_cast<std::int32_t>(min(std::int64_t{band.k1}, row + band.d_max + 1));
        }
      }
      unsigned lanes = __ballot_sync(kFullWarp, begin < end);
      for (; lanes != 0; lanes &= lanes - 1) {
        const int lane = __ffs(static_cast<int>(lanes)) - 1;
        visit(__shfl_sync(kFullWarp, begin, lane), __shfl_sync(kFullWarp, end, lane));
      }
    }
  }

  /// The sum over this call's keys and sinks. Where `lse` says that other keys have a share in the
  /// row, lse itself.
  __device__ RowSum sum_of(RowPlace row, const Row& q, double lse) const {
    const std::int32_t kv_head = row.head / group_;
    LaneSum own;
    for_each_run(row, [&](std::int32_t begin, std::int32_t end) {
      for (std::int32_t base = begin; base < end; base += 32) {
        double exponent = -INFINITY;
#pragma unroll 4
        for (int i = 0; i < min(32, end - base); ++i) {
          const Row k = load(params_.k, base + i, kv_head, params_.dim_qk);
          const double exponent_i = score_of(exact_dot(q, k)).exponent;
          if (lane_ == i) exponent = exponent_i;
        }
        own.add(exponent, base + lane_);
      }
    });
    if (lane_ < params_.sink.count) own.add(sink_exponent(row, lane_), -1);
    const double top = max_of_warp(own.top);
    if (top == -INFINITY) return {lse, false};
    const double sum = sum_of_warp(own.sum * double{weight_of(own.top - top)});
    const int lane = __ffs(static_cast<int>(__ballot_sync(kFullWarp, own.top == top))) - 1;
    const double size = size_of(row, q, __shfl_sync(kFullWarp, own.top_key, lane), top);
    const double rounding = kScoreRounding * size + kLseRounding * fabs(lse);
    const double log_sum = top + log2(sum);
    const bool is_whole = log_sum - lse >= -rounding;
    return {is_whole ? log_sum : lse, is_whole};
  }

  /// What the rounding of a row's largest score is measured by: the sum of its products' sizes.
  __device__ double size_of(RowPlace row, const Row& q, std::int32_t key, double top) const {
    if (key < 0 || params_.score.cap_scale != 0.0f) return fabs(top);
    const Row k = load(params_.k, key, row.head / group_, params_.dim_qk);
    float size = 0.0f;
#pragma unroll
    for (int i = 0; i < 4 * kRuns; ++i) size += fabsf(q.at[i] * k.at[i]);
    return double{sum_of_warp(size)} * params_.score.exponent_scale;
  }

  /// The row's delta, made of its weights.
  __device__ float delta_of(RowPlace row, const Row& q, double log_sum) const {
    const std::int32_t kv_head = row.head / group_;
    const Row dout = load(params_.dout, row.token, row.head, params_.dim_v);
    float sum = 0.0f;
    for_each_run(row, [&](std::int32_t begin, std::int32_t end) {
#pragma unroll 2
      for (std::int32_t key = begin; key < end; ++key) {
        const Row k = load(params_.k, key, kv_head, params_.dim_qk);
        const Row v = load(params_.v, key, kv_head, params_.dim_v);
        const float weight = weight_of(score_of(exact_dot(q, k)).exponent - log_sum);
        sum = fmaf(weight, dot(dout, v), sum);
      }
    });
    if (params_.dlse.data == nullptr) return -sum;
    return *row_at<float>(params_.dlse, row.token, row.head) - sum;
  }

  __device__ void add_queries(RowPlace row, const Row& q, double log_sum, float delta) const {
    const std::int32_t kv_head = row.head / group_;
    const Row dout = load(params_.dout, row.token, row.head, params_.dim_v);
    Row dq;
    for_each_run(row, [&](std::int32_t begin, std::int32_t end) {
#pragma unroll 2
      for (std::int32_t key = begin; key < end; ++key) {
        const Row k = load(params_.k, key, kv_head, params_.dim_qk);
        const Row v = load(params_.v, key, kv_head, params_.dim_v);
        const Score score = score_of(exact_dot(q, k));
        const float weight = weight_of(score.exponent - log_sum);
        dq.add(weight * (dot(dout, v) + delta) * score.slope, k);
      }
    });
    const auto element = static_cast<std::int64_t>(params_.dq.is_float() ? 4 : 2);
    const std::int64_t at = row.token * params_.dq.row_stride + row.head * params_.dq.head_stride;
    put_row<kType>(static_cast<std::uint8_t*>(params_.dq.data) + at * element,
                   {params_.dq.is_float(), params_.is_adding_queries}, params_.dim_qk, lane_, dq,
                   params_.score.softmax_scale);
  }

  /// One warp's keys of an item, and their gradients.
  struct Keys {
    std::int32_t begin;
    std::int32_t count;
    std::int32_t kv_head;
    Row k[kWarpKeys];
    Row v[kWarpKeys];
    Row dk[kWarpKeys];
    Row dv[kWarpKeys];
  };

  __device__ void run_keys(std::int64_t item) const {
    const auto tile_index = static_cast<std::int32_t>(item / kItemsPerTile % num_key_tiles());
    Keys keys;
    keys.kv_head = static_cast<std::int32_t>(item / kItemsPerTile / num_key_tiles());
    const KeyTile tile = params_.tiles[list_of(keys.kv_head) * params_.tiles_per_list + tile_index];
    keys.begin = tile.key_begin + static_cast<std::int32_t>(item % kItemsPerTile) * kItemKeys +
                 warp_ * kWarpKeys;
    keys.count = min(kWarpKeys, tile.key_end - keys.begin);
    if (keys.count <= 0) return;
#pragma unroll
    for (int i = 0; i < kWarpKeys; ++i) {
      if (i >= keys.count) continue;
      keys.k[i] = load(params_.k, keys.begin + i, keys.kv_head, params_.dim_qk);
      keys.v[i] = load(params_.v, keys.begin + i, keys.kv_head, params_.dim_v);
    }
    bool is_any = false;
    for (std::int32_t record = tile.record_begin; record < tile.record_end; ++record) {
      is_any |= add_record(load_band(records_of(keys.kv_head) + record), keys);
    }
    if (is_any) put_keys(keys);
  }

  /// Adds what the large rows of a record give; returns whether there are any.
  __device__ bool add_record(const BandSlice& band, Keys& keys) const {
    const std::int64_t begin = max(std::int64_t{band.q0}, std::int64_t{keys.begin} - band.d_max);
    const std::int64_t end =
        min(std::int64_t{band.q1}, std::int64_t{keys.begin} + keys.count - band.d_min);
    bool is_any = false;
    for (std::int64_t base = 0; base < (end - begin) * group_; base += 32) {
      const std::int64_t i = base + lane_;
      const RowPlace row{static_cast<std::int32_t>(begin + i / group_),
                         keys.kv_head * group_ + static_cast<std::int32_t>(i % group_)};
      const bool is_inside = i < (end - begin) * group_;
      unsigned lanes = __ballot_sync(kFullWarp, is_inside && is_large_row(row));
      is_any |= lanes != 0;
      for (; lanes != 0; lanes &= lanes - 1) {
        const int lane = __ffs(static_cast<int>(lanes)) - 1;
        add_row({__shfl_sync(kFullWarp, row.token, lane), __shfl_sync(kFullWarp, row.head, lane)},
                band, keys);
      }
    }
    return is_any;
  }

  __device__ void add_row(RowPlace row, const BandSlice& band, Keys& keys) const {
    const Row q = load(params_.q, row.token, row.head, params_.dim_qk);
    const Row dout = load(params_.dout, row.token, row.head, params_.dim_v);
    const std::int64_t at = place(row);
    const double log_sum = log_sum_of(row, at);
    const float delta = __ldcg(params_.delta + at);
#pragma unroll
    for (int i = 0; i < kWarpKeys; ++i) {
      const Score score = score_of(exact_dot(q, keys.k[i]));
      const float dp = dot(dout, keys.v[i]) + delta;
      const std::int32_t key = keys.begin + i;
      const bool is_visible = i < keys.count && key >= band.k0 && key < band.k1 &&
                              key - row.token >= band.d_min && key - row.token <= band.d_max;
      const float weight = weight_of(score.exponent - log_sum);
      if (!is_visible) continue;
      keys.dv[i].add(weight, dout);
      keys.dk[i].add(weight * dp * score.slope, q);
    }
  }

  __device__ void put_keys(const Keys& keys) const {
    const KeyGradients& to = params_.key_gradients;
#pragma unroll
    for (int i = 0; i < kWarpKeys; ++i) {
      if (i >= keys.count) continue;
      const std::int32_t key = keys.begin + i;
      put_key(to.dk, &KeyDestination::dk, key, keys.kv_head, params_.dim_qk, keys.dk[i],
              params_.score.softmax_scale);
      put_key(to.dv, &KeyDestination::dv, key, keys.kv_head, params_.dim_v, keys.dv[i], 1.0f);
    }
  }

  __device__ void put_key(const StridedRows& local, GradientRows KeyDestination::*gradient,
                          std::int32_t key, std::int32_t kv_head, std::int32_t dim,
                          const Row& values, float factor) const {
    GradientRows rows;
    if (const KeyDestination* at = params_.key_gradients.destinations; at != nullptr) {
      while (at->row_end <= key) ++at;
      rows = at->*gradient;
      key -= at->row_begin;
    } else {
      const std::int64_t element = local.is_float() ? 4 : 2;
      rows = {static_cast<std::uint8_t*>(local.data), local.row_stride * element,
              local.head_stride * element, local.is_float()};
    }
    std::uint8_t* row = rows.data + key * rows.row_bytes + kv_head * rows.head_bytes;
    put_row<kType>(row, {rows.is_float, true}, dim, lane_, values, factor);
  }

  /// Sinks that all rows share: a lane sums tokens lane, lane + 32, ...
  __device__ void run_sinks(std::int32_t head) const {
    for (int sink = 0; sink < params_.sink.count; ++sink) {
      float sum = 0.0f;
      for (std::int32_t token = lane_; token < params_.packed.rows_q; token += 32) {
        const RowPlace row{token, head};
        if (!is_large_row(row)) continue;
        const std::int64_t at = place(row);
        sum +=
            weight_of(sink_exponent(row, sink) - log_sum_of(row, at)) * __ldcg(params_.delta + at);
      }
      sum = sum_of_warp(sum);
      if (lane_ == 0) params_.dsink[sink * params_.dsink_sink_stride + head] += sum;
    }
  }

  const LargeRowParams& params_;
  const int lane_;
  const int warp_;
  const std::int32_t group_;  ///< query heads of a kv head
};

template <DType kType, int kRuns>
__global__ void __launch_bounds__(kThreads, 1)
    large_row_kernel(const __grid_constant__ LargeRowParams params) {
  ptx::await_kernels_before();
  const LargeRows<kType, kRuns> rows(params);
  if (rows.has_any()) rows.run();
}

}  // namespace

void enqueue_large_rows(const LargeRowParams& params, DType type, int num_ctas,
                        cudaStream_t stream) {
  const bool is_wide = params.dim_qk > kRunDims || params.dim_v > kRunDims;
  const bool is_bfloat = type == DType::BFloat16;
  const auto narrow =
      is_bfloat ? large_row_kernel<DType::BFloat16, 1> : large_row_kernel<DType::Float16, 1>;
  const auto wide =
      is_bfloat ? large_row_kernel<DType::BFloat16, 2> : large_row_kernel<DType::Float16, 2>;
  const auto kernel = is_wide ? wide : narrow;
  launch_ahead(kernel, static_cast<unsigned>(num_ctas), kThreads, 0, params, stream);
}

}  // namespace magi::sm90
