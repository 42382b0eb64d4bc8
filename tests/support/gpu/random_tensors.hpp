// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "magi/attention.hpp"
#include "mask/random_mask.hpp"
#include "support/gpu/guarded_tensor.hpp"

namespace magi::test {

/// A sum of uniforms from one draw: near enough to normal, the same on every machine.
double random_normal(RandomStream& random);

/// Random elements of about this standard deviation, on the device too.
void fill_random(GuardedTensor& tensor, RandomStream& random, double magnitude);

/// Sinks held as [1 or rows, sinks, heads] in the shape of their layout.
TensorView sink_view(const GuardedTensor& sink, SinkLayout layout);

/// The elements in row-major order.
std::vector<double> values_of(const GuardedTensor& tensor);

/// Two runs of the same bits: compared element by element, NaN included.
void expect_same_bits(const GuardedTensor& first, const GuardedTensor& second);

}  // namespace magi::test
