// SPDX-License-Identifier: Apache-2.0
#include "doctor/small_problem.hpp"

#include <algorithm>

#include "base/half.hpp"
#include "base/random.hpp"
#include "magi/mask_builders.hpp"
#include "reference/error_rule.hpp"

namespace magi::cli {
namespace {

using reference::Decision;
using reference::DenseInput;

/// Documents of which each row sees those before it.
Mask small_mask() {
  const std::vector<std::int32_t> documents{0, 70, 133, SmallProblem::kRows};
  return mask_from_cu_seqlens(documents, documents, {.is_causal = true});
}

std::vector<double> random_values(RandomStream& random, std::int32_t heads, DType type) {
  constexpr std::int32_t kSteps = 1 << 20;
  std::vector<double> values(static_cast<std::size_t>(SmallProblem::kRows) *
                             static_cast<std::size_t>(heads) * SmallProblem::kDim);
  for (double& value : values) {
    const double drawn = static_cast<double>(random.between(-kSteps, kSteps)) / kSteps;
    value = reference::rounded(static_cast<float>(drawn), reference::rounding_of(type));
  }
  return values;
}

SmallResults dense_results(const DenseInput& input, const Mask& mask,
                           const std::vector<double>& dout) {
  const auto counts = reference::counts_of(mask);
  const auto output = reference::dense_forward(input, counts);
  auto gradients = reference::dense_backward(input, counts, output, dout, {});
  return {.out = output.out,
          .lse = output.lse,
          .dq = std::move(gradients.dq),
          .dk = std::move(gradients.dk),
          .dv = std::move(gradients.dv)};
}

}  // namespace

SmallProblem::SmallProblem(DType checked) : type(checked), mask(small_mask()) {
  RandomStream random(7);
  input = {.rows_q = kRows,
           .rows_k = kRows,
           .heads_q = kHeadsQ,
           .heads_kv = kHeadsKv,
           .dim_qk = kDim,
           .dim_v = kDim,
           .q = random_values(random, kHeadsQ, type),
           .k = random_values(random, kHeadsKv, type),
           .v = random_values(random, kHeadsKv, type)};
  dout = random_values(random, kHeadsQ, type);
}

std::vector<std::string> SmallProblem::judge(const SmallResults& got) const {
  const bool is_16_bit = type == DType::BFloat16;
  const SmallResults truth = dense_results(input, mask, dout);
  DenseInput rounding = input;
  rounding.rounding = reference::rounding_of(type);
  const SmallResults plain = is_16_bit ? dense_results(rounding, mask, dout) : truth;
  std::vector<std::string> findings;
  const auto add = [&](const char* name, const Decision& decision) {
    if (!decision.holds()) findings.push_back(std::string(name) + ": " + decision.text());
  };
  const auto compare = [&](const char* name, std::vector<double> SmallResults::*values,
                           double noise) {
    Decision decision =
        is_16_bit ? reference::judge_rounded(got.*values, truth.*values, plain.*values, type)
                  : reference::judge_exact(got.*values, truth.*values, type);
    decision.allowed += noise;
    add(name, decision);
  };
  const auto noise = [&](const std::vector<double>& factors) {
    return is_16_bit ? reference::cancelled_noise(input, dout, factors) : 0.0;
  };
  compare("out", &SmallResults::out, 0.0);
  compare("dq", &SmallResults::dq, noise(input.k));
  compare("dk", &SmallResults::dk, noise(input.q));
  compare("dv", &SmallResults::dv, 0.0);
  add("lse", is_16_bit ? reference::judge_approximate(got.lse, truth.lse)
                       : reference::judge_exact(got.lse, truth.lse, type));
  return findings;
}

PlacedValues::PlacedValues(const RankPlace& place, DType type,
                           std::initializer_list<std::int64_t> shape,
                           const std::vector<double>& values)
    : PlacedValues(place, type, shape) {
  if (type == DType::BFloat16) {
    std::vector<std::uint16_t> bits;
    for (const double v : values) bits.push_back(float_to_bfloat16(static_cast<float>(v)));
    place.copy_sync(tensor_.memory.get(), bits.data(), tensor_.size_bytes());
  } else {
    const std::vector<float> floats(values.begin(), values.end());
    place.copy_sync(tensor_.memory.get(), floats.data(), tensor_.size_bytes());
  }
}

std::vector<double> PlacedValues::values_sync() const {
  const auto count = static_cast<std::size_t>(tensor_.view.num_elements());
  if (tensor_.view.dtype == DType::BFloat16) {
    std::vector<std::uint16_t> bits(count);
    place_.copy_sync(bits.data(), tensor_.memory.get(), tensor_.size_bytes());
    std::vector<double> values(count);
    std::ranges::transform(bits, values.begin(), bfloat16_to_float);
    return values;
  }
  std::vector<float> floats(count);
  place_.copy_sync(floats.data(), tensor_.memory.get(), tensor_.size_bytes());
  return {floats.begin(), floats.end()};
}

}  // namespace magi::cli
