// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/backward/destinations.hpp"

namespace magi::sm90 {
namespace {

/// Rows of a tensor from `row_begin` on.
GradientRows rows_of(const TensorView& tensor, std::int32_t row_begin) {
  const auto element_bytes = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  GradientRows rows{.row_bytes = tensor.stride[0] * element_bytes,
                    .head_bytes = tensor.stride[1] * element_bytes,
                    .is_float = tensor.dtype == DType::Float32};
  rows.data = static_cast<std::uint8_t*>(tensor.data) + row_begin * rows.row_bytes;
  return rows;
}

}  // namespace

std::vector<KeyDestination> key_destinations(const BackwardArgs& args,
                                             std::span<const KeySegment> segments,
                                             std::span<const PartGradients> gradients) {
  std::vector<KeyDestination> destinations;
  destinations.reserve(segments.size());
  std::int32_t begin = 0;
  for (const KeySegment& segment : segments) {
    KeyDestination place{.row_begin = begin,
                         .row_end = segment.row_end,
                         .dk = rows_of(args.dk, begin),
                         .dv = rows_of(args.dv, begin)};
    begin = segment.row_end;
    if (segment.part >= 0) {
      const PartGradients& part = gradients[static_cast<std::size_t>(segment.part)];
      if (!part.dk.empty()) {
        place.dk = rows_of(part.dk, 0);
        place.dv = rows_of(part.dv, 0);
      }
    }
    destinations.push_back(place);
  }
  return destinations;
}

}  // namespace magi::sm90
