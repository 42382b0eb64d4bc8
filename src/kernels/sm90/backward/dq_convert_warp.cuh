// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/math.cuh"
#include "kernels/sm90/backward/params.hpp"
#include "kernels/sm90/backward/shared.cuh"
#include "kernels/sm90/global_memory.cuh"

// | mbarrier      | completed by                   | then                                    |
// |---------------|--------------------------------|-----------------------------------------|
// | convert full  | semaphore signaller            | the dQ converter writes dq of a sum     |
// | convert empty | dQ converter                   | the signaller overwrites                |
// | quarter full  | converter's expectation, bytes | the dQ converter writes rows of dq      |
namespace magi::sm90 {

/// The dQ converter: the warp that turns complete sums of dQ into rows of dq while they are still
/// in the cache. Of the four chunks of a quarter, lane l takes number l / 8 and in it rows l % 8 +
/// 8n, so that the warp writes a row's 32 columns of the quarter at once.
template <BackwardConfig kC>
class DqConvertWarp {
 public:
  __device__ __forceinline__ DqConvertWarp(BackwardStorage<kC>& shared,
                                           const BackwardParams& params)
      : shared_(shared), params_(params) {}

  __device__ __forceinline__ void run() {
    if (lane() == 0) shared_.converter = {};
    __syncwarp();
    while (wait_for_sum()) {
      __syncwarp();
      if (lane() == 0) load_ahead();
      if (params_.dq.rows.is_float()) {
        write<float>();
      } else {
        write<std::uint16_t>();
      }
    }
  }

 private:
  static constexpr int kSumBytes = kC.rows * kC.dim_qk * 4;
  static_assert(kSumBytes == kSumQuarters * kQuarterBytes);
  static constexpr int kColumns = 32;  ///< columns of a quarter
  static constexpr bool kIsWide = kC.is(KernelForm::Wide);
  static_assert(kC.dim_qk == (kIsWide ? 2 : 4) * kColumns);
  static constexpr int kRowBytes = 64;   ///< bytes of 8 columns of rows r and r + 8
  static constexpr int kPairBytes = 16;  ///< bytes of two of the columns

  __device__ __forceinline__ static int lane() { return ptx::thread_index() & 31; }
  /// The place of a quarter's sum.
  __device__ __forceinline__ static RingPlace<kConvertStages> sum_place(std::uint32_t quarter) {
    return RingPlace<kConvertStages>(quarter / kSumQuarters);
  }
  using QuarterPlace = RingPlace<kQuarterStages>;

  /// The first quarter that is not written.
  __device__ __forceinline__ std::uint32_t quarter() const { return shared_.converter.quarter; }
  __device__ __forceinline__ const ConvertInfo& info() const {
    return shared_.converts[sum_place(quarter()).stage()];
  }

  /// Waits for a complete sum. Returns false if there are no more.
  __device__ __forceinline__ bool wait_for_sum() const {
    shared_.convert_ring.wait_full(sum_place(quarter()));
    return ptx::uniform(info().group) != kEndOfConverts;
  }

  /// Loads as many quarters of complete sums as fit. Called by one thread.
  __device__ __forceinline__ void load_ahead() const {
    ConverterState& at = shared_.converter;
    std::uint32_t next = at.num_loaded;
    for (const std::uint32_t end = at.quarter + kQuarterStages; next < end; ++next) {
      if (next % kSumQuarters == 0 && !begin_sum(next)) break;
      const QuarterPlace place(next);
      ptx::Mbarrier& full = shared_.quarter_full.at(place);
      ptx::mbarrier_arrive_expect(full, kQuarterBytes);
      ptx::load_bytes(shared_.quarters[place.stage()],
                      at.source + next % kSumQuarters * kQuarterBytes, kQuarterBytes, full);
    }
    at.num_loaded = next;
  }

  /// Finds the sum that begins with a quarter. Returns false if it is not complete yet.
  __device__ __forceinline__ bool begin_sum(std::uint32_t quarter) const {
    const RingPlace<kConvertStages> place = sum_place(quarter);
    if (!shared_.convert_ring.full.test(place)) return false;
    const ConvertInfo& info = shared_.converts[place.stage()];
    if (info.group == kEndOfConverts) return false;
    // The additions came from registers, the copies are asynchronous.
    ptx::fence_async_global();
    const std::int32_t sum = info.group * params_.query.num_q_tiles + info.q_tile;
    shared_.converter.source =
        reinterpret_cast<const std::uint8_t*>(params_.dq.sums) + std::int64_t{sum} * kSumBytes;
    return true;
  }

  /// The address in dq of the lane's first columns in its first row.
  template <typename Element>
  __device__ __forceinline__ std::uint8_t* first_place(const ConvertInfo& info) const {
    const int r = lane() % 8;
    const int token =
        (info.q_tile << params_.query.token_shift) + (r >> params_.query.packed_shift);
    const int head =
        (info.group << params_.query.packed_shift) + (r & (params_.query.packed_heads - 1));
    return reinterpret_cast<std::uint8_t*>(row_at<Element>(params_.dq.rows, token, head) +
                                           lane() / 8 * 8);
  }

  /// The number of the q tile's rows inside the tensor, from the lane's first row on; 0 if the
  /// lane's columns are outside.
  __device__ __forceinline__ int num_rows() const {
    const std::int32_t tokens = params_.query.rows_q - (info().q_tile << params_.query.token_shift);
    const std::int32_t rows = min(tokens, 1 << params_.query.token_shift)
                              << params_.query.packed_shift;
    const auto index = static_cast<int>(quarter() % kSumQuarters);
    const int column = index * kColumns % kC.dim_qk + lane() / 8 * 8;
    return column < params_.dq.dim ? rows - index * kColumns / kC.dim_qk * 64 - lane() % 8 : 0;
  }

  /// Writes the quarters of a sum by columns; those of a wide tile's other 64 rows follow.
  template <typename Element>
  __device__ __forceinline__ void write() const {
    constexpr int kBytes = kColumns * sizeof(Element);
    std::uint8_t* target = first_place<Element>(info());
    bool is_last = false;
    do {
      shared_.quarter_full.wait(QuarterPlace(quarter()));
      write_rows(source(), target, num_rows(), Element{});
      target += kIsWide && quarter() % kSumQuarters == 1 ? -kBytes
                                                         : kBytes - 4 * params_.dq.bytes_to_row_16;
      is_last = quarter() % kSumQuarters == kSumQuarters - 1;
      __syncwarp();
      ptx::mbarrier_arrive_if(shared_.convert_ring.empty.at(sum_place(quarter())),
                              is_last && (ptx::kArrivalsPerWarp == 32 || lane() == 0));
      __syncwarp();
      if (lane() == 0) {
        ++shared_.converter.quarter;
        load_ahead();
      }
      __syncwarp();
    } while (!is_last);
  }

  __device__ __forceinline__ std::uint32_t source() const {
    return ptx::shared_address(shared_.quarters[QuarterPlace(quarter()).stage()]) +
           lane() / 8 * kChunkBytes + lane() % 8 * kRowBytes + lane() % 8 / 2 * kPairBytes;
  }

  /// Loads two neighbouring elements of row r and of row r + 8, scaled.
  __device__ __forceinline__ float4 load_scaled(std::uint32_t address) const {
    const float4 sum = ptx::load_shared_float4(address);
    const float scale = params_.softmax.score.softmax_scale;
    return make_float4(scale * sum.x, scale * sum.y, scale * sum.z, scale * sum.w);
  }

  /// Writes the lane's rows of a quarter, and advances `target` by 64 rows.
  __device__ __forceinline__ void write_rows(std::uint32_t source, std::uint8_t*& target,
                                             int num_left, std::uint16_t /*of 16 bits*/) const {
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      std::uint32_t low[4];
      std::uint32_t high[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int pair = n ^ n / 2;
        const float4 x = load_scaled(source);
        low[pair] = ptx::pack_half2<kC.type>(x.x, x.y);
        high[pair] = ptx::pack_half2<kC.type>(x.z, x.w);
        // The next stage, or after the last one the first.
        source ^= n % 2 == 0 ? kPairBytes : 2 * kPairBytes;
        ptx::hide(source);
      }
      if (num_left > 0) {
        *reinterpret_cast<uint4*>(target) = make_uint4(low[0], low[1], low[2], low[3]);
      }
      if (num_left > 8) {
        *reinterpret_cast<uint4*>(target + params_.dq.bytes_to_row_8) =
            make_uint4(high[0], high[1], high[2], high[3]);
      }
      target += params_.dq.bytes_to_row_16;
      num_left -= 16;
      source += 8 * kRowBytes;
    }
  }

  /// Writes rows in float32, four columns of one row at a time, because there are few registers.
  __device__ __forceinline__ void write_rows(std::uint32_t source, std::uint8_t*& target,
                                             int num_left, float /*of 32 bits*/) const {
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
      if (num_left > 0) {
        write_floats(source, target);
        write_floats(source ^ 2 * kPairBytes, target + 16);
      }
      // From row r to row r + 8 and to row r + 16.
      target += i % 2 == 0 ? params_.dq.bytes_to_row_8
                           : params_.dq.bytes_to_row_16 - params_.dq.bytes_to_row_8;
      source += i % 2 == 0 ? 8 : 8 * kRowBytes - 8;
      num_left -= 8;
    }
  }

  __device__ __forceinline__ void write_floats(std::uint32_t source, std::uint8_t* target) const {
    const float2 x = ptx::load_shared_float2(source);
    const float2 y = ptx::load_shared_float2(source ^ kPairBytes);
    const float scale = params_.softmax.score.softmax_scale;
    float4 row = make_float4(scale * x.x, scale * x.y, scale * y.x, scale * y.y);
    auto* place = reinterpret_cast<float4*>(target);
    if (params_.dq.is_adding) {
      const float4 before = *place;
      row = make_float4(before.x + row.x, before.y + row.y, before.z + row.z, before.w + row.w);
    }
    *place = row;
  }

  BackwardStorage<kC>& shared_;
  const BackwardParams& params_;
};

}  // namespace magi::sm90
