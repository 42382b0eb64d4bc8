// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "draw/mask_part.hpp"
#include "magi/mask.hpp"
#include "magi/placement.hpp"
#include "magi/plan.hpp"

// Pictures in characters, two pixels above each other in one. Equal inputs give equal bytes.
namespace magi::draw {

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
