// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>
#include <vector>

#include "plan/check/pairs.hpp"

namespace magi::planner {
namespace {

/// Sorts ranges and joins those that touch.
void unite(std::vector<Range>& ranges) {
  std::ranges::sort(ranges, {}, &Range::begin);
  std::size_t last = 0;
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin <= ranges[last].end) {
      ranges[last].end = std::max(ranges[last].end, ranges[i].end);
    } else {
      ranges[++last] = ranges[i];
    }
  }
  if (!ranges.empty()) ranges.resize(last + 1);
}

/// Rows of each segment that a rank's attends read, ascending: a shrunk slice reads all rows of its
/// ranges.
std::vector<std::vector<Range>> read_rows(const RankPlan& rank, Space space) {
  std::vector<std::vector<Range>> read(space_of(rank, space).segments.size());
  for (const Attend& attend : rank.attends) {
    auto& rows = read[static_cast<std::size_t>(segment_of(attend, space))];
    if (&rows == &read[0]) continue;
    for (std::int32_t s = attend.slices.begin; s < attend.slices.end; ++s) {
      const BandSlice slice = shrink(rank.slices[static_cast<std::size_t>(s)]);
      if (slice.q0 == slice.q1) continue;
      rows.push_back(space == Space::Keys ? Range{slice.k0, slice.k1} : Range{slice.q0, slice.q1});
    }
  }
  for (auto& rows : read) unite(rows);
  return read;
}

/// The rows that one rank receives in one space.
class ReceivedCheck {
 public:
  ReceivedCheck(const Plan& plan, const RowMap& rows, std::size_t rank, Space space,
                Problems& problems)
      : plan_(plan),
        rows_(rows),
        rank_(rank),
        space_(space),
        segments_(space_of(plan.ranks[rank], space).segments),
        problems_(problems) {}

  void check() {
    // Without a segment to receive in there is nothing to compare: pairs tell what is missing.
    if (segments_.size() == 1) return;
    const auto read = read_rows(plan_.ranks[rank_], space_);
    for (std::size_t s = 1; s < segments_.size(); ++s) {
      check_filled(s);
      check_read(s, read[s]);
    }
    check_once();
  }

 private:
  template <typename... Parts>
  void add(std::size_t segment, const Parts&... parts) {
    problems_.add("rank ", rank_, ", forward step ", filling_step(segment), ": ", parts...);
  }

  /// The exchange that fills a segment, or the first of those that do, as a position in the
  /// forward.
  std::size_t filling_step(std::size_t segment) const {
    const auto& steps = plan_.ranks[rank_].forward;
    const auto found = std::ranges::find_if(steps, [&](const Step& step) {
      if (step.kind != StepKind::Exchange) return false;
      const Exchange& exchange = plan_.exchanges[static_cast<std::size_t>(step.index)];
      return !is_returning(exchange.role) && magi::space_of(exchange.role) == space_ &&
             exchange.segment == static_cast<std::int32_t>(segment);
    });
    return static_cast<std::size_t>(found - steps.begin());
  }

  std::span<const MappedRows> runs_of(std::size_t segment) const {
    return rows_.of(rank_, static_cast<std::int32_t>(segment));
  }

  /// Rows follow each other without a gap, and the global rows of those of others ascend.
  void check_filled(std::size_t s) {
    std::int32_t filled = 0;
    std::int32_t last = -1;
    for (const MappedRows& run : runs_of(s)) {
      if (run.local != filled) {
        add(s, "rows from ", std::min(filled, run.local), " on of ", name_of(space_), " segment ",
            s, " are filled ", run.local > filled ? "by nothing" : "twice");
        return;
      }
      if (!run.is_own && run.global < last) {
        add(s, name_of(space_), " row ", run.global, " stands behind row ", last - 1,
            " in segment ", s);
      }
      filled = run.local + run.num_rows;
      if (!run.is_own) last = run.global + run.num_rows;
    }
    if (filled != segments_[s].num_rows) {
      add(s, "rows from ", filled, " on of ", name_of(space_), " segment ", s,
          " are filled by nothing");
    }
  }

  /// Rows of others are read; both ascend.
  void check_read(std::size_t s, std::span<const Range> read) {
    std::size_t next = 0;
    for (const MappedRows& run : runs_of(s)) {
      if (run.is_own) continue;
      const std::int32_t end = run.local + run.num_rows;
      while (next < read.size() && read[next].end <= run.local) ++next;
      std::int32_t covered = run.local;
      for (; next < read.size() && read[next].begin <= covered; ++next) {
        covered = std::max(covered, std::min(read[next].end, end));
        if (read[next].end >= end) break;
      }
      if (covered == end) continue;
      const std::int32_t unread =
          next < read.size() ? std::min(read[next].begin, end) - covered : end - covered;
      const std::int32_t first = run.global + covered - run.local;
      add(s, name_of(space_), " rows ", first, " to ", first + unread - 1, " come to segment ", s,
          " and no attention call reads them");
    }
  }

  /// No row of another rank comes twice.
  void check_once() {
    struct Arrival {
      Range rows;
      std::size_t segment;
    };
    std::vector<Arrival> arrivals;
    for (std::size_t s = 1; s < segments_.size(); ++s) {
      for (const MappedRows& run : runs_of(s)) {
        if (!run.is_own) arrivals.push_back({{run.global, run.global + run.num_rows}, s});
      }
    }
    const auto begin_of = [](const Arrival& arrival) { return arrival.rows.begin; };
    if (!std::ranges::is_sorted(arrivals, {}, begin_of)) {
      std::ranges::stable_sort(arrivals, {}, begin_of);
    }
    for (std::size_t i = 1; i < arrivals.size(); ++i) {
      const Range before = arrivals[i - 1].rows;
      Range& rows = arrivals[i].rows;
      if (rows.begin < before.end) {
        add(arrivals[i].segment, name_of(space_), " rows ", rows.begin, " to ",
            std::min(before.end, rows.end) - 1, " come to segments ", arrivals[i - 1].segment,
            " and ", arrivals[i].segment);
        rows.end = std::max(rows.end, before.end);
      }
    }
  }

  const Plan& plan_;
  const RowMap& rows_;
  std::size_t rank_;
  Space space_;
  const std::vector<Segment>& segments_;
  Problems& problems_;
};

}  // namespace

void check_received(const Plan& plan, const RowMaps& rows, Problems& problems) {
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    ReceivedCheck(plan, rows.k, r, Space::Keys, problems).check();
    ReceivedCheck(plan, rows.q, r, Space::Queries, problems).check();
  }
}

}  // namespace magi::planner
