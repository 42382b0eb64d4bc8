// SPDX-License-Identifier: Apache-2.0
#include "cuda/check.hpp"
#include "cuda/ptx/wgmma_n128.cuh"
#include "cuda/ptx/wgmma_n256.cuh"
#include "cuda/ptx/wgmma_n64.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/listed/latent_kernels.cuh"

namespace magi::sm90 {
namespace {

constexpr DType kType = DType::BFloat16;

/// Returns a config for host code: an item has 64 query heads, which two warpgroups share.
constexpr ListedConfig config_of(bool has_parts) {
  return {.type = kType,
          .dim = kLatentDim,
          .keys = kLatentRows,
          .consumers = 1,
          .has_parts = has_parts};
}

void launch_forward(const ListedForwardParams& params, int num_ctas, cudaStream_t stream) {
  const int bytes = grant_storage<LatentStorage, latent_forward_kernel<kType>>();
  latent_forward_kernel<kType><<<num_ctas, kLatentThreads, bytes, stream>>>(params);
  cuda_check(cudaGetLastError(), "latent_forward_kernel");
}

/// Launches clusters of two CTAs, if both have heads of one query.
template <bool kHasParts>
void launch_backward(const ListedBackwardParams& params, int num_ctas, cudaStream_t stream) {
  constexpr auto kKernel = latent_backward_kernel<kType, kHasParts>;
  const bool has_peers = params.shape.head_groups % 2 == 0 && num_ctas > 1;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {has_peers ? 2u : 1u, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(has_peers ? num_ctas / 2 * 2 : num_ctas);
  config.blockDim = kLatentThreads;
  config.dynamicSmemBytes =
      static_cast<std::size_t>(grant_storage<LatentBackwardStorage, kKernel>());
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cuda_check(cudaLaunchKernelEx(&config, kKernel, params), "cudaLaunchKernelEx");
}

}  // namespace

const ListedInstance& latent_instance() {
  static constexpr ListedInstance kInstance{config_of(false), launch_forward};
  return kInstance;
}

const ListedBackwardInstance& latent_backward_instance(bool has_parts) {
  static constexpr ListedBackwardInstance kInstances[] = {
      {config_of(false), launch_backward<false>}, {config_of(true), launch_backward<true>}};
  return kInstances[has_parts ? 1 : 0];
}

}  // namespace magi::sm90
