// SPDX-License-Identifier: Apache-2.0
#include "doctor/small_attention.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>

#include "doctor/small_problem.hpp"
#include "magi/plan.hpp"
#include "magi/runtime.hpp"

namespace magi::cli {
namespace {

constexpr std::int32_t kHeadsQ = SmallProblem::kHeadsQ;
constexpr std::int32_t kHeadsKv = SmallProblem::kHeadsKv;
constexpr std::int32_t kDim = SmallProblem::kDim;

/// Ranks take chunks in turns, there and back, so that rows of documents travel both ways.
std::shared_ptr<const Plan> small_plan(const SmallProblem& problem, std::int32_t num_ranks) {
  // One remote stage, so that results of two attention calls are merged, too.
  PlanConfig config{.num_ranks = num_ranks,
                    .num_heads_q = kHeadsQ,
                    .num_heads_kv = kHeadsKv,
                    .head_dim_qk = kDim,
                    .head_dim_v = kDim,
                    .element_bytes = static_cast<std::int32_t>(dtype_bytes(problem.type)),
                    .overlap_degree = 1};
  config.placement.algorithm = PlacementAlgorithm::Zigzag;
  return std::make_shared<const Plan>(make_plan(problem.mask, config));
}

/// Calls copy(row, local row) for every row of a rank but those of padding.
template <typename Copy>
void for_rows(const Placement& placement, std::int32_t rank, const Copy& copy) {
  std::size_t local = 0;
  for (const std::int32_t chunk : placement.chunks_of(rank)) {
    const Range rows = placement.chunk_rows(chunk);
    for (std::int32_t row = rows.begin; row < rows.end; ++row, ++local) {
      if (row < SmallProblem::kRows) copy(static_cast<std::size_t>(row), local);
    }
  }
}

std::vector<double> shard_of(const std::vector<double>& whole, const Placement& placement,
                             std::int32_t rank) {
  const std::size_t width = whole.size() / SmallProblem::kRows;
  std::vector<double> local(static_cast<std::size_t>(placement.rows_of(rank)) * width);
  for_rows(placement, rank, [&](std::size_t row, std::size_t at) {
    std::copy_n(whole.data() + row * width, width, local.data() + at * width);
  });
  return local;
}

void put_back(const std::vector<double>& local, const Placement& placement, std::int32_t rank,
              std::vector<double>& whole) {
  const std::size_t width = local.size() / static_cast<std::size_t>(placement.rows_of(rank));
  whole.resize(width * SmallProblem::kRows);
  for_rows(placement, rank, [&](std::size_t row, std::size_t at) {
    std::copy_n(local.data() + at * width, width, whole.data() + row * width);
  });
}

SmallResults run_rank(Communicator& group, const RankPlace& place, const SmallProblem& problem,
                      const std::shared_ptr<const Plan>& plan, const std::string& backend) {
  const Placement& placement = plan->placement_q;
  const std::int64_t rows = placement.rows_of(group.rank());
  const auto shard = [&](std::int32_t heads, const std::vector<double>& whole) {
    return PlacedValues(place, problem.type, {rows, heads, kDim},
                        shard_of(whole, placement, group.rank()));
  };
  const auto result = [&](std::int32_t heads) {
    return PlacedValues(place, problem.type, {rows, heads, kDim});
  };
  const PlacedValues q = shard(kHeadsQ, problem.input.q), k = shard(kHeadsKv, problem.input.k);
  const PlacedValues v = shard(kHeadsKv, problem.input.v), dout = shard(kHeadsQ, problem.dout);
  const PlacedValues out = result(kHeadsQ), dq = result(kHeadsQ);
  const PlacedValues dk = result(kHeadsKv), dv = result(kHeadsKv);
  const PlacedValues lse(place, DType::Float32, {rows, kHeadsQ});
  DistributedAttention attention(plan, group, {.backend = backend});
  const AttentionInputs inputs{.q = q.view(), .k = k.view(), .v = v.view()};
  const AttentionResult made{.out = out.view(), .lse = lse.view()};
  attention.forward(inputs, made, place.stream);
  attention.backward(inputs, made, {.dout = dout.view()},
                     {.dq = dq.view(), .dk = dk.view(), .dv = dv.view()}, place.stream);
  return {.out = out.values_sync(),
          .lse = lse.values_sync(),
          .dq = dq.values_sync(),
          .dk = dk.values_sync(),
          .dv = dv.values_sync()};
}

}  // namespace

std::vector<std::string> check_small_attention(std::int32_t num_ranks, const std::string& backend,
                                               const std::function<void(const RankBody&)>& run) {
  std::mutex mutex;
  std::optional<SmallProblem> problem;
  std::shared_ptr<const Plan> plan;
  SmallResults whole;
  run([&](Communicator& group, const RankPlace& place) {
    {
      const std::lock_guard lock(mutex);
      if (!problem) {
        problem.emplace(checked_type(place));
        plan = small_plan(*problem, num_ranks);
      }
    }
    const SmallResults local = run_rank(group, place, *problem, plan, backend);
    group.allgather_sync({});  // nobody's rows end while another rank may read them
    const std::lock_guard lock(mutex);
    for (const auto& values : {&SmallResults::out, &SmallResults::lse, &SmallResults::dq,
                               &SmallResults::dk, &SmallResults::dv}) {
      put_back(local.*values, plan->placement_q, group.rank(), whole.*values);
    }
  });
  return problem->judge(whole);
}

}  // namespace magi::cli
