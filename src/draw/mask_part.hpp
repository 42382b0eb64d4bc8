// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "magi/band.hpp"

namespace magi::draw {

/// The rows and keys of a mask that a picture shows: by default all rows, and of some rows the keys
/// that they see. Ranges hold one row at least and lie inside of the mask, else InvalidArgument.
struct MaskPart {
  std::optional<Range> rows = {};
  std::optional<Range> keys = {};
};

}  // namespace magi::draw
