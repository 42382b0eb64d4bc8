// SPDX-License-Identifier: Apache-2.0
#include "draw/svg.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "draw/numbers.hpp"

namespace magi::draw {
namespace {

using Rgb = std::array<int, 3>;

std::string attribute(std::string_view name, double value) {
  std::string text = " ";
  text.append(name).append("=\"").append(decimal(value)).append("\"");
  return text;
}

std::string attribute(std::string_view name, std::string_view value) {
  std::string text = " ";
  text.append(name).append("=\"").append(value).append("\"");
  return text;
}

std::string box_attributes(const Box& box) {
  return attribute("x", box.x) + attribute("y", box.y) + attribute("width", box.width) +
         attribute("height", box.height);
}

std::string hex(const Rgb& colour) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "#";
  for (const int part : colour) {
    text += kDigits[static_cast<std::size_t>(part / 16)];
    text += kDigits[static_cast<std::size_t>(part % 16)];
  }
  return text;
}

/// Piecewise linear between `stops`, at `fraction` of the whole.
std::string ramp(std::span<const Rgb> stops, double fraction) {
  const double at = std::clamp(fraction, 0.0, 1.0) * static_cast<double>(stops.size() - 1);
  const std::size_t low = std::min(static_cast<std::size_t>(at), stops.size() - 2);
  const double weight = at - static_cast<double>(low);
  Rgb colour{};
  for (std::size_t c = 0; c < 3; ++c) {
    const double mixed = stops[low][c] * (1.0 - weight) + stops[low + 1][c] * weight;
    colour[c] = static_cast<int>(std::lround(mixed));
  }
  return hex(colour);
}

/// Bytes of the UTF-8 character that `text` begins with; 0 where it begins with none that XML
/// knows: a document with another could not be read at all.
std::size_t character_size(std::string_view text) {
  const auto byte = [text](std::size_t i) -> std::uint32_t {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  if (byte(0) < 0x80) return 1;
  const std::size_t size = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4) return 0;
  std::uint32_t code = byte(0) & (0xffu >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr std::uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  const bool is_none = code < kSmallest[size] || code > 0x10ffff || (code & 0xfffe) == 0xfffe;
  return is_surrogate || is_none ? 0 : size;
}

/// An ASCII character as XML has it; nothing for one of control.
std::string ascii_text(char c) {
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&quot;";
    default:
      return std::string(c >= ' ' ? 1 : 0, c);
  }
}

int hex_digit(char digit) { return digit <= '9' ? digit - '0' : digit - 'a' + 10; }

}  // namespace

Svg::Svg(double width, double height, std::string_view title, std::string_view description) {
  body_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" viewBox=\"0 0 " + decimal(width) +
          " " + decimal(height) + "\"" + attribute("width", width) + attribute("height", height) +
          " font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n";
  body_ += "<title>" + escape_xml(title) + "</title>\n";
  body_ += "<desc>" + escape_xml(description) + "</desc>\n";
  rect({.width = width, .height = height}, "#ffffff");
  text(24, 28, title, {.size = 16, .is_bold = true});
  text(24, 47, description, {.size = 12, .colour = kMutedInk});
}

void Svg::rect(const Box& box, std::string_view fill, std::string_view attributes) {
  body_ += "<rect" + box_attributes(box) + attribute("fill", fill);
  if (!attributes.empty()) body_.append(" ").append(attributes);
  body_ += "/>\n";
}

void Svg::rect_with_tooltip(const Box& box, std::string_view fill, std::string_view tooltip) {
  body_ += "<rect" + box_attributes(box) + attribute("fill", fill) + "><title>" +
           escape_xml(tooltip) + "</title></rect>\n";
}

void Svg::line(const Line& line, std::string_view colour, double width) {
  body_ += "<line" + attribute("x1", line.x0) + attribute("y1", line.y0) +
           attribute("x2", line.x1) + attribute("y2", line.y1) + attribute("stroke", colour) +
           attribute("stroke-width", width) + "/>\n";
}

void Svg::text(double x, double y, std::string_view content, const TextStyle& style) {
  body_ += "<text" + attribute("x", x) + attribute("y", y) + attribute("font-size", style.size) +
           attribute("fill", style.colour);
  if (style.anchor == Anchor::Middle) body_ += attribute("text-anchor", "middle");
  if (style.anchor == Anchor::End) body_ += attribute("text-anchor", "end");
  if (style.is_bold) body_ += attribute("font-weight", "600");
  body_ += ">" + escape_xml(content) + "</text>\n";
}

void Svg::path(std::string_view data, std::string_view fill, std::string_view attributes) {
  body_ += "<path" + attribute("fill", fill);
  if (!attributes.empty()) body_.append(" ").append(attributes);
  body_ += attribute("d", data) + "/>\n";
}

std::string Svg::finish() && { return std::move(body_) + "</svg>\n"; }

std::string escape_xml(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  while (!text.empty()) {
    const std::size_t size = character_size(text);
    if (size == 0) {
      escaped += "\xef\xbf\xbd";  // U+FFFD
    } else if (size > 1) {
      escaped += text.substr(0, size);
    } else {
      escaped += ascii_text(text[0]);
    }
    text.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return escaped;
}

std::string rank_colour(std::int32_t rank, std::int32_t num_ranks) {
  constexpr std::array<Rgb, 8> kHues = {{{0, 114, 178},
                                         {230, 159, 0},
                                         {0, 148, 108},
                                         {204, 90, 0},
                                         {86, 180, 233},
                                         {190, 105, 155},
                                         {218, 200, 40},
                                         {85, 85, 95}}};
  if (num_ranks <= static_cast<std::int32_t>(kHues.size())) {
    return hex(kHues[static_cast<std::size_t>(rank)]);
  }
  constexpr std::array<Rgb, 6> kRamp = {{{48, 18, 90},
                                         {52, 76, 150},
                                         {33, 130, 142},
                                         {52, 170, 115},
                                         {150, 205, 65},
                                         {248, 222, 60}}};
  return ramp(kRamp, static_cast<double>(rank) / (num_ranks - 1));
}

std::string scale_colour(double fraction) {
  constexpr std::array<Rgb, 4> kBlues = {
      {{243, 248, 253}, {158, 202, 225}, {49, 130, 189}, {8, 48, 107}}};
  return ramp(kBlues, fraction);
}

std::string_view text_colour_on(std::string_view background) {
  std::array<double, 3> part{};
  for (std::size_t c = 0; c < 3; ++c) {
    part[c] = hex_digit(background[1 + 2 * c]) * 16 + hex_digit(background[2 + 2 * c]);
  }
  const double luma = 0.299 * part[0] + 0.587 * part[1] + 0.114 * part[2];
  return luma > 140.0 ? kInk : std::string_view("#ffffff");
}

}  // namespace magi::draw
