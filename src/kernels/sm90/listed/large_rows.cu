// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "cuda/check.hpp"
#include "cuda/ptx/copy.cuh"
#include "kernels/sm90/backward/packed_rows.cuh"
#include "kernels/sm90/exact_rows.cuh"
#include "kernels/sm90/global_memory.cuh"
#include "kernels/sm90/listed/large_rows.hpp"
#include "kernels/sm90/listed/list_reader.cuh"
#include "kernels/sm90/listed/listed_forward.hpp"

// Rows whose lse is large (large_lse), in plain loops: they are rare, and right is all that
// they need to be. A warp works at a row and goes through its list three times: for the log of the
// row's sum over keys and sinks, for its delta, and for the gradients. All keys of a row are in its
// list, so its delta is made anew: that of a rounded out is wrong by more than queries so large
// leave small.
namespace magi::sm90 {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kCtasPerSm = 8;
static_assert(kMaxListedDim <= kRunDims);

template <DType kType>
class ListedLargeRows {
  using Row = Elements<1>;

 public:
  __device__ explicit ListedLargeRows(const ListedLargeRowParams& params)
      : call_(params.call),
        rows_(params.rows),
        sink_(params.sink),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  /// A CTA takes all rows of a kv head, whose sums are then one warp's. All threads look for them.
  __device__ void run_in_order() const {
    __shared__ unsigned found[kWarps];
    const std::int32_t group = call_.shape.heads_per_kv;
    const std::int64_t num_rows = std::int64_t{rows_.rows_q} * group;
    const std::int32_t first_head = static_cast<std::int32_t>(blockIdx.x) * group;
    for (std::int64_t base = 0; base < num_rows; base += kThreads) {
      const auto token = [&](std::int64_t row) { return static_cast<std::int32_t>(row / group); };
      const auto head = [&](std::int64_t row) {
        return first_head + static_cast<std::int32_t>(row % group);
      };
      const std::int64_t row = base + threadIdx.x;
      const bool is_found = row < num_rows && is_large(lse_of(token(row), head(row)), kLargeLse);
      const unsigned of_warp = __ballot_sync(kFullWarp, is_found);
      if (lane_ == 0) found[threadIdx.x / 32] = of_warp;
      if (__syncthreads_or(is_found) == 0) continue;
      for (int warp = 0; threadIdx.x < 32 && warp < kWarps; ++warp) {
        for (unsigned large = found[warp]; large != 0; large &= large - 1) {
          const std::int64_t at = base + warp * 32 + __ffs(static_cast<int>(large)) - 1;
          run_row(token(at), head(at));
        }
      }
      __syncthreads();
    }
  }

  /// A warp takes all heads of a token.
  __device__ void run() const {
    const auto num_warps = static_cast<std::int32_t>(gridDim.x) * kWarps;
    const auto warp = static_cast<std::int32_t>(blockIdx.x * kWarps + threadIdx.x / 32);
    for (std::int32_t token = warp; token < rows_.rows_q; token += num_warps) {
      for (std::int32_t base = 0; base < rows_.heads_q; base += 32) {
        const std::int32_t head = base + lane_;
        const bool is_head = head < rows_.heads_q;
        unsigned large =
            __ballot_sync(kFullWarp, is_head && is_large(lse_of(token, head), kLargeLse));
        for (; large != 0; large &= large - 1) {
          run_row(token, base + __ffs(static_cast<int>(large)) - 1);
        }
      }
    }
  }

 private:
  static constexpr float kLargeLse = large_lse(kType);

  __device__ float lse_of(std::int32_t token, std::int32_t head) const {
    return *row_at<float>(rows_.lse, token, head);
  }
  __device__ Row load(const StridedRows& rows, std::int64_t row, std::int64_t head,
                      std::int32_t dim) const {
    return load_row<kType, 1>(row_at<std::uint16_t>(rows, row, head), dim, lane_);
  }

  __device__ void run_row(std::int32_t token, std::int32_t head) const {
    const std::int32_t kv_head = head / call_.shape.heads_per_kv;
    const Row q = load(call_.q, token, head, call_.shape.dim_qk);
    const Row dout = load(call_.dout, token, head, call_.shape.dim_v);
    const double lse = in_base_2(lse_of(token, head));
    // Rounded down: where that counts, at 2^40 and more, the largest weight stays 1.
    const float correction = __double2float_rd(log_sum_of(token, head, q) - lse);
    const double log_sum = lse + double{correction};
    float delta = 0.0f;
    for_each_key(token, kv_head, [&](std::int32_t key) {
      const Row v = load(call_.v, key, kv_head, call_.shape.dim_v);
      delta = fmaf(weight_of(score_of(q, key, kv_head).exponent - log_sum), dot(dout, v), delta);
    });
    if (rows_.dlse.data != nullptr) delta -= *row_at<float>(rows_.dlse, token, head);
    if (lane_ == 0) {
      const std::int64_t row = std::int64_t{token} * rows_.heads_q + head;
      rows_.delta[row] = delta;
      rows_.corrections[row] = correction;
    }
    const Row dq = add_keys({token, head, kv_head, log_sum, delta}, q, dout);
    const std::int64_t at = token * call_.dq.row_stride + head * call_.dq.head_stride;
    put_row<kType>(static_cast<std::uint8_t*>(call_.dq.data) + at * (call_.dq.is_float() ? 4 : 2),
                   {.is_float = call_.dq.is_float(), .is_adding = false}, call_.shape.dim_qk, lane_,
                   dq, call_.score.softmax_scale);
  }

  /// Calls visit(key) for each key of a list, as often as it stands there.
  template <typename Visit>
  __device__ void for_each_key(std::int32_t token, std::int32_t kv_head, const Visit& visit) const {
    ListReader reader(call_.lists);
    reader.open(token, kv_head, call_.shape.heads_kv, false);
    for (std::int32_t position = 0; position < reader.num_positions(); ++position) {
      const std::int32_t key = reader.key_of(reader.entry_at(position), position);
      if (key != kNoKey) visit(key);
    }
  }

  __device__ Score score_of(const Row& q, std::int32_t key, std::int32_t kv_head) const {
    const Row k = load(call_.k, key, kv_head, call_.shape.dim_qk);
    return exact_score(call_.score, exact_dot(q, k));
  }

  /// The log in base 2 of the sum over keys and sinks.
  __device__ double log_sum_of(std::int32_t token, std::int32_t head, const Row& q) const {
    const std::int32_t kv_head = head / call_.shape.heads_per_kv;
    double top = -INFINITY;
    double sum = 0.0;
    const auto add = [&](double exponent) {
      if (exponent == -INFINITY) return;
      if (exponent > top) {
        sum *= double{weight_of(top - exponent)};
        top = exponent;
      }
      sum += double{weight_of(exponent - top)};
    };
    for_each_key(token, kv_head,
                 [&](std::int32_t key) { add(score_of(q, key, kv_head).exponent); });
    for (int i = 0; i < sink_.count; ++i) {
      add(in_base_2(sink_.data[token * sink_.row_stride + i * sink_.sink_stride + head]));
    }
    return top + log2(sum);
  }

  struct RowState {
    std::int32_t token, head, kv_head;
    double log_sum;
    float delta;
  };

  /// Adds to the sums of a row's keys; returns its dq / softmax_scale.
  __device__ Row add_keys(const RowState& row, const Row& q, const Row& dout) const {
    const ListedShape& shape = call_.shape;
    Row dq;
    for_each_key(row.token, row.kv_head, [&](std::int32_t key) {
      const Row k = load(call_.k, key, row.kv_head, shape.dim_qk);
      const Row v = load(call_.v, key, row.kv_head, shape.dim_v);
      const Score score = exact_score(call_.score, exact_dot(q, k));
      const float weight = weight_of(score.exponent - row.log_sum);
      const float ds = weight * (dot(dout, v) - row.delta) * score.slope;
      dq.add(ds, k);
      const std::int64_t at = std::int64_t{key} * shape.heads_kv + row.kv_head;
      add_row(call_.dk_sums + at * shape.dim_qk, shape.dim_qk, q, ds * call_.score.softmax_scale);
      add_row(call_.dv_sums + at * shape.dim_v, shape.dim_v, dout, weight);
    });
    return dq;
  }

  __device__ void add_row(float* sums, std::int32_t dim, const Row& values, float factor) const {
    const int first = first_dim(0, lane_);
    if (first >= dim) return;
    ptx::add_float4(sums + first, factor * values.at[0], factor * values.at[1],
                    factor * values.at[2], factor * values.at[3]);
  }

  const ListedBackwardParams& call_;
  const ListedRowParams& rows_;
  const SinkRows& sink_;
  const int lane_;
};

template <DType kType>
__global__ void __launch_bounds__(kThreads)
    listed_large_row_kernel(const __grid_constant__ ListedLargeRowParams params) {
  const ListedLargeRows<kType> rows(params);
  params.is_ordered ? rows.run_in_order() : rows.run();
}

}  // namespace

void enqueue_listed_large_rows(const ListedLargeRowParams& params, DType type, std::int32_t num_sms,
                               cudaStream_t stream) {
  const std::int32_t num_ctas =
      params.is_ordered ? params.call.shape.heads_kv
                        : std::min(params.rows.rows_q / kWarps + 1, num_sms * kCtasPerSm);
  const auto kernel = type == DType::BFloat16 ? listed_large_row_kernel<DType::BFloat16>
                                              : listed_large_row_kernel<DType::Float16>;
  kernel<<<static_cast<unsigned>(num_ctas), kThreads, 0, stream>>>(params);
  cuda_check(cudaGetLastError(), "listed_large_row_kernel");
}

}  // namespace magi::sm90
