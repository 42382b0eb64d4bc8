// SPDX-License-Identifier: Apache-2.0
#include "doctor/small_attention.hpp"

#include <algorithm>
#include <memory>

#include "doctor/small_problem.hpp"
#include "kernels/attention/backend.hpp"

namespace magi::cli {
namespace {

constexpr std::int32_t kRows = SmallProblem::kRows;
constexpr std::int32_t kHeadsQ = SmallProblem::kHeadsQ;
constexpr std::int32_t kHeadsKv = SmallProblem::kHeadsKv;
constexpr std::int32_t kDim = SmallProblem::kDim;

SmallResults run(const RankPlace& place, const SmallProblem& problem, const std::string& name) {
  const DType type = problem.type;
  const PlacedValues q(place, type, {kRows, kHeadsQ, kDim}, problem.input.q);
  const PlacedValues k(place, type, {kRows, kHeadsKv, kDim}, problem.input.k);
  const PlacedValues v(place, type, {kRows, kHeadsKv, kDim}, problem.input.v);
  const PlacedValues dout(place, type, {kRows, kHeadsQ, kDim}, problem.dout);
  const PlacedValues out(place, type, {kRows, kHeadsQ, kDim});
  const PlacedValues lse(place, DType::Float32, {kRows, kHeadsQ});
  const PlacedValues dq(place, type, {kRows, kHeadsQ, kDim});
  const PlacedValues dk(place, type, {kRows, kHeadsKv, kDim});
  const PlacedValues dv(place, type, {kRows, kHeadsKv, kDim});
  const ForwardArgs forward{.q = q.view(),
                            .k = k.view(),
                            .v = v.view(),
                            .slices = problem.mask.slices,
                            .out = out.view(),
                            .lse = lse.view()};
  const BackwardArgs backward{.q = q.view(),
                              .k = k.view(),
                              .v = v.view(),
                              .slices = problem.mask.slices,
                              .out = out.view(),
                              .lse = lse.view(),
                              .dout = dout.view(),
                              .dq = dq.view(),
                              .dk = dk.view(),
                              .dv = dv.view()};
  const auto backend = find_backend(name, place.device);
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

std::vector<std::string> check_small_attention(const RankPlace& place, const std::string& backend) {
  const SmallProblem problem(checked_type(place));
  return problem.judge(run(place, problem, backend));
}

}  // namespace magi::cli
