// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cooperative_groups.h>

// The CTAs that take a step together. A step is compiled twice: for a cluster, and for one CTA,
// which also serves GPUs without clusters. Nothing else of a build differs.
namespace magi {

inline constexpr int kOrderCtas = 8;  ///< of a cluster
inline constexpr int kLoneCta = 1;

/// A CTA by itself.
struct LoneCta {
  __device__ __forceinline__ static int rank() { return 0; }
  __device__ __forceinline__ static int count() { return 1; }
  __device__ __forceinline__ static void sync() { __syncthreads(); }
  __device__ __forceinline__ static void arrive() {}
  __device__ __forceinline__ static void wait() {}
  template <typename Value>
  __device__ __forceinline__ static Value* of_cta(Value* own, int /*rank*/) {
    return own;
  }
};

// MAGI_CLUSTER_OF is the attribute of kernels for clusters, Cluster<kMost> one of up to kMost CTAs.
// Code for GPUs without clusters has these kernels too, which nobody launches there.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define MAGI_CLUSTER_OF(ctas)
template <int kMost>
struct Cluster : LoneCta {};
#else
#define MAGI_CLUSTER_OF(ctas) __cluster_dims__(ctas)
template <int kMost>
struct Cluster {
  __device__ __forceinline__ static auto group() { return cooperative_groups::this_cluster(); }
  __device__ __forceinline__ static int rank() { return static_cast<int>(group().block_rank()); }
  __device__ __forceinline__ static int count() { return static_cast<int>(group().num_blocks()); }
  __device__ __forceinline__ static void sync() { group().sync(); }
  __device__ __forceinline__ static void arrive() { group().barrier_arrive(); }
  __device__ __forceinline__ static void wait() { group().barrier_wait(); }
  /// The place in another CTA's shared memory of what lies at `own` in this one's.
  template <typename Value>
  __device__ __forceinline__ static Value* of_cta(Value* own, int rank) {
    return group().map_shared_rank(own, static_cast<unsigned>(rank));
  }
};

template <>
struct Cluster<kLoneCta> : LoneCta {};
#endif

}  // namespace magi
