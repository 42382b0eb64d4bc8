// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "base/words.hpp"
#include "draw/numbers.hpp"
#include "draw/pictures.hpp"
#include "draw/svg.hpp"

namespace magi::draw {
namespace {

constexpr double kLeft = 84.0;
constexpr double kTop = 84.0;
constexpr double kBarsWidth = 820.0;
constexpr double kGap = 14.0;  // between micro-batches
/// More are not drawn, so that a picture stays small.
constexpr std::int32_t kMostLanes = 512;
constexpr std::size_t kMostMicroBatches = 16;

/// A sample that spreads has a colour of its own, by its place among those of the batch; whole ones
/// take turns in few.
std::string colour_of(std::int32_t sample, std::int32_t spread_index) {
  constexpr std::int32_t kHues = 8;
  if (spread_index >= 0) return rank_colour(spread_index % kHues, kHues);
  return scale_colour(0.12 + 0.06 * (sample % 4));
}

/// The column of one micro-batch.
class Column {
 public:
  Column(const BatchPlan& plan, std::size_t micro_batch, double left, double width, double lane)
      : plan_(plan), micro_batch_(micro_batch), left_(left), lane_(lane) {
    const double longest = std::max(std::ranges::max(plan.report.rank_seconds), 1e-30);
    per_second_ = width / longest;
  }

  void draw(Svg& svg, const std::vector<std::int32_t>& spread_index) const {
    const std::vector<BatchPart>& parts = plan_.micro_batches[micro_batch_].parts;
    std::vector<double> end(static_cast<std::size_t>(plan_.config.num_ranks), 0.0);
    for (const BatchPart& part : parts) {
      if (part.rank >= kMostLanes) continue;
      const BatchSample& sample = plan_.samples[static_cast<std::size_t>(part.sample)];
      const std::int32_t spread = spread_index[static_cast<std::size_t>(part.sample)];
      double& x = end[static_cast<std::size_t>(part.rank)];
      const double width = seconds_of(sample, part) * per_second_;
      svg.rect_with_tooltip(
          {left_ + x, top_of(part.rank) + 1, std::max(width - 0.3, 0.2), lane_ - 2},
          colour_of(part.sample, spread),
          "sample " + std::to_string(part.sample) + ", " + grouped(part.rows) + " of " +
              grouped(sample.rows) + " rows, rank " + std::to_string(part.rank));
      x += width;
    }
    for (std::int32_t rank = 0; rank < std::min(plan_.config.num_ranks, kMostLanes); ++rank) {
      draw_wait(svg, rank, end[static_cast<std::size_t>(rank)]);
    }
  }

 private:
  double top_of(std::int32_t rank) const { return kTop + lane_ * rank; }

  double seconds_of(const BatchSample& sample, const BatchPart& part) const {
    const BatchCost& cost = plan_.config.cost;
    const double whole = (cost.flops_per_token * sample.rows +
                          cost.flops_per_pair * static_cast<double>(sample.pairs)) /
                         cost.flops_per_second;
    return whole * std::min(1.0, static_cast<double>(part.rows) / sample.rows);
  }

  /// Draws the time in which a rank waits for rows of others.
  void draw_wait(Svg& svg, std::int32_t rank, double x) const {
    const std::size_t slot = micro_batch_ * static_cast<std::size_t>(plan_.config.num_ranks) +
                             static_cast<std::size_t>(rank);
    const double width = plan_.report.rank_seconds[slot] * per_second_ - x;
    if (width > 0.2) svg.rect({left_ + x, top_of(rank) + 1, width, lane_ - 2}, kRule);
  }

  const BatchPlan& plan_;
  std::size_t micro_batch_;
  double left_;
  double lane_;
  double per_second_ = 1.0;
};

/// Places of the samples that spread, -1 of others.
std::vector<std::int32_t> spread_indices(const BatchPlan& plan) {
  std::vector<std::int32_t> index(plan.samples.size(), -1);
  std::int32_t count = 0;
  for (const MicroBatch& micro_batch : plan.micro_batches) {
    for (std::size_t i = 1; i < micro_batch.parts.size(); ++i) {
      const std::int32_t sample = micro_batch.parts[i].sample;
      if (sample != micro_batch.parts[i - 1].sample) continue;
      std::int32_t& own = index[static_cast<std::size_t>(sample)];
      if (own < 0) own = count++;
    }
  }
  return index;
}

std::string summary_of(const BatchPlan& plan) {
  const BatchReport& report = plan.report;
  std::string text = counted(static_cast<std::int64_t>(plan.samples.size()), "sample") + " on " +
                     counted(plan.config.num_ranks, "rank") + " in " +
                     std::to_string(plan.micro_batches.size()) +
                     (plan.micro_batches.size() == 1 ? " micro-batch" : " micro-batches") + ": " +
                     seconds_text(report.step_seconds) + " a step, " + decimal(report.gap(), 3) +
                     " x the bound; grey: waits for rows of other ranks";
  if (plan.config.num_ranks > kMostLanes || plan.micro_batches.size() > kMostMicroBatches) {
    text += "; the first " + std::to_string(kMostLanes) + " ranks and " +
            std::to_string(kMostMicroBatches) + " micro-batches";
  }
  return text;
}

}  // namespace

std::string batch_picture(const BatchPlan& plan, std::string_view title) {
  const std::int32_t lanes = std::min(plan.config.num_ranks, kMostLanes);
  const double lane = lanes <= 16 ? 24.0 : lanes <= 64 ? 12.0 : 6.0;
  const std::size_t columns = std::min(plan.micro_batches.size(), kMostMicroBatches);
  const std::string summary = summary_of(plan);
  Svg svg(kLeft + kBarsWidth + 24, kTop + lane * lanes + 24, title, summary);
  const TextStyle name{.size = 12, .anchor = Anchor::End, .colour = kInk};
  const std::int32_t step = lane >= 12.0 ? 1 : 8;
  for (std::int32_t rank = 0; rank < lanes; rank += step) {
    svg.text(kLeft - 10, kTop + lane * rank + std::min(lane, 12.0) - 2,
             "rank " + std::to_string(rank), name);
  }
  const std::vector<std::int32_t> spread_index = spread_indices(plan);
  for (std::size_t m = 0; m < columns; ++m) {
    const double width = kBarsWidth / static_cast<double>(columns) - kGap;
    const double left = kLeft + (width + kGap) * static_cast<double>(m);
    svg.text(left, kTop - 10, "micro-batch " + std::to_string(m), {.size = 12, .is_bold = true});
    Column(plan, m, left, width, lane).draw(svg, spread_index);
  }
  return std::move(svg).finish();
}

}  // namespace magi::draw
