// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/forward/large_call.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/half.hpp"
#include "kernels/sm90/forward/reference.hpp"
#include "support/gpu/device_tools.hpp"

namespace magi::test {
namespace {

constexpr std::uint64_t kSeedQ = 1;
constexpr std::uint64_t kSeedK = 2;
constexpr std::uint64_t kSeedV = 3;
constexpr double kLseTolerance = 2e-4;  ///< relative to max(1, |lse|)

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
GuardedTensor part_of(std::uint64_t seed, std::int64_t heads, std::int64_t dim, Range rows,
                      std::int64_t head) {
  GuardedTensor part(DType::BFloat16, rows.size(), 1, dim);
  for (std::int64_t row = 0; row < part.rows(); ++row) {
    for (std::int64_t d = 0; d < dim; ++d) {
      const std::int64_t index = ((rows.begin + row) * heads + head) * dim + d;
      part.set(row, 0, d, static_cast<double>(bfloat16_to_float(hashed_bfloat16(seed, index))));
    }
  }
  return part;
}

/// What row `row` sees, as full slices over the keys from the first to the last of them.
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
      slices.push_back(
          band_slice({0, 1}, {range.begin - keys.begin, range.end - keys.begin}, MaskType::Full));
    }
  }
  Range keys;
  std::vector<BandSlice> slices;
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
  const RowMask mask(slices, token);
  const std::int64_t kv_head = head / (shape_.heads_q / shape_.heads_kv);
  const auto q = part_of(kSeedQ, shape_.heads_q, shape_.dim, {token, token + 1}, head);
  const auto k = part_of(kSeedK, shape_.heads_kv, shape_.dim, mask.keys, kv_head);
  const auto v = part_of(kSeedV, shape_.heads_kv, shape_.dim, mask.keys, kv_head);
  const HostResult expected = attend_on_host({.q = &q, .k = &k, .v = &v, .slices = mask.slices});
  const std::int64_t index = row * shape_.heads_q + head;
  const auto dim = static_cast<std::size_t>(shape_.dim);
  const auto out = to_host_sync<std::uint16_t>(
      static_cast<const std::uint16_t*>(out_.data()) + index * shape_.dim, dim);
  const float lse = to_host_sync<float>(static_cast<const float*>(lse_.data()) + index, 1).front();
  double largest = 0.0;
  double plain_error = 0.0;
  for (std::size_t d = 0; d < dim; ++d) {
    largest = std::max(largest, std::abs(expected.out[d]));
    plain_error = std::max(plain_error, std::abs(expected.plain_out[d] - expected.out[d]));
  }
  const double ulp = largest == 0.0 ? 0.0 : std::ldexp(1.0, std::ilogb(largest) - 7);
  for (std::size_t d = 0; d < dim; ++d) {
    const auto seen = static_cast<double>(bfloat16_to_float(out[d]));
    ASSERT_LE(std::abs(seen - expected.out[d]), 2.0 * plain_error + ulp) << "dim " << d;
  }
  if (std::isinf(expected.lse[0])) {
    ASSERT_EQ(static_cast<double>(lse), expected.lse[0]);
  } else {
    ASSERT_LE(std::abs(static_cast<double>(lse) - expected.lse[0]),
              kLseTolerance * std::max(1.0, std::abs(expected.lse[0])));
  }
}

}  // namespace magi::test
