// SPDX-License-Identifier: Apache-2.0
#include "support/gpu/random_tensors.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace magi::test {

double random_normal(RandomStream& random) {
  constexpr int kBits = 10;
  constexpr double kLargest = (1 << kBits) - 1;
  std::uint64_t bits = random();
  double sum = 0.0;
  for (int i = 0; i < 6; ++i, bits >>= kBits) {
    sum += static_cast<double>(bits % (1 << kBits)) * (2.0 / kLargest) - 1.0;
  }
  return sum / std::sqrt(2.0);
}

void fill_random(GuardedTensor& tensor, RandomStream& random, double magnitude) {
  for (std::int64_t row = 0; row < tensor.rows(); ++row) {
    for (std::int64_t head = 0; head < tensor.heads(); ++head) {
      for (std::int64_t d = 0; d < tensor.dim(); ++d) {
        tensor.set(row, head, d, magnitude * random_normal(random));
      }
    }
  }
  tensor.upload_sync();
}

TensorView sink_view(const GuardedTensor& sink, SinkLayout layout) {
  TensorView view = sink.view();
  if (layout == SinkLayout::RowSinkHead) return view;
  view.rank = 2;
  for (std::size_t axis = 0; axis < 2; ++axis) {
    view.shape[axis] = view.shape[axis + 1];
    view.stride[axis] = view.stride[axis + 1];
  }
  return view;
}

std::vector<double> values_of(const GuardedTensor& tensor) {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(tensor.rows() * tensor.heads() * tensor.dim()));
  for (std::int64_t row = 0; row < tensor.rows(); ++row) {
    for (std::int64_t head = 0; head < tensor.heads(); ++head) {
      for (std::int64_t d = 0; d < tensor.dim(); ++d) values.push_back(tensor.get(row, head, d));
    }
  }
  return values;
}

void expect_same_bits(const GuardedTensor& first, const GuardedTensor& second) {
  if (first.has_same_bytes(second)) return;
  for (std::int64_t row = 0; row < first.rows(); ++row) {
    for (std::int64_t head = 0; head < first.heads(); ++head) {
      for (std::int64_t d = 0; d < first.dim(); ++d) {
        ASSERT_EQ(first.bits(row, head, d), second.bits(row, head, d))
            << "row " << row << " head " << head << " dim " << d << " differs between two runs";
      }
    }
  }
}

}  // namespace magi::test
