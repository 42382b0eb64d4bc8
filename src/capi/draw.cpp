// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <string_view>

#include "capi/handles.hpp"
#include "draw/pictures.hpp"

namespace magi::capi {
namespace {

std::string draw_plan(const Plan& plan, std::int32_t picture, std::string_view title) {
  switch (picture) {
    case MAGI_PICTURE_MASK:
      return draw::mask_picture(plan.mask, &plan.placement_q, title);
    case MAGI_PICTURE_PLACEMENT:
      return draw::placement_picture(plan, title);
    case MAGI_PICTURE_TRAFFIC:
      return draw::traffic_picture(plan, title);
    case MAGI_PICTURE_TIMELINE:
      return draw::timeline_picture(plan, title);
    case MAGI_PICTURE_STEPS:
      return draw::steps_picture(plan, title);
    default:
      throw invalid("picture", picture,
                    "0 (mask), 1 (placement), 2 (traffic), 3 (timeline), 4 (steps)");
  }
}

std::optional<Range> range_of(const std::int32_t* ends) {
  if (ends == nullptr) return std::nullopt;
  return Range{ends[0], ends[1]};
}

}  // namespace
}  // namespace magi::capi

using namespace magi::capi;

magi_status magi_mask_draw_part(const magi_mask* mask, const char* title, const int32_t* rows,
                                const int32_t* keys, magi_buffer** svg) {
  return giving(svg, "svg", [&] {
    return magi::draw::mask_picture(mask_of(mask), nullptr, read_name(title),
                                    {.rows = range_of(rows), .keys = range_of(keys)});
  });
}

magi_status magi_mask_draw(const magi_mask* mask, const char* title, magi_buffer** svg) {
  return magi_mask_draw_part(mask, title, nullptr, nullptr, svg);
}

magi_status magi_plan_draw(const magi_plan* plan, int32_t picture, const char* title,
                           magi_buffer** svg) {
  return giving(svg, "svg", [&] { return draw_plan(plan_of(plan), picture, read_name(title)); });
}
