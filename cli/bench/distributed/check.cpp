// SPDX-License-Identifier: Apache-2.0
#include "bench/distributed/check.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/half.hpp"

namespace magi::cli {
namespace {

constexpr std::int64_t kPieceRows = 1024;

struct Squares {
  double difference = 0.0;
  double wanted = 0.0;
};

float to_float(float value) { return value; }
float to_float(std::uint16_t bits) { return bfloat16_to_float(bits); }

template <typename Element>
Squares squares_of(const std::vector<Element>& mine, const std::vector<Element>& wanted) {
  Squares sums;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const double want = to_float(wanted[i]);
    const double apart = to_float(mine[i]) - want;
    sums.difference += apart * apart;
    sums.wanted += want * want;
  }
  return sums;
}

/// Compares rows of both, piece by piece, so that the host holds little of long sequences.
template <typename Element>
double distance_of(RankDevice& device, const TensorView& mine, const TensorView& whole,
                   const Rows& rows) {
  Squares sums;
  std::int64_t local = 0;
  const auto fetch = [&](const TensorView& tensor, std::int64_t begin, std::int64_t count) {
    std::vector<Element> values(static_cast<std::size_t>(count * tensor.stride[0]));
    device.fetch_sync(tensor.slice(0, begin, begin + count).data, values.data(),
                      values.size() * sizeof(Element));
    return values;
  };
  for (const Range& range : rows) {
    for (std::int64_t row = range.begin; row < range.end; row += kPieceRows) {
      const std::int64_t count = std::min(kPieceRows, range.end - row);
      const Squares piece = squares_of(fetch(mine, local, count), fetch(whole, row, count));
      sums.difference += piece.difference;
      sums.wanted += piece.wanted;
      local += count;
    }
  }
  return local == 0 ? 0.0 : std::sqrt(sums.difference) / std::max(std::sqrt(sums.wanted), 1e-30);
}

}  // namespace

double distance_sync(RankDevice& device, const Side& side, const Side& alone) {
  double worst = 0.0;
  for (const auto tensor :
       {&AttentionArrays::out, &AttentionArrays::dq, &AttentionArrays::dk, &AttentionArrays::dv}) {
    const TensorView mine = side.arrays.*tensor;
    const TensorView whole = alone.arrays.*tensor;
    const double apart = device.type() == DType::Float32
                             ? distance_of<float>(device, mine, whole, side.rows)
                             : distance_of<std::uint16_t>(device, mine, whole, side.rows);
    if (std::isnan(apart)) return apart;
    worst = std::max(worst, apart);
  }
  return worst;
}

double allowed_distance(DType type) { return type == DType::Float32 ? 1e-4 : 0.02; }

}  // namespace magi::cli
