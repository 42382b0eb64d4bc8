// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>
#include <limits>

#include "base/check.hpp"
#include "cuda/arena.hpp"
#include "cuda/check.hpp"
#include "kernels/sm90/listed/key_parts.hpp"
#include "kernels/sm90/listed/list_reader.cuh"

namespace magi::sm90 {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 4;  // per lane
constexpr std::int64_t kMostBytes = std::int64_t{256} << 20;
constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();

/// Arguments of the kernels.
struct KeyPartRun {
  KeyPartShape shape;
  ListedIndices lists;
  std::int32_t num_parts = 0;
  std::uint32_t num_keys = 0;
};

/// Writes for each part the number of its key, and its own.
__global__ void __launch_bounds__(kThreads)
    name_parts_kernel(const KeyPartRun run, std::uint32_t* keys, std::int32_t* parts) {
  const std::int64_t part = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (part >= run.num_parts) return;
  const KeyPartShape& shape = run.shape;
  const auto kv_head = static_cast<std::int32_t>(part % shape.heads_kv);
  const std::int64_t place = part / shape.heads_kv;
  const auto position = static_cast<std::int32_t>(place % shape.num_positions);
  const auto row = static_cast<std::int32_t>(place / shape.num_positions / shape.head_groups);
  ListReader reader(run.lists);
  reader.open(row, kv_head, shape.heads_kv, false);
  const std::int32_t key = reader.key_of(reader.entry_at(position), position);
  keys[part] =
      key == kNoKey ? run.num_keys : static_cast<std::uint32_t>(kv_head) * shape.rows_k + key;
  parts[part] = static_cast<std::int32_t>(part);
}

/// Returns the index of the first of `count` ascending numbers that is not below `wanted`.
__device__ __forceinline__ std::int32_t first_from(const std::uint32_t* keys, std::int32_t count,
                                                   std::uint32_t wanted) {
  std::int32_t low = 0;
  while (count > 0) {
    const std::int32_t half = count / 2;
    const bool is_below = keys[low + half] < wanted;
    low = is_below ? low + half + 1 : low;
    count = is_below ? count - half - 1 : half;
  }
  return low;
}

/// Adds rows parts[begin, end) of `rows` to one row of sums, one after the other. Called by a warp.
__device__ __forceinline__ void add_parts(float* sum, const float* rows, const std::int32_t* parts,
                                          std::int32_t begin, std::int32_t end, std::int32_t dim) {
  const std::int32_t first = static_cast<std::int32_t>(threadIdx.x) % 32 * kColumns;
  for (std::int32_t column = first; column < dim; column += 32 * kColumns) {
    auto* target = reinterpret_cast<float4*>(sum + column);
    float4 total = *target;
#pragma unroll 4
    for (std::int32_t i = begin; i < end; ++i) {
      const float4 x =
          __ldcs(reinterpret_cast<const float4*>(rows + std::int64_t{parts[i]} * dim + column));
      total.x += x.x;
      total.y += x.y;
      total.z += x.z;
      total.w += x.w;
    }
    *target = total;
  }
}

/// Sums the parts of each key, with one warp per key and kv head.
__global__ void __launch_bounds__(kThreads)
    sum_parts_kernel(const KeyPartRun run, const std::uint32_t* keys, const std::int32_t* parts,
                     const float* dk, const float* dv, const KeySumTargets targets) {
  const std::int64_t number = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (number >= run.num_keys) return;
  const auto wanted = static_cast<std::uint32_t>(number);
  const std::int32_t begin = first_from(keys, run.num_parts, wanted);
  const std::int32_t end = begin + first_from(keys + begin, run.num_parts - begin, wanted + 1);
  if (begin == end) return;
  const KeyPartShape& shape = run.shape;
  const std::int64_t row = number % shape.rows_k * shape.heads_kv + number / shape.rows_k;
  add_parts(targets.dk + row * shape.dim_qk, dk, parts, begin, end, shape.dim_qk);
  add_parts(targets.dv + row * shape.dim_v, dv, parts, begin, end, shape.dim_v);
}

/// Enqueues the sort or, if `memory` is null, returns the bytes that it needs.
std::size_t sort_parts(void* memory, std::size_t bytes, cub::DoubleBuffer<std::uint32_t>& keys,
                       cub::DoubleBuffer<std::int32_t>& parts, const KeyPartRun& run,
                       cudaStream_t stream) {
  const int num_bits = std::bit_width(run.num_keys);
  cuda_check(cub::DeviceRadixSort::SortPairs(memory, bytes, keys, parts, run.num_parts, 0, num_bits,
                                             stream),
             "cub::DeviceRadixSort::SortPairs");
  return bytes;
}

KeyPartRun run_of(const KeyPartShape& shape, const ListedIndices& lists) {
  return {.shape = shape,
          .lists = lists,
          .num_parts = static_cast<std::int32_t>(shape.num_parts()),
          .num_keys = static_cast<std::uint32_t>(shape.num_keys())};
}

unsigned num_ctas(std::int64_t num_threads) {
  return static_cast<unsigned>((num_threads + kThreads - 1) / kThreads);
}

}  // namespace

KeyPartShape with_rows(KeyPartShape shape, std::int64_t most_rows) {
  const std::int64_t per_row = shape.parts_per_row();
  if (per_row > kMaxInt) {
    throw invalid("keys of the lists of a query, for each tile of its heads", per_row,
                  "up to 2^31 - 1 where is_fast is false");
  }
  if (shape.num_keys() >= kMaxInt) {
    throw invalid("keys of all kv heads", shape.num_keys(),
                  "below 2^31 - 1 where is_fast is false");
  }
  constexpr std::int64_t kSortBytes = 16;
  const std::int64_t part_bytes =
      std::int64_t{sizeof(float)} * (shape.dim_qk + shape.dim_v) + kSortBytes;
  const std::int64_t rows = kMostBytes / std::max<std::int64_t>(per_row * part_bytes, 1);
  shape.rows_q = static_cast<std::int32_t>(
      std::clamp<std::int64_t>(rows, std::min<std::int64_t>(most_rows, 1), most_rows));
  return shape;
}

KeyPartLayout key_part_layout(const KeyPartShape& shape) {
  const std::int64_t count = shape.num_parts();
  Arena arena;
  KeyPartLayout layout;
  layout.dk = arena.add<float>(count * shape.dim_qk);
  layout.dv = arena.add<float>(count * shape.dim_v);
  for (std::size_t& keys : layout.keys) keys = arena.add<std::uint32_t>(count);
  for (std::size_t& parts : layout.parts) parts = arena.add<std::int32_t>(count);
  cub::DoubleBuffer<std::uint32_t> keys;
  cub::DoubleBuffer<std::int32_t> parts;
  layout.sorting_bytes = sort_parts(nullptr, 0, keys, parts, run_of(shape, {}), nullptr);
  layout.sorting = arena.add<std::byte>(static_cast<std::int64_t>(layout.sorting_bytes));
  layout.size_bytes = arena.size_bytes();
  return layout;
}

void enqueue_key_part_sums(const KeyPartShape& shape, const KeyPartLayout& layout,
                           const ListedIndices& lists, void* memory, const KeySumTargets& targets,
                           cudaStream_t stream) {
  const KeyPartRun run = run_of(shape, lists);
  if (run.num_parts == 0 || run.num_keys == 0) return;
  cub::DoubleBuffer<std::uint32_t> keys(part_at<std::uint32_t>(memory, layout.keys[0]),
                                        part_at<std::uint32_t>(memory, layout.keys[1]));
  cub::DoubleBuffer<std::int32_t> parts(part_at<std::int32_t>(memory, layout.parts[0]),
                                        part_at<std::int32_t>(memory, layout.parts[1]));
  name_parts_kernel<<<num_ctas(run.num_parts), kThreads, 0, stream>>>(run, keys.Current(),
                                                                      parts.Current());
  cuda_check(cudaGetLastError(), "name_parts_kernel");
  sort_parts(part_at<std::byte>(memory, layout.sorting), layout.sorting_bytes, keys, parts, run,
             stream);
  sum_parts_kernel<<<num_ctas(std::int64_t{run.num_keys} * 32), kThreads, 0, stream>>>(
      run, keys.Current(), parts.Current(), part_at<float>(memory, layout.dk),
      part_at<float>(memory, layout.dv), targets);
  cuda_check(cudaGetLastError(), "sum_parts_kernel");
}

}  // namespace magi::sm90
