// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "cuda/launch.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/order.cuh"
#include "kernels/sm90/backward/packed_rows.cuh"
#include "kernels/sm90/global_memory.cuh"

// The preprocess kernel computes lse_log2 = -lse * log2(e) / exponent_scale and delta = dlse -
// sum(dout * out), both negated, and writes them in the packed order of tiles. A CTA reads as many
// rows as a tile has, neighbours in memory (the heads of a token, then the next token), with kLanes
// threads per row and 8 elements of dim per thread. It also clears a tile's sums, and all CTAs
// together clear the semaphores. The first CTA stores destinations. If the kernel runs while a list
// is made, whose components are unknown yet, extra CTAs wait for the list and clear the sums.
namespace magi::sm90 {
namespace {

constexpr int kThreads = 256;
constexpr int kElements = 8;  // elements of dim per thread
static_assert(StoredDestinations::kMost <= kThreads && sizeof(PrepareParams) <= 4096);

/// Eight neighbouring elements of a row: in 16 bits or, if `kMayBeFloat`, perhaps in float32.
template <bool kMayBeFloat>
struct RawElements {
  uint4 low;   // all eight of 16 bits, or the first four float32
  uint4 high;  // the last four float32
};

template <>
struct RawElements<false> {
  uint4 low;
};

template <bool kMayBeFloat>
__device__ __forceinline__ RawElements<kMayBeFloat> load_elements(const StridedRows& rows,
                                                                  std::int64_t token,
                                                                  std::int64_t head, int d) {
  const std::int64_t element_bytes = kMayBeFloat && rows.is_float() ? 4 : 2;
  const std::int64_t at = token * rows.row_stride + head * rows.head_stride + d;
  const auto* source =
      reinterpret_cast<const uint4*>(static_cast<const std::byte*>(rows.data) + at * element_bytes);
  RawElements<kMayBeFloat> raw{};
  raw.low = __ldcs(source);
  if constexpr (kMayBeFloat) {
    if (rows.is_float()) raw.high = __ldcs(source + 1);
  }
  return raw;
}

template <DType kType>
__device__ __forceinline__ void unpack(const RawElements<false>& raw, bool /*is_float*/,
                                       float (&values)[kElements]) {
  const std::uint32_t words[kElements / 2] = {raw.low.x, raw.low.y, raw.low.z, raw.low.w};
#pragma unroll
  for (int i = 0; i < kElements; i += 2) {
    const float2 pair = ptx::unpack_half2<kType>(words[i / 2]);
    values[i] = pair.x;
    values[i + 1] = pair.y;
  }
}

template <DType kType>
__device__ __forceinline__ void unpack(const RawElements<true>& raw, bool is_float,
                                       float (&values)[kElements]) {
  const std::uint32_t words[kElements] = {raw.low.x,  raw.low.y,  raw.low.z,  raw.low.w,
                                          raw.high.x, raw.high.y, raw.high.z, raw.high.w};
#pragma unroll
  for (int i = 0; i < kElements; i += 2) {
    const float2 pair = ptx::unpack_half2<kType>(words[i / 2]);
    values[i] = is_float ? __uint_as_float(words[i]) : pair.x;
    values[i + 1] = is_float ? __uint_as_float(words[i + 1]) : pair.y;
  }
}

/// One packed row as one of its threads sees it.
template <bool kMayBeFloat>
struct Row {
  std::int32_t token = 0;
  std::int32_t head = 0;
  bool is_inside = false;
  RawElements<kMayBeFloat> out{};
  RawElements<kMayBeFloat> dout{};
  float lse = -INFINITY;
  float dlse = 0.0f;
};

/// The first row of the CTA in the order of memory.
struct FirstRow {
  std::int32_t token;
  unsigned head;

  __device__ __forceinline__ explicit FirstRow(std::int32_t heads_q) {
    if (blockIdx.x < 0xffffffffu / kTileRows) {
      const unsigned index = blockIdx.x * kTileRows;
      token = static_cast<std::int32_t>(index / static_cast<unsigned>(heads_q));
      head = index % static_cast<unsigned>(heads_q);
    } else {
      const std::int64_t index = std::int64_t{blockIdx.x} * kTileRows;
      token = static_cast<std::int32_t>(index / heads_q);
      head = static_cast<unsigned>(index % heads_q);
    }
  }
};

/// Loads row `r` of the CTA.
template <bool kMayBeFloat>
__device__ __forceinline__ Row<kMayBeFloat> load_row(const PrepareParams& params, FirstRow first,
                                                     unsigned r, int d) {
  const auto heads = static_cast<unsigned>(params.packed.heads_q);
  Row<kMayBeFloat> row;
  row.token = first.token + static_cast<std::int32_t>((first.head + r) / heads);
  row.head = static_cast<std::int32_t>((first.head + r) % heads);
  row.is_inside = row.token < params.packed.rows_q;
  if (!row.is_inside) return row;
  if (d < params.dim_v) {
    row.out = load_elements<kMayBeFloat>(params.out, row.token, row.head, d);
    row.dout = load_elements<kMayBeFloat>(params.dout, row.token, row.head, d);
  }
  if (d == 0) {
    row.lse = *row_at<float>(params.lse, row.token, row.head);
    if (params.dlse.data != nullptr) row.dlse = *row_at<float>(params.dlse, row.token, row.head);
  }
  return row;
}

/// Rounds `dout` to 16 bits and writes a copy for the main kernel to load. NOTE: delta must use the
/// same values as the main kernel's products, or they do not cancel.
template <DType kType>
__device__ __forceinline__ void round_dout(const PrepareParams& params, const Row<true>& row, int d,
                                           float (&dout)[kElements]) {
  if (params.dout_copy == nullptr || !row.is_inside || d >= params.dim_v) return;
  std::uint32_t packed[kElements / 2];
#pragma unroll
  for (int i = 0; i < kElements / 2; ++i) {
    packed[i] = ptx::pack_half2<kType>(dout[2 * i], dout[2 * i + 1]);
    const float2 pair = ptx::unpack_half2<kType>(packed[i]);
    dout[2 * i] = pair.x;
    dout[2 * i + 1] = pair.y;
  }
  const std::int64_t at =
      (std::int64_t{row.token} * params.packed.heads_q + row.head) * params.dim_v + d;
  auto* target = static_cast<std::uint16_t*>(params.dout_copy) + at;
  *reinterpret_cast<uint4*>(target) = {packed[0], packed[1], packed[2], packed[3]};
}

template <DType kType, int kLanes, bool kMayBeFloat>
__device__ __forceinline__ void finish_row(const PrepareParams& params, const Row<kMayBeFloat>& row,
                                           int d) {
  float out[kElements];
  float dout[kElements];
  unpack<kType>(row.out, params.out.is_float(), out);
  unpack<kType>(row.dout, params.dout.is_float(), dout);
  if constexpr (kMayBeFloat) round_dout<kType>(params, row, d, dout);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    // A row without keys has zeros, though its dout may be NaN.
    sum = fmaf(out[i], out[i] == 0.0f ? 0.0f : dout[i], sum);
  }
#pragma unroll
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
  }
  if (d != 0) return;
  const std::int64_t at = place_of(params.packed, row.token, row.head);
  // -inf: the row has no keys. +inf: a sink has taken all of its weight.
  const float size = fabsf(row.lse) * kLog2E;
  const float lse_log2 = size >= kLargestLse ? kNoKeys : row.lse * kLog2E;
  params.lse_log2[at] = -lse_log2 / params.exponent_scale;
  params.delta[at] = size == INFINITY ? 0.0f : row.dlse - sum;
}

/// Clears a tile's sums. Called by `num_threads` threads, of which this is `thread`.
__device__ __forceinline__ void clear_sums(const PrepareParams& params, std::int64_t tile,
                                           int thread, int num_threads) {
  auto* sums = reinterpret_cast<float4*>(params.sums + tile * params.sums_per_tile);
  for (int i = thread; i < params.sums_per_tile / 4; i += num_threads) {
    sums[i] = {0.0f, 0.0f, 0.0f, 0.0f};
  }
}

/// Clears the sums of q tiles with more than one component, by CTAs that wait for the list.
__device__ __forceinline__ void clear_late(const PrepareParams& params) {
  constexpr int kLanes = 32;
  ptx::await_kernels_before();
  const auto num_tiles = static_cast<std::int64_t>(gridDim.x) - params.num_late_ctas;
  const std::int64_t warps = std::int64_t{params.num_late_ctas} * (kThreads / kLanes);
  const std::int64_t warp =
      (blockIdx.x - num_tiles) * (kThreads / kLanes) + static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  for (std::int64_t first = warp; first < num_tiles; first += warps * kLanes) {
    const std::int64_t own = first + lane * warps;
    bool is_shared = false;
    if (own < num_tiles) {
      const auto in_group = static_cast<std::int32_t>(own % params.packed.tiles_per_group);
      is_shared = __ldcg(params.num_components + in_group / params.tiles_per_q_tile) > 1;
    }
    for (unsigned left = __ballot_sync(0xffffffffu, is_shared); left != 0; left &= left - 1) {
      const std::int64_t tile = first + (__ffs(static_cast<int>(left)) - 1) * warps;
      clear_sums(params, tile, lane, kLanes);
    }
  }
}

__device__ __forceinline__ void clear_semaphores(const PrepareParams& params) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; i < params.num_semaphores; i += step) params.semaphores[i] = 0;
}

/// Stores destinations in device memory. Only the first CTA does so.
__device__ __forceinline__ void keep_destinations(const StoredDestinations& stored) {
  const auto i = static_cast<int>(threadIdx.x);
  if (blockIdx.x == 0 && i < stored.count) stored.target[i] = stored.values[i];
}

template <DType kType, int kLanes, bool kMayBeFloat>
__global__ void __launch_bounds__(kThreads)
    prepare_kernel(const __grid_constant__ PrepareParams params) {
  constexpr int kRowsPerPass = kThreads / kLanes;
  constexpr int kPasses = kTileRows / kRowsPerPass;
  if (!params.is_beside) ptx::await_kernels_before();
  ptx::launch_dependents();
  clear_semaphores(params);
  keep_destinations(params.destinations);
  const std::int64_t tile = blockIdx.x;
  if (params.packed.tiles_per_group == 0) return ptx::await_kernels_before();
  const bool has_late_ctas = params.num_late_ctas > 0;
  if (tile >= static_cast<std::int64_t>(gridDim.x) - params.num_late_ctas)
    return clear_late(params);
  const FirstRow first(params.packed.heads_q);
  const unsigned r = threadIdx.x / kLanes;
  const int d = static_cast<int>(threadIdx.x) % kLanes * kElements;
  Row<kMayBeFloat> rows[kPasses];
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    rows[pass] = load_row<kMayBeFloat>(params, first, r + pass * kRowsPerPass, d);
  }
  const auto in_group = static_cast<std::int32_t>(tile % params.packed.tiles_per_group);
  if (!has_late_ctas && (params.num_components == nullptr ||
                         __ldg(params.num_components + in_group / params.tiles_per_q_tile) > 1)) {
    clear_sums(params, tile, static_cast<int>(threadIdx.x), kThreads);
  }
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    finish_row<kType, kLanes>(params, rows[pass], d);
  }
  // If this kernel runs beside a push of rows, the next one must come after that push too. Beside
  // the making of a list, the late CTAs wait instead, and the others make room.
  if (!has_late_ctas) ptx::await_kernels_before();
}

template <DType kType, bool kMayBeFloat>
void launch(const PrepareParams& params, cudaStream_t stream) {
  const auto kernel = params.dim_v <= 64    ? prepare_kernel<kType, 8, kMayBeFloat>
                      : params.dim_v <= 128 ? prepare_kernel<kType, 16, kMayBeFloat>
                                            : prepare_kernel<kType, 32, kMayBeFloat>;
  const auto num_ctas = static_cast<unsigned>(std::max<std::int64_t>(params.packed.num_tiles(), 1) +
                                              params.num_late_ctas);
  launch_ahead(kernel, num_ctas, kThreads, 0, params, stream);
}

template <DType kType>
void launch_of_type(const PrepareParams& params, cudaStream_t stream) {
  if (params.out.is_float() || params.dout.is_float()) {
    launch<kType, true>(params, stream);
  } else {
    launch<kType, false>(params, stream);
  }
}

}  // namespace

void prepare_backward(const PrepareParams& params, DType type, cudaStream_t stream) {
  if (type == DType::BFloat16) {
    launch_of_type<DType::BFloat16>(params, stream);
  } else {
    launch_of_type<DType::Float16>(params, stream);
  }
}

}  // namespace magi::sm90
