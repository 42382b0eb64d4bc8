// SPDX-License-Identifier: Apache-2.0
#include "bench/distributed/problem.hpp"

#include <algorithm>
#include <utility>

#include "common/cost.hpp"
#include "common/masks.hpp"
#include "magi/runtime.hpp"

namespace magi::cli {
namespace {

constexpr std::int32_t kUlyssesOfUsp = 2;  ///< ranks that share their rows and heads
/// Per visible pair, head and element of dim: two products forward, five backward.
constexpr double kFlops[] = {4.0, 10.0};

/// The library as its users call it, with a plan that chooses its stages by modelled cost.
class LibraryAttention final : public RankAttention {
 public:
  LibraryAttention(const std::shared_ptr<const Plan>& plan, RankDevice& device, Communicator& group)
      : device_(device), attention_(plan, group, {.allocator = device.allocator()}) {}

  void forward(const AttentionTensors& tensors) override {
    attention_.forward(inputs(tensors), result(tensors), device_.stream());
  }
  void backward(const AttentionTensors& tensors) override {
    attention_.backward(inputs(tensors), result(tensors), {.dout = tensors.dout},
                        {.dq = tensors.dq, .dk = tensors.dk, .dv = tensors.dv}, device_.stream());
  }

 private:
  static AttentionInputs inputs(const AttentionTensors& tensors) {
    return {.q = tensors.q, .k = tensors.k, .v = tensors.v, .is_fast_backward = true};
  }
  static AttentionResult result(const AttentionTensors& tensors) {
    return {.out = tensors.out, .lse = tensors.lse};
  }

  RankDevice& device_;
  DistributedAttention attention_;
};

/// The valid rows of a rank's chunks.
Rows rows_of(const Placement& placement, std::int32_t rank, std::int32_t total) {
  Rows rows;
  for (const std::int32_t chunk : placement.chunks_of(rank)) {
    const Range range = placement.chunk_rows(chunk);
    const Range valid{range.begin, std::min(range.end, total)};
    if (!valid.empty()) rows.push_back(valid);
  }
  return rows;
}

std::vector<Rows> all_zigzag_rows(std::int32_t total, std::int32_t size) {
  std::vector<Rows> rows;
  for (std::int32_t rank = 0; rank < size; ++rank) rows.push_back(zigzag_rows(total, size, rank));
  return rows;
}

std::vector<std::int32_t> numbers_from(std::int32_t first, std::int32_t count, std::int32_t step) {
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(count));
  for (std::int32_t& number : numbers) number = std::exchange(first, first + step);
  return numbers;
}

}  // namespace

Problem::Problem(const DistBenchOptions& options, const Rank& rank, const std::string& mask,
                 std::int32_t tokens)
    : rank_(rank),
      shape_{options.heads_q, options.heads_kv, options.head_dim},
      mask_(dist_mask(mask, tokens * rank.ours.num_ranks())) {
  const auto random = [&](std::int32_t heads, std::uint64_t seed) {
    return rank.device.make_random({total(), heads, options.head_dim}, seed);
  };
  q_ = random(options.heads_q, 1);
  k_ = random(options.heads_kv, 2);
  v_ = random(options.heads_kv, 3);
  dout_ = random(options.heads_q, 4);
}

double Problem::flops(std::size_t pass) const {
  return kFlops[pass] * static_cast<double>(area(mask_)) * shape_.heads_q * shape_.head_dim;
}

bool Problem::allows(DistSide side) const {
  if (side == DistSide::Alone || side == DistSide::Default) return true;
  if (rank_.link == nullptr) return false;
  const std::int32_t size = rank_.ours.num_ranks();
  if (side == DistSide::Ulysses) return shape_.heads_kv % size == 0;
  if (side != DistSide::Usp) return true;
  return size >= 2 * kUlyssesOfUsp && size % kUlyssesOfUsp == 0 &&
         shape_.heads_kv % kUlyssesOfUsp == 0;
}

Side Problem::make(DistSide side) const {
  if (side == DistSide::Alone) return alone();
  if (side == DistSide::Default) return ours();
  Side made{.id = side, .group = rank_.baselines};
  made.attention = baseline(side, made.rows);
  made.arrays = take(made.rows, made.rows);
  return made;
}

Side Problem::alone() const {
  Side made{.id = DistSide::Alone, .rows = {{0, total()}}};
  made.arrays = make_results(rank_.device, shape_, {total(), total()});
  made.arrays.q = q_;
  made.arrays.k = k_;
  made.arrays.v = v_;
  made.arrays.dout = dout_;
  made.attention = std::make_unique<KernelAttention>(rank_.device, mask_.slices);
  return made;
}

Side Problem::ours() const {
  const PlanConfig config{
      .num_ranks = rank_.ours.num_ranks(),
      .num_heads_q = shape_.heads_q,
      .num_heads_kv = shape_.heads_kv,
      .head_dim_qk = shape_.head_dim,
      .head_dim_v = shape_.head_dim,
      .element_bytes = static_cast<std::int32_t>(dtype_bytes(rank_.device.type())),
      .overlap_degree = std::nullopt};
  const auto plan = std::make_shared<const Plan>(make_plan(mask_, config));
  const std::int32_t rank = rank_.ours.rank();
  Side made{.id = DistSide::Default,
            .rows = rows_of(plan->placement_q, rank, total()),
            .group = &rank_.ours};
  const std::int32_t padding = plan->placement_q.rows_of(rank) - count_rows(made.rows);
  made.arrays = take(made.rows, made.rows, {padding, padding});
  made.plan = plan;
  made.attention = std::make_unique<LibraryAttention>(plan, rank_.device, rank_.ours);
  return made;
}

BaselineParts Problem::parts() const {
  return {.device = rank_.device,
          .link = *rank_.link,
          .shape = shape_,
          .slices = mask_.slices,
          .total = total()};
}

std::unique_ptr<RankAttention> Problem::baseline(DistSide side, Rows& rows) const {
  const std::int32_t size = rank_.ours.num_ranks();
  const std::int32_t rank = rank_.ours.rank();
  const std::vector<std::int32_t> everyone = numbers_from(0, size, 1);
  if (side == DistSide::Usp) return usp(rows);
  if (side == DistSide::Ulysses) {
    rows = contiguous_rows(total(), size, rank);
    auto inner = std::make_unique<KernelAttention>(rank_.device, mask_.slices);
    return std::make_unique<Ulysses>(parts(), everyone, count_rows(rows), std::move(inner));
  }
  const std::vector<Rows> all = all_zigzag_rows(total(), size);
  rows = all[static_cast<std::size_t>(rank)];
  if (side == DistSide::Ring) return std::make_unique<Ring>(parts(), everyone, all);
  return std::make_unique<AllGather>(parts(), all);
}

/// Neighbours share rows and heads; every second rank makes a ring.
std::unique_ptr<RankAttention> Problem::usp(Rows& rows) const {
  const std::int32_t rank = rank_.ours.rank();
  const std::int32_t ring_size = rank_.ours.num_ranks() / kUlyssesOfUsp;
  const std::int32_t place = rank % kUlyssesOfUsp;
  const std::vector<Rows> all = all_zigzag_rows(total(), ring_size);
  rows = share_of(all[static_cast<std::size_t>(rank / kUlyssesOfUsp)], kUlyssesOfUsp, place);
  BaselineParts inner_parts = parts();
  inner_parts.shape.heads_q /= kUlyssesOfUsp;
  inner_parts.shape.heads_kv /= kUlyssesOfUsp;
  auto inner =
      std::make_unique<Ring>(inner_parts, numbers_from(place, ring_size, kUlyssesOfUsp), all);
  return std::make_unique<Ulysses>(parts(), numbers_from(rank - place, kUlyssesOfUsp, 1),
                                   count_rows(rows), std::move(inner));
}

Side Problem::without_communication(const Side& side) const {
  const RankPlan& mine = side.plan->ranks[static_cast<std::size_t>(rank_.ours.rank())];
  Side made{.id = side.id, .rows = side.rows};
  std::vector<BandSlice> slices;
  if (mine.attends.size() == 1) {
    const Attend& attend = mine.attends[0];
    const auto first = mine.slices.begin() + attend.slices.begin;
    slices.assign(first, first + attend.slices.size());
    const std::int32_t rows_q = mine.q.segments[0].num_rows;
    const std::int32_t rows_k =
        mine.k.segments[static_cast<std::size_t>(attend.k_segment)].num_rows;
    const std::int32_t keys = std::min(rows_k, total());
    made.arrays = take(side.rows, {{0, keys}}, {rows_q - count_rows(side.rows), rows_k - keys});
  } else {
    Rows keys = seen_keys(mask_.slices, side.rows);
    if (keys.empty()) keys = {{0, 1}};
    slices = slices_between(mask_.slices, side.rows, keys);
    made.arrays = take(side.rows, keys);
  }
  made.attention = std::make_unique<KernelAttention>(rank_.device, std::move(slices));
  return made;
}

AttentionArrays Problem::take(const Rows& rows_q, const Rows& rows_k, RowCounts padding) const {
  const RowCounts counts{count_rows(rows_q) + padding.q, count_rows(rows_k) + padding.k};
  AttentionArrays arrays = make_arrays(rank_.device, shape_, counts);
  take(q_, rows_q, arrays.q);
  take(k_, rows_k, arrays.k);
  take(v_, rows_k, arrays.v);
  take(dout_, rows_q, arrays.dout);
  return arrays;
}

void Problem::take(const TensorView& whole, const Rows& rows, const TensorView& target) const {
  const auto row_bytes = static_cast<std::size_t>(whole.stride[0]) * dtype_bytes(whole.dtype);
  auto* place = static_cast<std::byte*>(target.data);
  for (const Range& range : rows) {
    const auto size_bytes = static_cast<std::size_t>(range.size()) * row_bytes;
    const TensorView part = whole.slice(0, range.begin, range.end);
    rank_.device.copy(part.data, place, size_bytes);
    place += size_bytes;
  }
  const TensorView padding = target.slice(0, count_rows(rows), target.shape[0]);
  if (padding.num_elements() > 0) rank_.device.clear(padding);
}

}  // namespace magi::cli
