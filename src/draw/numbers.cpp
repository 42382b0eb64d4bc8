// SPDX-License-Identifier: Apache-2.0
#include "draw/numbers.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace magi::draw {
namespace {

/// Three significant digits for values below 1000.
std::string significant(double value) {
  return decimal(value, value >= 100.0 ? 0 : value >= 10.0 ? 1 : 2);
}

}  // namespace

std::string decimal(double value, int decimals) {
  std::array<char, 400> buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                    std::chars_format::fixed, decimals);
  std::string text(buffer.data(), result.ptr);
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text == "-0" ? "0" : text;
}

std::string grouped(std::int64_t value) {
  std::string text = std::to_string(value);
  const std::size_t first = value < 0 ? 1 : 0;
  for (std::size_t end = text.size(); end > first + 3; end -= 3) text.insert(end - 3, ",");
  return text;
}

std::string bytes_text(std::int64_t bytes) {
  if (bytes == 0) return "0";
  if (bytes < 1024) return std::to_string(bytes) + " B";
  constexpr std::array<const char*, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024.0;
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return significant(value) + " " + kUnits[unit];
}

std::string seconds_text(double seconds) {
  if (!(seconds > 0.0)) return "0 s";
  if (seconds < 999.5e-9) return significant(seconds * 1e9) + " ns";
  if (seconds < 999.5e-6) return significant(seconds * 1e6) + " us";
  if (seconds < 999.5e-3) return significant(seconds * 1e3) + " ms";
  return significant(seconds) + " s";
}

std::string percent_text(double part, double whole) {
  return decimal(whole > 0.0 ? 100.0 * part / whole : 0.0, 1) + " %";
}

std::vector<double> ticks(double limit, int count, double smallest_step, double first) {
  std::vector<double> values = {first};
  if (!(limit > first)) return values;
  const double raw = (limit - first) / std::max(count, 1);
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double lead = raw / power;
  const double round = lead <= 1.0 ? 1.0 : lead <= 2.0 ? 2.0 : lead <= 5.0 ? 5.0 : 10.0;
  const double step = std::max(power * round, smallest_step);
  for (double i = std::floor(first / step + 0.45) + 1; i * step < limit - 0.45 * step; ++i) {
    values.push_back(i * step);
  }
  return values;
}

}  // namespace magi::draw
