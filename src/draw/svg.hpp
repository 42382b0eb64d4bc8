// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace magi::draw {

struct Box {
  double x = 0.0;
  double y = 0.0;
  double width = 0.0;
  double height = 0.0;
};

enum class Anchor { Start, Middle, End };

struct TextStyle {
  double size = 12.0;  ///< px
  Anchor anchor = Anchor::Start;
  bool is_bold = false;
  std::string_view colour = "#1f2933";
};

struct Line {
  double x0 = 0.0;
  double y0 = 0.0;
  double x1 = 0.0;
  double y1 = 0.0;
};

/// Collects the elements of one picture. The result stands alone: white ground, no fonts, styles or
/// scripts from elsewhere, and a <title> and <desc> for readers who cannot see it. Both stand above
/// the picture too, down to 50 pixels.
class Svg {
 public:
  Svg(double width, double height, std::string_view title, std::string_view description);

  void rect(const Box& box, std::string_view fill, std::string_view attributes = "");
  /// A rectangle that shows `tooltip` under the pointer.
  void rect_with_tooltip(const Box& box, std::string_view fill, std::string_view tooltip);
  void line(const Line& line, std::string_view colour, double width = 1.0);
  void text(double x, double y, std::string_view content, const TextStyle& style = {});
  /// `data` is SVG path data; `attributes` is written as given.
  void path(std::string_view data, std::string_view fill, std::string_view attributes = "");

  std::string finish() &&;

 private:
  std::string body_;
};

/// Escapes &, <, >, " and drops control characters, which XML does not allow.
std::string escape_xml(std::string_view text);

/// Colour of rank `rank` of `num_ranks`, "#rrggbb". Up to eight ranks: hues that people with the
/// common colour blindnesses tell apart (Okabe and Ito 2008, darkened for white ground); beyond, a
/// ramp of growing lightness.
std::string rank_colour(std::int32_t rank, std::int32_t num_ranks);

/// Colour of a quantity in [0, 1] on a white to dark blue scale.
std::string scale_colour(double fraction);

/// Black or white, whichever reads better on `background` ("#rrggbb").
std::string_view text_colour_on(std::string_view background);

inline constexpr std::string_view kInk = "#1f2933";
inline constexpr std::string_view kMutedInk = "#616e7c";
inline constexpr std::string_view kPaper = "#f3f5f8";
inline constexpr std::string_view kRule = "#cbd2d9";

}  // namespace magi::draw
