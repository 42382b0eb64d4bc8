// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bench/distributed/layouts.hpp"
#include "kernels/attention/backend.hpp"
#include "ranks/rank_device.hpp"

// What a cell times on a rank: attention of some rows, forward and backward.
namespace magi::cli {

struct AttentionShape {
  std::int32_t heads_q = 0;
  std::int32_t heads_kv = 0;
  std::int32_t head_dim = 0;
};

/// What attention reads and writes, [rows, heads, dim]; lse [rows, heads] float32.
struct AttentionTensors {
  TensorView q, k, v, dout;
  TensorView out, lse, dq, dk, dv;
};

/// One way to attend on a rank. Calls are enqueued on the rank's stream, and collective where the
/// ranks exchange rows. The backward follows the forward with the same tensors.
class RankAttention {
 public:
  virtual ~RankAttention() = default;
  virtual void forward(const AttentionTensors& tensors) = 0;
  virtual void backward(const AttentionTensors& tensors) = 0;
};

/// Our kernel on one device under slices over local rows, prepared at the first call.
class KernelAttention final : public RankAttention {
 public:
  /// `device` outlives it.
  KernelAttention(RankDevice& device, std::vector<BandSlice> slices);

  void forward(const AttentionTensors& tensors) override { attend(tensors, false); }
  void backward(const AttentionTensors& tensors) override { add_gradients(tensors, false); }
  /// Merges into out (float32) and lse where `is_merging`.
  void attend(const AttentionTensors& tensors, bool is_merging);
  /// Adds to dq (float32) where `is_adding`; dk and dv are written.
  void add_gradients(const AttentionTensors& tensors, bool is_adding);

 private:
  RankDevice& device_;
  std::shared_ptr<const AttentionBackend> backend_;
  std::vector<BandSlice> slices_;
  std::shared_ptr<const PreparedForward> forward_;
  std::shared_ptr<const PreparedBackward> backward_;
};

struct AttentionArrays {
  Array q, k, v, dout, out, lse, dq, dk, dv;

  AttentionTensors views() const;
};
/// Of q and of k; the results are as large.
struct RowCounts {
  std::int64_t q = 0;
  std::int64_t k = 0;
};
/// Tensors on `device` whose contents are undefined: results alone, or inputs too.
AttentionArrays make_results(RankDevice& device, const AttentionShape& shape, RowCounts rows);
AttentionArrays make_arrays(RankDevice& device, const AttentionShape& shape, RowCounts rows);

}  // namespace magi::cli
