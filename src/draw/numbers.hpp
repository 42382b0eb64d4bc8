// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Numbers as a reader wants them. Independent of the locale, so equal inputs give equal bytes.
namespace magi::draw {

/// `value` with at most `decimals` digits after the point, trailing zeros dropped; never "-0".
std::string decimal(double value, int decimals = 2);

/// "8192" -> "8,192".
std::string grouped(std::int64_t value);

/// "0", "712 B", "1.5 KiB", "24 MiB": three significant digits.
std::string bytes_text(std::int64_t bytes);

/// "0 s", "830 ns", "12.4 us", "3.2 ms", "1.5 s".
std::string seconds_text(double seconds);

/// "96.3 %": the share of a whole; "0 %" of nothing.
std::string percent_text(double part, double whole);

/// Round values first < ... < limit at steps of 1, 2 or 5 times a power of ten, about `count` of
/// them, with `first`, not closer than `smallest_step`, and without values too near to an end to
/// print both.
std::vector<double> ticks(double limit, int count, double smallest_step = 0.0, double first = 0.0);

}  // namespace magi::draw
