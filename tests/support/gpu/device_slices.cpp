// SPDX-License-Identifier: Apache-2.0
#include "support/gpu/device_slices.hpp"

#include <algorithm>

namespace magi::test {
namespace {

constexpr std::int32_t kDevice = 0;

void copy_in(const DeviceBuffer& buffer, const std::vector<std::int32_t>& values) {
  if (values.empty()) return;
  cuda_check(cudaMemcpy(buffer.data(), values.data(), values.size() * sizeof(std::int32_t),
                        cudaMemcpyHostToDevice),
             "cudaMemcpy");
}

TensorView view_of(const DeviceBuffer& buffer, DType type,
                   std::initializer_list<std::int64_t> shape) {
  TensorView view = contiguous_view(buffer.data(), type, shape);
  view.device = kDevice;
  return view;
}

/// Finite values of magnitude 0.5 to 1.
DeviceBuffer random_values(std::int64_t count, std::uint64_t seed) {
  RandomStream random(seed);
  std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
  for (std::uint16_t& value : values) {
    value = static_cast<std::uint16_t>((random() & 0x807f) | 0x3f00);
  }
  return to_device_sync<std::uint16_t>(values);
}

std::size_t float_bytes(std::int64_t count) { return static_cast<std::size_t>(count) * 4; }

}  // namespace

void TypedRanges::append(Range q, Range k, std::int32_t type) {
  q_ranges.insert(q_ranges.end(), {q.begin, q.end});
  k_ranges.insert(k_ranges.end(), {k.begin, k.end});
  types.push_back(type);
}

void TypedRanges::append_few(RandomStream& random, std::int32_t rows) {
  const std::int32_t begin = random.between(0, rows - 70);
  const std::int32_t key = random.between(0, rows - 70);
  append({begin, begin + random.between(0, 70)}, {key, key + random.between(0, 70)},
         random.between(0, 3));
}

std::vector<BandSlice> TypedRanges::bands(std::int32_t rows_q, std::int32_t rows_k) const {
  const auto clamped = [](const std::int32_t* pair, std::int32_t rows) {
    const std::int32_t begin = std::clamp(pair[0], 0, rows);
    return Range{begin, std::clamp(pair[1], begin, rows)};
  };
  std::vector<BandSlice> result;
  for (std::size_t i = 0; i < types.size(); ++i) {
    const bool is_known = types[i] >= 0 && types[i] <= 3;
    result.push_back(is_known ? band_slice(clamped(&q_ranges[2 * i], rows_q),
                                           clamped(&k_ranges[2 * i], rows_k),
                                           static_cast<MaskType>(types[i]))
                              : BandSlice{});
  }
  return result;
}

std::optional<TypedRanges> typed_ranges(std::span<const BandSlice> slices) {
  TypedRanges ranges;
  for (const BandSlice& slice : slices) {
    const Range q{slice.q0, slice.q1};
    const Range k{slice.k0, slice.k1};
    std::int32_t type = 0;
    while (type < 4 && band_slice(q, k, static_cast<MaskType>(type)) != slice) ++type;
    if (type == 4) return std::nullopt;
    ranges.append(q, k, type);
  }
  return ranges;
}

TypedRanges random_ranges(RandomStream& random, std::int32_t rows_q, std::int32_t rows_k,
                          std::int32_t count) {
  TypedRanges ranges;
  for (std::int32_t i = 0; i < count; ++i) {
    const Range q = random_range(random, rows_q);
    ranges.append(q, random_range(random, rows_k), random.between(0, 3));
  }
  return ranges;
}

DeviceRanges::DeviceRanges(const TypedRanges& ranges)
    : count_(ranges.count()),
      q_ranges_(ranges.q_ranges.size() * sizeof(std::int32_t)),
      k_ranges_(ranges.k_ranges.size() * sizeof(std::int32_t)),
      types_(ranges.types.size() * sizeof(std::int32_t)) {
  upload_sync(ranges);
}

void DeviceRanges::upload_sync(const TypedRanges& ranges) {
  copy_in(q_ranges_, ranges.q_ranges);
  copy_in(k_ranges_, ranges.k_ranges);
  copy_in(types_, ranges.types);
}

DeviceSlices DeviceRanges::view() const {
  return {view_of(q_ranges_, DType::Int32, {count_, 2}),
          view_of(k_ranges_, DType::Int32, {count_, 2}), view_of(types_, DType::Int32, {count_})};
}

CallTensors::CallTensors(std::int32_t rows_q, std::int32_t rows_k, std::int32_t heads_q,
                         std::int32_t heads_kv, std::int32_t dim)
    : rows_q_(rows_q),
      rows_k_(rows_k),
      heads_q_(heads_q),
      heads_kv_(heads_kv),
      dim_(dim),
      q_(random_values(rows_q_ * heads_q_ * dim_, 1)),
      k_(random_values(rows_k_ * heads_kv_ * dim_, 2)),
      v_(random_values(rows_k_ * heads_kv_ * dim_, 3)),
      out_(float_bytes(rows_q_ * heads_q_ * dim_) / 2),
      lse_(float_bytes(rows_q_ * heads_q_)) {
  poison_sync();
}

ForwardArgs CallTensors::args() const {
  ForwardArgs args;
  args.q = view_of(q_, DType::BFloat16, {rows_q_, heads_q_, dim_});
  args.k = view_of(k_, DType::BFloat16, {rows_k_, heads_kv_, dim_});
  args.v = view_of(v_, DType::BFloat16, {rows_k_, heads_kv_, dim_});
  args.out = view_of(out_, DType::BFloat16, {rows_q_, heads_q_, dim_});
  args.lse = view_of(lse_, DType::Float32, {rows_q_, heads_q_});
  return args;
}

void CallTensors::poison_sync() const {
  out_.fill(0xff, nullptr);
  lse_.fill(0xff, nullptr);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

std::vector<std::uint8_t> CallTensors::results_sync() const {
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  std::vector<std::uint8_t> bytes = to_host_sync<std::uint8_t>(out_.data(), out_.size_bytes());
  const auto lse = to_host_sync<std::uint8_t>(lse_.data(), lse_.size_bytes());
  bytes.insert(bytes.end(), lse.begin(), lse.end());
  return bytes;
}

}  // namespace magi::test
