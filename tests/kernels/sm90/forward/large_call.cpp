// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/forward/large_call.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/half.hpp"
#include "kernels/sm90/guarded_call.hpp"
#include "support/gpu/device_tools.hpp"

namespace magi::test {
namespace {

constexpr std::uint64_t kSeedQ = 1;
constexpr std::uint64_t kSeedK = 2;
constexpr std::uint64_t kSeedV = 3;

DeviceBuffer hashed(std::int64_t count, std::uint64_t seed) {
  DeviceBuffer buffer(static_cast<std::size_t>(count) * 2);
  fill_hashed(buffer.data(), count, seed, nullptr);
  return buffer;
}

TensorView view_of(const DeviceBuffer& buffer, DType type,
                   std::initializer_list<std::int64_t> shape) {
  TensorView view = contiguous_view(buffer.data(), type, shape);
  view.device = 0;
  return view;
}

/// Rows [begin, begin + count) of one head of a hashed tensor [rows, heads, dim].
std::vector<double> part_of(std::uint64_t seed, std::int64_t heads, std::int64_t dim, Range rows,
                            std::int64_t head) {
  std::vector<double> part;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    for (std::int64_t d = 0; d < dim; ++d) {
      const std::uint16_t bits = hashed_bfloat16(seed, (row * heads + head) * dim + d);
      part.push_back(static_cast<double>(bfloat16_to_float(bits)));
    }
  }
  return part;
}

/// What row `row` sees, as a mask of one row over the keys from the first to the last of them.
struct RowMask {
  RowMask(std::span<const BandSlice> all, std::int32_t row) {
    std::vector<Range> seen;
    for (const BandSlice& slice : all) {
      const Range visible = visible_keys(slice, row);
      if (visible.begin < visible.end) seen.push_back(visible);
    }
    if (seen.empty()) return;
    keys = seen.front();
    for (const Range& range : seen) {
      keys = {std::min(keys.begin, range.begin), std::max(keys.end, range.end)};
    }
    for (const Range& range : seen) {
      mask.slices.push_back(
          band_slice({0, 1}, {range.begin - keys.begin, range.end - keys.begin}, MaskType::Full));
    }
    mask.rows_k = static_cast<std::int32_t>(keys.size());
  }
  Range keys;
  Mask mask{.rows_q = 1, .rows_k = 0, .slices = {}};
};

}  // namespace

LargeCall::LargeCall(const LargeShape& shape)
    : shape_(shape),
      q_(hashed(shape.rows_q * shape.heads_q * shape.dim, kSeedQ)),
      k_(hashed(shape.rows_k * shape.heads_kv * shape.dim, kSeedK)),
      v_(hashed(shape.rows_k * shape.heads_kv * shape.dim, kSeedV)),
      out_(static_cast<std::size_t>(shape.rows_q * shape.heads_q * shape.dim) * 2),
      lse_(static_cast<std::size_t>(shape.rows_q * shape.heads_q) * sizeof(float)) {
  poison_sync();
}

ForwardArgs LargeCall::args() const {
  const LargeShape& s = shape_;
  ForwardArgs args;
  args.q = view_of(q_, DType::BFloat16, {s.rows_q, s.heads_q, s.dim});
  args.k = view_of(k_, DType::BFloat16, {s.rows_k, s.heads_kv, s.dim});
  args.v = view_of(v_, DType::BFloat16, {s.rows_k, s.heads_kv, s.dim});
  args.out = view_of(out_, DType::BFloat16, {s.rows_q, s.heads_q, s.dim});
  args.lse = view_of(lse_, DType::Float32, {s.rows_q, s.heads_q});
  return args;
}

void LargeCall::poison_sync() const {
  out_.fill(0xff, nullptr);
  lse_.fill(0xff, nullptr);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

void LargeCall::check_row(std::span<const BandSlice> slices, std::int64_t row,
                          std::int64_t head) const {
  SCOPED_TRACE(::testing::Message() << "row " << row << " head " << head);
  const auto token = static_cast<std::int32_t>(row);
  const RowMask seen(slices, token);
  const std::int64_t kv_head = head / (shape_.heads_q / shape_.heads_kv);
  const auto row_dim = static_cast<std::int32_t>(shape_.dim);
  reference::DenseInput in{
      .rows_q = 1,
      .rows_k = seen.mask.rows_k,
      .dim_qk = row_dim,
      .dim_v = row_dim,
      .q = part_of(kSeedQ, shape_.heads_q, shape_.dim, {token, token + 1}, head),
      .k = part_of(kSeedK, shape_.heads_kv, shape_.dim, seen.keys, kv_head),
      .v = part_of(kSeedV, shape_.heads_kv, shape_.dim, seen.keys, kv_head)};
  const auto counts = reference::counts_of(seen.mask);
  const reference::DenseOutput expected = dense_forward(in, counts);
  in.rounding = reference::Rounding::BFloat16;
  in.is_rounding_scores = true;
  const reference::DenseOutput plain = dense_forward(in, counts);
  const std::int64_t index = row * shape_.heads_q + head;
  const auto dim = static_cast<std::size_t>(shape_.dim);
  const auto out = to_host_sync<std::uint16_t>(
      static_cast<const std::uint16_t*>(out_.data()) + index * shape_.dim, dim);
  const float lse = to_host_sync<float>(static_cast<const float*>(lse_.data()) + index, 1).front();
  std::vector<double> values;
  for (const std::uint16_t bits : out) {
    values.push_back(static_cast<double>(bfloat16_to_float(bits)));
  }
  expect_out(values, expected.out, plain.out, DType::BFloat16);
  expect_lse(static_cast<double>(lse), expected.lse[0], "lse", row);
}

}  // namespace magi::test
