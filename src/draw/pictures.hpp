// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "magi/batch.hpp"
#include "magi/mask.hpp"
#include "magi/placement.hpp"
#include "magi/plan.hpp"

// Pictures for people: pure functions from a mask or a plan to the text of an SVG file, or to lines
// for a terminal. Equal inputs give equal bytes.
namespace magi::draw {

/// The rows and keys of a mask that a picture shows: by default all rows, and of some rows the keys
/// that they see. Ranges hold one row at least and lie inside of the mask, else InvalidArgument.
struct MaskPart {
  std::optional<Range> rows = {};
  std::optional<Range> keys = {};
};

/// Keys to the right, queries downwards; each slice an area of the colour of the rank that holds
/// its query rows (without a placement: of its type), with row numbers, a legend and the area.
/// Where most of the slices would be thinner than a pixel or two, blocks of rows and keys are drawn
/// instead, the paler the less of them is seen. `placement` is of the mask's query rows or null.
std::string mask_picture(const Mask& mask, const Placement* placement, std::string_view title,
                         const MaskPart& part = {});

/// The sequence as a strip of chunks in the colours of their ranks, then one line per rank with its
/// rows, its share of the work and the rows it fetches; a second strip where keys are placed apart.
std::string placement_picture(const Plan& plan, std::string_view title);

/// Bytes of a forward pass from each rank (row) to each rank (column), with totals, and beside
/// them what a ring or all-gather would move.
std::string traffic_picture(const Plan& plan, std::string_view title);

/// Draws what each rank does when in a forward pass, as the plan's cost model predicts: exchanges
/// above, attention below, one bar per step.
std::string timeline_picture(const Plan& plan, std::string_view title);

/// The steps of both passes: ranks as columns, a box per step with its rows and bytes or its slices
/// and pairs, an arrow from each step to those that wait for it. Shows the first eight ranks.
std::string steps_picture(const Plan& plan, std::string_view title);

/// Ranks by micro-batches: what each rank does how long, a box for each sample; those that spread
/// in colours of their own.
std::string batch_picture(const BatchPlan& plan, std::string_view title);

// In characters, two pixels above each other in one.

/// The properties of a terminal.
struct TerminalStyle {
  std::int32_t width = 80;  ///< columns, 40 or more
  bool is_ascii = false;    ///< no half blocks of UTF-8
  bool has_colour = false;  ///< escape sequences of 24-bit colours
};

/// Keys to the right, queries downwards. A pixel stands for some rows and keys and is painted where
/// any of their pairs is seen, in the colour of the rank (without a placement: of the type) whose
/// part of a slice is the largest there. Beside each line the ranks that hold its rows,
/// below the shares of the work. `placement` is of the mask's query rows or null.
std::string mask_text(const Mask& mask, const Placement* placement, std::string_view title,
                      const TerminalStyle& style, const MaskPart& part = {});

/// A line for each rank: when a forward pass exchanges (upper pixels) and attends (lower pixels) as
/// the plan's cost model predicts, and for how much of the time it attends. A pixel is painted
/// where anything of its time is spent so.
std::string timeline_text(const Plan& plan, std::string_view title, const TerminalStyle& style);

}  // namespace magi::draw
