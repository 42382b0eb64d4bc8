// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "simulate/strategies.hpp"

namespace magi::simulate {
namespace {

/// A ring in time: rank r of it begins step i once it has ended step i - 1 and has the keys of step
/// i, which the one before it sends from the beginning of its own step i - 1 on.
class RingTimes {
 public:
  RingTimes(const Problem& problem, const RingShape& shape)
      : problem_(problem),
        shape_(shape),
        size_(static_cast<std::size_t>(shape.parts.num_members)),
        work_(pair_work(problem.mask, shape.parts)),
        heads_q_(static_cast<double>(problem.config.num_heads_q) / shape.heads_shared),
        key_bytes_(shape.parts.rows_of_member() * key_elements(problem.config) /
                   shape.heads_shared * problem.config.element_bytes),
        sum_bytes_(shape.parts.rows_of_member() * key_elements(problem.config) /
                   shape.heads_shared * kSumBytes) {}

  const std::vector<Work>& work() const { return work_; }

  /// Bytes that each rank sends in a step; after the last one sums go home.
  std::int64_t bytes_of_step(Pass pass, std::size_t step) const {
    if (size_ == 1) return 0;
    const std::int64_t keys = step + 1 < size_ ? key_bytes_ : 0;
    const bool has_sums = pass == Pass::Backward && step > 0;
    return keys + (has_sums ? sum_bytes_ : 0);
  }
  std::size_t num_steps(Pass pass) const { return size_ + (pass == Pass::Backward ? 1 : 0); }

  void add_times(Pass pass, PassFigures& figures) const {
    std::vector<double> begin(size_, 0.0), next(size_), attending(size_, 0.0);
    for (std::size_t step = 0; step < num_steps(pass); ++step) {
      for (std::size_t r = 0; r < size_; ++r) {
        const double attend = step < size_ ? attend_time(pass, r, step) : 0.0;
        attending[r] += attend;
        next[r] = begin[r] + attend;
      }
      const std::int64_t bytes = bytes_of_step(pass, step);
      for (std::size_t r = 0; r < size_ && bytes > 0; ++r) {
        const std::size_t to = (r + 1) % size_;
        const double arrival = std::max(begin[r], begin[to]) + hop_time(r, to, bytes);
        // A rank waits for what it sends, too: the rows leave from where the next ones go.
        next[to] = std::max(next[to], arrival);
        next[r] = std::max(next[r], arrival);
      }
      begin.swap(next);
    }
    figures.seconds += *std::max_element(begin.begin(), begin.end());
    figures.attending_seconds += *std::max_element(attending.begin(), attending.end());
  }

  LinkClass link_of_hop(std::size_t from, std::size_t to, std::int32_t place) const {
    const auto rank = [&](std::size_t member) {
      return static_cast<std::int32_t>(member) * shape_.heads_shared + place;
    };
    return problem_.cluster.link_between(rank(from), rank(to));
  }

 private:
  double attend_time(Pass pass, std::size_t rank, std::size_t step) const {
    const Work& work = work_[rank * size_ + (rank + size_ - step) % size_];
    const double merge =
        pass == Pass::Forward && step > 0
            ? merge_seconds(problem_.cluster, problem_.config,
                            std::min(work.rows, shape_.parts.rows_of_member()), heads_q_)
            : 0.0;
    return attend_seconds(problem_.cluster, problem_.config, work, pass, heads_q_) + merge;
  }
  /// The time of the slowest of the rings side by side.
  double hop_time(std::size_t from, std::size_t to, std::int64_t bytes) const {
    double slowest = 0.0;
    for (std::int32_t place = 0; place < shape_.heads_shared; ++place) {
      Traffic traffic;
      traffic.add(link_of_hop(from, to, place), bytes, 1);
      slowest = std::max(slowest, exchange_seconds(problem_.cluster, traffic));
    }
    return slowest;
  }

  const Problem& problem_;
  RingShape shape_;
  std::size_t size_;
  std::vector<Work> work_;
  double heads_q_;
  std::int64_t key_bytes_;
  std::int64_t sum_bytes_;
};

}  // namespace

void add_ring(const Problem& problem, const RingShape& shape, Figures& figures) {
  const RingTimes ring(problem, shape);
  const auto size = static_cast<std::size_t>(shape.parts.num_members);
  for (const Pass pass : {Pass::Forward, Pass::Backward}) {
    PassFigures& target = figures.passes[static_cast<std::size_t>(pass)];
    ring.add_times(pass, target);
    std::int64_t bytes = 0;
    for (std::size_t step = 0; step < ring.num_steps(pass); ++step) {
      bytes += ring.bytes_of_step(pass, step);
    }
    for (std::size_t r = 0; r < size; ++r) {
      for (std::int32_t place = 0; place < shape.heads_shared; ++place) {
        const LinkClass link = ring.link_of_hop(r, (r + 1) % size, place);
        target.bytes[static_cast<std::size_t>(link)] += bytes;
      }
    }
  }
  const std::int64_t heads = problem.config.num_heads_q / shape.heads_shared;
  for (std::size_t r = 0; r < size; ++r) {
    std::int64_t area = 0;
    for (std::size_t k = 0; k < size; ++k) area += ring.work()[r * size + k].area;
    figures.rank_work.insert(figures.rank_work.end(), static_cast<std::size_t>(shape.heads_shared),
                             pairs_of_heads(area, heads));
  }
  // Two sets of keys and two of their sums; a float32 out is as large as the sums of dq.
  const std::int64_t row = 2 * key_elements(problem.config) / shape.heads_shared *
                           (problem.config.element_bytes + kSumBytes);
  figures.memory_bytes += shape.parts.rows_of_member() * row;
}

Figures simulate_ring(const Problem& problem, RowOrder order) {
  Figures figures;
  const RingShape shape{.parts = {problem.mask.rows_q, problem.config.num_ranks, order},
                        .heads_shared = 1};
  figures.memory_bytes = shape.parts.rows_of_member() * row_memory(problem.config);
  add_ring(problem, shape, figures);
  return figures;
}

}  // namespace magi::simulate
