// SPDX-License-Identifier: Apache-2.0
#include "doctor/small_attention.hpp"

#include <algorithm>
#include <memory>

#include "base/half.hpp"
#include "base/random.hpp"
#include "kernels/attention/backend.hpp"
#include "magi/mask_builders.hpp"
#include "reference/error_rule.hpp"

namespace magi::cli {
namespace {

using reference::DenseInput;
using reference::Verdict;

constexpr std::int32_t kRows = 200;
constexpr std::int32_t kHeadsQ = 4;
constexpr std::int32_t kHeadsKv = 2;
constexpr std::int32_t kDim = 64;

/// Documents of which each row sees those before it.
Mask small_mask() {
  const std::vector<std::int32_t> documents{0, 70, 133, kRows};
  return mask_from_cu_seqlens(documents, documents, {.is_causal = true});
}

std::vector<double> random_values(RandomStream& random, std::int32_t heads, DType type) {
  constexpr std::int32_t kSteps = 1 << 20;
  std::vector<double> values(static_cast<std::size_t>(kRows) * static_cast<std::size_t>(heads) *
                             kDim);
  for (double& value : values) {
    const double drawn = static_cast<double>(random.between(-kSteps, kSteps)) / kSteps;
    value = reference::rounded(static_cast<float>(drawn), reference::rounding_of(type));
  }
  return values;
}

/// A tensor of a call, with values to and from double.
class Array {
 public:
  Array(const RankPlace& place, DType type, std::initializer_list<std::int64_t> shape)
      : place_(place), tensor_(place, type, shape) {}
  Array(const RankPlace& place, DType type, std::initializer_list<std::int64_t> shape,
        const std::vector<double>& values)
      : Array(place, type, shape) {
    if (type == DType::BFloat16) {
      std::vector<std::uint16_t> bits;
      for (const double v : values) bits.push_back(float_to_bfloat16(static_cast<float>(v)));
      place.copy_sync(tensor_.memory.get(), bits.data(), tensor_.size_bytes());
    } else {
      const std::vector<float> floats(values.begin(), values.end());
      place.copy_sync(tensor_.memory.get(), floats.data(), tensor_.size_bytes());
    }
  }

  const TensorView& view() const { return tensor_.view; }
  std::vector<double> values_sync() const {
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

 private:
  const RankPlace& place_;
  PlacedTensor tensor_;
};

/// Results by name, in float64.
struct Results {
  std::vector<double> out, lse, dq, dk, dv;
};

Results dense_results(const DenseInput& input, const Mask& mask, const std::vector<double>& dout) {
  const auto counts = reference::counts_of(mask);
  const auto output = reference::dense_forward(input, counts);
  auto gradients = reference::dense_backward(input, counts, output, dout, {});
  return {.out = output.out,
          .lse = output.lse,
          .dq = std::move(gradients.dq),
          .dk = std::move(gradients.dk),
          .dv = std::move(gradients.dv)};
}

Results run(const RankPlace& place, DType type, const DenseInput& input, const Mask& mask,
            const std::vector<double>& dout_values) {
  const Array q(place, type, {kRows, kHeadsQ, kDim}, input.q);
  const Array k(place, type, {kRows, kHeadsKv, kDim}, input.k);
  const Array v(place, type, {kRows, kHeadsKv, kDim}, input.v);
  const Array dout(place, type, {kRows, kHeadsQ, kDim}, dout_values);
  const Array out(place, type, {kRows, kHeadsQ, kDim}), dq(place, type, {kRows, kHeadsQ, kDim});
  const Array dk(place, type, {kRows, kHeadsKv, kDim}), dv(place, type, {kRows, kHeadsKv, kDim});
  const Array lse(place, DType::Float32, {kRows, kHeadsQ});
  const ForwardArgs forward{.q = q.view(),
                            .k = k.view(),
                            .v = v.view(),
                            .slices = mask.slices,
                            .out = out.view(),
                            .lse = lse.view()};
  const BackwardArgs backward{.q = q.view(),
                              .k = k.view(),
                              .v = v.view(),
                              .slices = mask.slices,
                              .out = out.view(),
                              .lse = lse.view(),
                              .dout = dout.view(),
                              .dq = dq.view(),
                              .dk = dk.view(),
                              .dv = dv.view()};
  const auto backend = find_backend("", place.device);
  const auto first = backend->prepare_forward(forward, {});
  const auto second = backend->prepare_backward(backward, {});
  const std::int64_t bytes = std::max(first->workspace_bytes(), second->workspace_bytes());
  const auto memory = place.allocate(std::max<std::int64_t>(bytes, 1));
  first->run(forward, {memory.get(), bytes}, place.stream);
  second->run(backward, {memory.get(), bytes}, place.stream);
  return {.out = out.values_sync(),
          .lse = lse.values_sync(),
          .dq = dq.values_sync(),
          .dk = dk.values_sync(),
          .dv = dv.values_sync()};
}

}  // namespace

std::vector<std::string> check_small_attention(const RankPlace& place) {
  const bool is_gpu = place.device != kCpuDevice;
  const DType type = is_gpu ? DType::BFloat16 : DType::Float32;
  const Mask mask = small_mask();
  RandomStream random(7);
  DenseInput input{.rows_q = kRows,
                   .rows_k = kRows,
                   .heads_q = kHeadsQ,
                   .heads_kv = kHeadsKv,
                   .dim_qk = kDim,
                   .dim_v = kDim,
                   .q = random_values(random, kHeadsQ, type),
                   .k = random_values(random, kHeadsKv, type),
                   .v = random_values(random, kHeadsKv, type)};
  const std::vector<double> dout = random_values(random, kHeadsQ, type);
  const Results truth = dense_results(input, mask, dout);
  const Results got = run(place, type, input, mask, dout);
  DenseInput rounding = input;
  rounding.rounding = reference::rounding_of(type);
  const Results plain = is_gpu ? dense_results(rounding, mask, dout) : truth;
  std::vector<std::string> findings;
  const auto judge = [&](const char* name, std::vector<double> Results::*values, double noise) {
    Verdict verdict =
        is_gpu ? reference::judge_rounded(got.*values, truth.*values, plain.*values, type)
               : reference::judge_exact(got.*values, truth.*values, type);
    verdict.allowed += noise;
    if (!verdict.holds()) findings.push_back(std::string(name) + ": " + verdict.text());
  };
  const auto noise = [&](const std::vector<double>& factors) {
    return is_gpu ? reference::cancelled_noise(input, dout, factors) : 0.0;
  };
  judge("out", &Results::out, 0.0);
  judge("dq", &Results::dq, noise(input.k));
  judge("dk", &Results::dk, noise(input.q));
  judge("dv", &Results::dv, 0.0);
  const Verdict lse = is_gpu ? reference::judge_approximate(got.lse, truth.lse)
                             : reference::judge_exact(got.lse, truth.lse, type);
  if (!lse.holds()) findings.push_back("lse: " + lse.text());
  return findings;
}

}  // namespace magi::cli
