// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "cuda/check.hpp"
#include "cuda/launch.cuh"
#include "cuda/ptx/order.cuh"
#include "kernels/sm90/forward/combine.hpp"
#include "kernels/sm90/forward/row_result.cuh"
#include "kernels/sm90/global_memory.cuh"

namespace magi::sm90 {
namespace {

constexpr unsigned kFullWarp = 0xffffffffu;
constexpr int kLanes = 32;
constexpr int kColumns = 32;  // per warp, four to a lane
constexpr int kRunLanes = kColumns / 4;
constexpr int kRuns = kLanes / kRunLanes;
constexpr int kMaxThreads = 256;  // all columns of a row
constexpr std::int64_t kMaxBlocks = 2048;
constexpr std::int64_t kMaxDeviceBlocks = 528;

/// A row of a split tile: its splits' rows begin at `first` and lie `stride` apart.
struct SplitRow {
  std::int64_t first;
  std::int64_t stride;
  std::int32_t num_splits;
  std::int32_t token;
  std::int32_t head;
};

/// One block merges one row at a time, 32 columns to a warp. Each eight lanes add a run of splits
/// in order, then the runs are added in order: the same sums in every call.
class Combiner {
 public:
  __device__ explicit Combiner(const CombineParams& params) : params_(params) {
    const ListOutcome* outcome = params.outcome;
    num_split_tiles_ = outcome == nullptr ? params.num_split_tiles : outcome->num_split_tiles;
    packed_heads_ = outcome == nullptr ? params.packed_heads : outcome->packed_heads;
  }

  __device__ void run() const {
    const int groups = params_.heads_q / packed_heads_;
    const std::int64_t count = std::int64_t{num_split_tiles_} * groups * params_.tile_rows;
    for (std::int64_t i = blockIdx.x; i < count; i += gridDim.x) {
      const SplitRow row = split_row(i, groups);
      if (row.token < params_.rows_q) combine(row);
    }
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kLanes; }

  __device__ SplitRow split_row(std::int64_t index, int groups) const {
    const auto row = static_cast<int>(index % params_.tile_rows);
    const auto group = static_cast<int>(index / params_.tile_rows % groups);
    const SplitTile split = params_.splits[index / params_.tile_rows / groups];
    SplitRow result;
    result.first = (std::int64_t{split.first_slot} * groups + group) * params_.tile_rows + row;
    result.stride = std::int64_t{groups} * params_.tile_rows;
    result.num_splits = split.num_slots;
    result.token = split.tile * (params_.tile_rows / packed_heads_) + row / packed_heads_;
    result.head = group * packed_heads_ + row % packed_heads_;
    return result;
  }

  __device__ float log_sum_of(const SplitRow& row, int split) const {
    return params_.partial.lse[row.first + split * row.stride] * kLog2E;
  }

  __device__ float top_of(const SplitRow& row) const {
    float top = -INFINITY;
    for (int i = lane(); i < row.num_splits; i += kLanes) top = fmaxf(top, log_sum_of(row, i));
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
      top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, step));
    }
    return top;
  }

  /// Adds the lane's run of splits: weighted sums of four columns, and of the weights.
  __device__ void add_run(const SplitRow& row, int column, float top, float (&sums)[5]) const {
    const int run = lane() / kRunLanes;
    const int begin = row.num_splits * run / kRuns;
    const int end = row.num_splits * (run + 1) / kRuns;
#pragma unroll 8
    for (int i = begin; i < end; ++i) {
      const float weight = share(log_sum_of(row, i), top);
      float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (column < params_.dim_v) {
        const float* part = params_.partial.out + (row.first + i * row.stride) * params_.dim_v;
        value = *reinterpret_cast<const float4*>(part + column);
      }
      sums[0] = fmaf(weight, value.x, sums[0]);
      sums[1] = fmaf(weight, value.y, sums[1]);
      sums[2] = fmaf(weight, value.z, sums[2]);
      sums[3] = fmaf(weight, value.w, sums[3]);
      sums[4] += weight;
    }
  }

  /// Adds the runs in order: in the lanes of the first run, their columns of the row.
  __device__ static void add_runs(float (&sums)[5]) {
#pragma unroll
    for (float& sum : sums) {
      const float own = sum;
#pragma unroll
      for (int run = 1; run < kRuns; ++run) {
        sum += __shfl_sync(kFullWarp, own, lane() % kRunLanes + run * kRunLanes);
      }
    }
  }

  __device__ void combine(const SplitRow& row) const {
    float* lse = row_at<float>(params_.lse, row.token, row.head);
    const float earlier = params_.is_merging ? *lse * kLog2E : 0.0f;
    if (params_.is_merging) __syncthreads();  // all have read lse
    const int column = static_cast<int>(threadIdx.x) / kLanes * kColumns + 4 * (lane() % kRunLanes);
    const float top = top_of(row);
    float sums[5] = {};
    add_run(row, column, top, sums);
    add_runs(sums);
    RowResult result;
    if (sums[4] > 0.0f) {
      result.log_sum = top + ptx::log2_approx(sums[4]);
      result.weights.weight = 1.0f / sums[4];
    }
    if (params_.sink.count > 0) add_sinks(result, params_.sink, row.token, row.head);
    if (params_.is_merging) merge_earlier(result, earlier);
    if (lane() >= kRunLanes) return;
    if (threadIdx.x == 0) *lse = result.log_sum * kLn2;
    if (column >= params_.dim_v) return;
    for (float& sum : sums) sum *= result.weights.weight;
    write_out(row, column, sums, result.weights.earlier_weight);
  }

  __device__ void write_out(const SplitRow& row, int column, const float (&values)[5],
                            float earlier_weight) const {
    if (params_.out.is_float()) {
      auto* target =
          reinterpret_cast<float4*>(row_at<float>(params_.out, row.token, row.head) + column);
      float4 value = make_float4(values[0], values[1], values[2], values[3]);
      if (earlier_weight != 0.0f) {  // an earlier out without keys may hold anything
        const float4 before = *target;
        value.x = fmaf(before.x, earlier_weight, value.x);
        value.y = fmaf(before.y, earlier_weight, value.y);
        value.z = fmaf(before.z, earlier_weight, value.z);
        value.w = fmaf(before.w, earlier_weight, value.w);
      }
      *target = value;
      return;
    }
    auto* target =
        reinterpret_cast<uint2*>(row_at<std::uint16_t>(params_.out, row.token, row.head) + column);
    *target = params_.out.type == DType::BFloat16 ? packed<DType::BFloat16>(values)
                                                  : packed<DType::Float16>(values);
  }

  template <DType kType>
  __device__ static uint2 packed(const float (&values)[5]) {
    return make_uint2(ptx::pack_half2<kType>(values[0], values[1]),
                      ptx::pack_half2<kType>(values[2], values[3]));
  }

  const CombineParams& params_;
  std::int32_t num_split_tiles_;
  std::int32_t packed_heads_;
};

__global__ void __launch_bounds__(kMaxThreads)
    combine_kernel(const __grid_constant__ CombineParams params) {
  ptx::await_kernels_before();  // launched ahead of their end, where the device made the list
  Combiner(params).run();
}

}  // namespace

void launch_combine_kernel(const CombineParams& params, std::int64_t max_rows,
                           cudaStream_t stream) {
  // Of a list made on the device there may be nothing to combine, which few blocks find out sooner.
  const std::int64_t most = params.outcome != nullptr ? kMaxDeviceBlocks : kMaxBlocks;
  const auto blocks = static_cast<unsigned>(std::clamp<std::int64_t>(max_rows, 1, most));
  const int threads = params.dim_v > kMaxThreads / 2 ? kMaxThreads : kMaxThreads / 2;
  if (params.outcome != nullptr) {
    return launch_ahead(combine_kernel, blocks, static_cast<unsigned>(threads), 0, params, stream);
  }
  combine_kernel<<<blocks, threads, 0, stream>>>(params);
  cuda_check(cudaGetLastError(), "combine_kernel");
}

}  // namespace magi::sm90
