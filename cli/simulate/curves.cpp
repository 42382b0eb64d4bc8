// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "draw/numbers.hpp"
#include "draw/svg.hpp"
#include "simulate/sweep.hpp"

namespace magi::cli {
namespace {

constexpr double kLeft = 84.0;
constexpr double kLegendTop = 62.0;
constexpr double kLegendLine = 16.0;
constexpr double kWidth = 620.0;
constexpr double kHeight = 320.0;

/// Number of ranks and value of one strategy, ascending.
using Points = std::map<std::int32_t, double>;
/// Rows in the order of the sweep.
using Curves = std::vector<std::pair<std::string, Points>>;

double value_of(const SweepRow& row, Curve curve) {
  const auto mean = [&](simulate::LinkClass link) {
    return static_cast<double>(row.figures.bytes(link)) / row.ranks;
  };
  switch (curve) {
    case Curve::StepTime:
      return row.figures.step_seconds();
    case Curve::NetworkBytes:
      return mean(simulate::LinkClass::Network);
    case Curve::NodeBytes:
      return mean(simulate::LinkClass::Node);
  }
  return 0.0;
}

/// The words for a strategy.
std::string plain_name(const SweepRow& row) {
  static const std::map<std::string_view, const char*> kNames{
      {"auto_work", "magi"},
      {"auto", "magi, keys alone"},
      {"queries", "magi, queries travel"},
      {"heads", "magi, heads shared out"},
      {"mixed", "magi, heads and rows shared out"},
      {"latents", "magi, latents travel"},
      {"zigzag_ring", "zigzag ring"},
      {"all_gather", "all-gather"},
      {"ulysses", "Ulysses"},
      {"usp", "USP"}};
  if (const auto found = kNames.find(row.figures.strategy); found != kNames.end())
    return found->second;
  std::string name = row.figures.strategy;
  std::ranges::replace(name, '_', ' ');
  return row.is_baseline ? name : "magi, placement " + name;
}

/// Names of curves: the strategy, and of chunk size, degree and bound what the sweep has several
/// of.
class CurveNames {
 public:
  explicit CurveNames(const std::vector<SweepRow>& rows) {
    std::set<std::optional<std::int32_t>> chunks, degrees;
    std::set<std::optional<std::int64_t>> bounds;
    for (const SweepRow& row : rows) {
      if (row.is_baseline) continue;
      chunks.insert(row.chunk);
      degrees.insert(row.degree);
      bounds.insert(row.bound);
    }
    has_chunks_ = chunks.size() > 1;
    has_degrees_ = degrees.size() > 1;
    has_bounds_ = bounds.size() > 1;
  }

  std::string of(const SweepRow& row) const {
    const auto choice = [](const char* what, const auto& value) {
      return std::string(what) + (value ? std::to_string(*value) : "auto");
    };
    std::string name = plain_name(row);
    if (row.is_baseline) return name;
    if (has_chunks_) name += choice(", chunk ", row.chunk);
    if (has_degrees_) name += choice(", degree ", row.degree);
    if (has_bounds_) name += choice(", bytes at most ", row.bound);
    return name;
  }

 private:
  bool has_chunks_ = false, has_degrees_ = false, has_bounds_ = false;
};

/// Logarithms have no zero: points without time or bytes are left out.
Curves curves_of(const std::vector<SweepRow>& rows, Curve curve) {
  Curves curves;
  const CurveNames names(rows);
  for (const SweepRow& row : rows) {
    const double value = row.figures.refusal.empty() ? value_of(row, curve) : 0.0;
    if (value <= 0.0) continue;
    const std::string name = names.of(row);
    auto found = std::ranges::find(curves, name, &std::pair<std::string, Points>::first);
    if (found == curves.end()) found = curves.insert(curves.end(), {name, {}});
    found->second.try_emplace(row.ranks, value);
  }
  return curves;
}

/// Both axes are logarithmic.
class Axes {
 public:
  /// `top`: of the plot in the picture.
  Axes(const Curves& curves, double top) : top_(top) {
    for (const auto& [name, points] : curves) {
      for (const auto& [ranks, value] : points) {
        low_x_ = std::min(low_x_, std::log2(ranks));
        high_x_ = std::max(high_x_, std::log2(ranks));
        low_y_ = std::min(low_y_, std::floor(std::log10(value)));
        high_y_ = std::max(high_y_, std::ceil(std::log10(value)));
      }
    }
    if (high_x_ <= low_x_) high_x_ = low_x_ + 1.0;
    if (high_y_ <= low_y_) high_y_ = low_y_ + 1.0;
  }

  double x(double ranks) const {
    return kLeft + kWidth * (std::log2(ranks) - low_x_) / (high_x_ - low_x_);
  }
  double y(double value) const {
    return top_ + kHeight * (high_y_ - std::log10(value)) / (high_y_ - low_y_);
  }
  double bottom() const { return top_ + kHeight; }
  int first_power() const { return static_cast<int>(low_y_); }
  int last_power() const { return static_cast<int>(high_y_); }

 private:
  double top_;
  double low_x_ = 1e9, high_x_ = -1e9, low_y_ = 1e9, high_y_ = -1e9;
};

std::string value_text(double value, Curve curve) {
  if (curve == Curve::StepTime) return draw::seconds_text(value);
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  std::size_t unit = 0;
  while (value >= 1e3 && unit + 1 < std::size(kUnits)) {
    value /= 1e3;
    ++unit;
  }
  return draw::decimal(value, 3) + " " + kUnits[unit];
}

void draw_axes(draw::Svg& svg, const Axes& axes, const Curves& curves, Curve curve) {
  for (int power = axes.first_power(); power <= axes.last_power(); ++power) {
    const double value = std::pow(10.0, power);
    svg.line({kLeft, axes.y(value), kLeft + kWidth, axes.y(value)}, draw::kRule);
    svg.text(kLeft - 8, axes.y(value) + 4, value_text(value, curve),
             {.size = 12, .anchor = draw::Anchor::End, .colour = draw::kMutedInk});
  }
  Points all;
  for (const auto& [name, points] : curves) all.insert(points.begin(), points.end());
  for (const auto& [ranks, value] : all) {
    svg.text(axes.x(ranks), axes.bottom() + 20, draw::grouped(ranks),
             {.size = 12, .anchor = draw::Anchor::Middle});
  }
  svg.text(kLeft + kWidth / 2, axes.bottom() + 40, "ranks",
           {.size = 12, .anchor = draw::Anchor::Middle, .colour = draw::kMutedInk});
}

/// Dashes for a curve that lies on an earlier one between two of its points and would hide it.
std::string dashes_of(const Curves& curves, std::size_t curve, const Axes& axes) {
  constexpr double kNear = 4.0;
  for (std::size_t other = 0; other < curve; ++other) {
    const Points& below = curves[other].second;
    bool is_near = false;
    for (const auto& [ranks, value] : curves[curve].second) {
      const auto at = below.find(ranks);
      const bool was_near = is_near;
      is_near = at != below.end() && std::abs(axes.y(at->second) - axes.y(value)) < kNear;
      if (was_near && is_near) return " stroke-dasharray=\"7 5\"";
    }
  }
  return "";
}

void draw_curve(draw::Svg& svg, const Axes& axes, const Points& points, std::string_view colour,
                const std::string& dashes) {
  std::string path;
  for (const auto& [ranks, value] : points) {
    path += (path.empty() ? "M" : "L") + draw::decimal(axes.x(ranks), 1) + " " +
            draw::decimal(axes.y(value), 1);
    svg.rect({.x = axes.x(ranks) - 3, .y = axes.y(value) - 3, .width = 6, .height = 6}, colour);
  }
  svg.path(path, "none", "stroke=\"" + std::string(colour) + "\" stroke-width=\"2\"" + dashes);
}

const char* what_of(Curve curve) {
  switch (curve) {
    case Curve::StepTime:
      return "predicted forward and backward";
    case Curve::NetworkBytes:
      return "bytes of a rank between nodes, forward and backward";
    case Curve::NodeBytes:
      return "bytes of a rank inside its node, forward and backward";
  }
  return "";
}

std::string colour_of(std::size_t curve, const Curves& curves) {
  return draw::rank_colour(static_cast<std::int32_t>(curve),
                           static_cast<std::int32_t>(curves.size()));
}

/// The places where the entries of the legend begin, in lines as wide as the plot.
std::vector<std::pair<double, double>> legend_places(const Curves& curves) {
  std::vector<std::pair<double, double>> places;
  double x = 24.0;
  double y = kLegendTop;
  for (const auto& [name, points] : curves) {
    const double width = 88.0 + 6.2 * static_cast<double>(name.size());
    if (x + width > kLeft + kWidth && x > 24.0) {
      x = 24.0;
      y += kLegendLine;
    }
    places.emplace_back(x, y);
    x += width;
  }
  return places;
}

}  // namespace

std::string curve_picture(const std::vector<SweepRow>& rows, Curve curve,
                          const std::string& title) {
  const Curves curves = curves_of(rows, curve);
  const auto places = legend_places(curves);
  // Two lines of a legend fit above the plot of every picture.
  const double legend_end = places.empty() ? kLegendTop : places.back().second;
  const Axes axes(curves, std::max(kLegendTop + kLegendLine, legend_end) + 18.0);
  draw::Svg svg(kLeft + kWidth + 24, axes.bottom() + 54, title, what_of(curve));
  if (curves.empty()) {
    svg.text(24, axes.bottom() - kHeight + 20, "nothing is sent", {.size = 12});
  } else {
    draw_axes(svg, axes, curves, curve);
  }
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const auto [x, y] = places[i];
    const std::string colour = colour_of(i, curves), dashes = dashes_of(curves, i, axes);
    draw_curve(svg, axes, curves[i].second, colour, dashes);
    svg.rect({.x = x, .y = y - 10, .width = 11, .height = 11}, colour);
    svg.text(x + 16, y, curves[i].first + (dashes.empty() ? "" : " (dashed)"), {.size = 12});
  }
  return std::move(svg).finish();
}

}  // namespace magi::cli
