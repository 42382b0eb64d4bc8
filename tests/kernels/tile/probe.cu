// SPDX-License-Identifier: Apache-2.0
#include "cuda/check.hpp"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/wgmma_n128.cuh"
#include "cuda/ptx/wgmma_n256.cuh"
#include "cuda/ptx/wgmma_n64.cuh"
#include "cuda/ptx/wgmma_n80.cuh"
#include "cuda/tensor_map.hpp"
#include "kernels/tile/fragment.cuh"
#include "kernels/tile/gemm.cuh"
#include "kernels/tile/probe.hpp"

namespace magi::probe {
namespace {

constexpr int kRows = 64;
constexpr int kThreads = 128;

struct Operand {
  CUtensorMap map;
};

/// Calls visit(row, column, element) for each accumulator element of this thread.
template <int kColumns, typename Visit>
__device__ __forceinline__ void for_each_element(Visit visit) {
  const tile::FragmentPlace place(static_cast<int>(threadIdx.x));
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) {
    visit(place.row + 8 * ((i / 2) % 2), 8 * (i / 4) + place.column + i % 2, i);
  }
}

template <int kTileRows, int kDim>
__device__ __forceinline__ void load_tile(std::uint8_t* tile_bytes, const CUtensorMap& map,
                                          ptx::Mbarrier& barrier) {
  for (int panel = 0; panel < kDim / tile::kPanelElements; ++panel) {
    ptx::load_box(tile_bytes + panel * kTileRows * tile::kPanelRowBytes, map,
                  {panel * tile::kPanelElements, 0, 0}, barrier, ptx::cache_evict_first());
  }
}

__device__ __forceinline__ void start_barrier(ptx::Mbarrier& barrier) {
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
}

template <DType kType, int kColumns, int kDim>
__global__ void __launch_bounds__(kThreads)
    abt_kernel(const __grid_constant__ Operand a, const __grid_constant__ Operand b, float* d) {
  extern __shared__ __align__(1024) std::uint8_t bytes[];
  __shared__ ptx::Mbarrier barrier;
  std::uint8_t* b_bytes = bytes + kRows * kDim * 2;
  start_barrier(barrier);
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect(barrier, (kRows + kColumns) * kDim * 2);
    load_tile<kRows, kDim>(bytes, a.map, barrier);
    load_tile<kColumns, kDim>(b_bytes, b.map, barrier);
  }
  ptx::mbarrier_wait(barrier, 0);
  float scores[kColumns / 2];
  ptx::wgmma_fence();
  tile::issue_abt<kType, kColumns, kDim>(scores, tile::KMajor<kRows>(bytes),
                                         tile::KMajor<kColumns>(b_bytes));
  ptx::wgmma_wait<0>();
  ptx::pin(scores);
  for_each_element<kColumns>(
      [&](int row, int column, int i) { d[row * kColumns + column] = scores[i]; });
}

template <DType kType, int kDepth, int kDim>
__global__ void __launch_bounds__(kThreads)
    pv_kernel(const float* p, const __grid_constant__ Operand v, float* d) {
  extern __shared__ __align__(1024) std::uint8_t bytes[];
  __shared__ ptx::Mbarrier barrier;
  start_barrier(barrier);
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect(barrier, kDepth * kDim * 2);
    load_tile<kDepth, kDim>(bytes, v.map, barrier);
  }
  float probabilities[kDepth / 2];
  for_each_element<kDepth>(
      [&](int row, int column, int i) { probabilities[i] = p[row * kDepth + column]; });
  std::uint32_t packed[kDepth / 4];
  tile::pack_fragments<kType, kDepth>(probabilities, packed);
  float out[kDim / 2] = {};
  ptx::mbarrier_wait(barrier, 0);
  ptx::pin(packed);
  ptx::pin(out);
  ptx::wgmma_fence();
  tile::issue_accumulate<kType, kDim, kDepth>(out, packed, tile::MnMajor<kDepth>(bytes));
  ptx::wgmma_wait<0>();
  ptx::pin(packed);
  ptx::pin(out);
  for_each_element<kDim>([&](int row, int column, int i) { d[row * kDim + column] = out[i]; });
}

template <DType kType, int kDim>
__global__ void __launch_bounds__(kThreads)
    store_kernel(const float* in, const __grid_constant__ Operand out) {
  extern __shared__ __align__(1024) std::uint8_t bytes[];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = static_cast<int>(threadIdx.x) / 32 * 16;
  float value[kDim / 2];
  for_each_element<kDim>([&](int row, int column, int i) { value[i] = in[row * kDim + column]; });
#pragma unroll
  for (int c = 0; c < kDim / 8; c += 2) {
    const std::uint32_t address = ptx::shared_address(bytes) +
                                  static_cast<std::uint32_t>(c / 8 * kRows * 128) +
                                  tile::swizzled_offset(first_row + lane % 16, c % 8 + lane / 16);
    ptx::store_matrix_x4(address, ptx::pack_half2<kType>(value[4 * c], value[4 * c + 1]),
                         ptx::pack_half2<kType>(value[4 * c + 2], value[4 * c + 3]),
                         ptx::pack_half2<kType>(value[4 * c + 4], value[4 * c + 5]),
                         ptx::pack_half2<kType>(value[4 * c + 6], value[4 * c + 7]));
  }
  ptx::fence_async_shared();
  __syncwarp();
  if (lane != 0) return;
  for (int panel = 0; panel < kDim / tile::kPanelElements; ++panel) {
    ptx::store_box(out.map, {panel * tile::kPanelElements, 0, first_row},
                   bytes + panel * kRows * 128 + first_row * 128);
  }
  ptx::store_commit();
  ptx::store_wait_read<0>();
}

template <int kColumns>
__global__ void __launch_bounds__(kThreads)
    mask_kernel(const int* low, const int* high, int* keep) {
  const tile::FragmentPlace place(static_cast<int>(threadIdx.x));
  float values[kColumns / 2];
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) values[i] = 1.0f;
  const int lows[] = {low[place.row] - place.column, low[place.row + 8] - place.column};
  const int highs[] = {high[place.row] - place.column, high[place.row + 8] - place.column};
  tile::mask_rows<kColumns>(values, lows, highs);
  for_each_element<kColumns>([&](int row, int column, int i) {
    keep[row * kColumns + column] = values[i] == 1.0f ? 1 : 0;
  });
}

template <typename Kernel>
void allow_shared(Kernel kernel, int bytes) {
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "cudaFuncSetAttribute");
}

template <DType kType, int kColumns, int kDim>
void run_abt(const TensorView& a, const TensorView& b, float* d, cudaStream_t stream) {
  constexpr int kBytes = (kRows + kColumns) * kDim * 2;
  allow_shared(abt_kernel<kType, kColumns, kDim>, kBytes);
  abt_kernel<kType, kColumns, kDim><<<1, kThreads, kBytes, stream>>>(
      {make_tensor_map(a, {1, kRows})}, {make_tensor_map(b, {1, kColumns})}, d);
  cuda_check(cudaGetLastError(), "abt_kernel");
}

template <DType kType, int kDim>
void run_abt_columns(const TensorView& a, const TensorView& b, float* d, cudaStream_t stream) {
  switch (b.shape[0]) {
    case 64:
      return run_abt<kType, 64, kDim>(a, b, d, stream);
    case 128:
      return run_abt<kType, 128, kDim>(a, b, d, stream);
  }
}

template <DType kType, int kDepth, int kDim>
void run_pv(const float* p, const TensorView& v, float* d, cudaStream_t stream) {
  constexpr int kBytes = kDepth * kDim * 2;
  allow_shared(pv_kernel<kType, kDepth, kDim>, kBytes);
  pv_kernel<kType, kDepth, kDim>
      <<<1, kThreads, kBytes, stream>>>(p, {make_tensor_map(v, {1, kDepth})}, d);
  cuda_check(cudaGetLastError(), "pv_kernel");
}

template <DType kType>
void run_pv_shape(const float* p, const TensorView& v, float* d, cudaStream_t stream) {
  if (v.shape[0] == 80) return run_pv<kType, 80, 256>(p, v, d, stream);
  const bool is_wide = v.shape[2] == 128;
  if (v.shape[0] == 64) {
    is_wide ? run_pv<kType, 64, 128>(p, v, d, stream) : run_pv<kType, 64, 64>(p, v, d, stream);
  } else {
    is_wide ? run_pv<kType, 128, 128>(p, v, d, stream) : run_pv<kType, 128, 64>(p, v, d, stream);
  }
}

template <DType kType, int kDim>
void run_store(const float* in, const TensorView& out, cudaStream_t stream) {
  constexpr int kBytes = kRows * kDim * 2;
  store_kernel<kType, kDim><<<1, kThreads, kBytes, stream>>>(in, {make_tensor_map(out, {1, 16})});
  cuda_check(cudaGetLastError(), "store_kernel");
}

}  // namespace

void multiply_abt(const TensorView& a, const TensorView& b, float* d, cudaStream_t stream) {
  if (b.shape[0] == 80) {
    return a.dtype == DType::BFloat16 ? run_abt<DType::BFloat16, 80, 256>(a, b, d, stream)
                                      : run_abt<DType::Float16, 80, 256>(a, b, d, stream);
  }
  const bool is_wide = a.shape[2] == 128;
  if (a.dtype == DType::BFloat16) {
    is_wide ? run_abt_columns<DType::BFloat16, 128>(a, b, d, stream)
            : run_abt_columns<DType::BFloat16, 64>(a, b, d, stream);
  } else {
    is_wide ? run_abt_columns<DType::Float16, 128>(a, b, d, stream)
            : run_abt_columns<DType::Float16, 64>(a, b, d, stream);
  }
}

void multiply_pv(const float* p, const TensorView& v, float* d, cudaStream_t stream) {
  v.dtype == DType::BFloat16 ? run_pv_shape<DType::BFloat16>(p, v, d, stream)
                             : run_pv_shape<DType::Float16>(p, v, d, stream);
}

void store_through_shared(const float* in, const TensorView& out, cudaStream_t stream) {
  if (out.shape[2] == 256) {
    return out.dtype == DType::BFloat16 ? run_store<DType::BFloat16, 256>(in, out, stream)
                                        : run_store<DType::Float16, 256>(in, out, stream);
  }
  const bool is_wide = out.shape[2] == 128;
  if (out.dtype == DType::BFloat16) {
    is_wide ? run_store<DType::BFloat16, 128>(in, out, stream)
            : run_store<DType::BFloat16, 64>(in, out, stream);
  } else {
    is_wide ? run_store<DType::Float16, 128>(in, out, stream)
            : run_store<DType::Float16, 64>(in, out, stream);
  }
}

void mask_tile(const int* low, const int* high, int columns, int* keep, cudaStream_t stream) {
  switch (columns) {
    case 64:
      mask_kernel<64><<<1, kThreads, 0, stream>>>(low, high, keep);
      break;
    case 80:
      mask_kernel<80><<<1, kThreads, 0, stream>>>(low, high, keep);
      break;
    case 128:
      mask_kernel<128><<<1, kThreads, 0, stream>>>(low, high, keep);
      break;
  }
  cuda_check(cudaGetLastError(), "mask_kernel");
}

}  // namespace magi::probe
