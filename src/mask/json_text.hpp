// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "magi/error.hpp"

// What readers of masks as JSON say of a text.
namespace magi {

/// A string as JSON writes it, cut where it is long.
std::string quoted_text(const std::string& text);

/// The parser's account of a syntax error, without its own prefix "[json.exception...] ".
InvalidArgument not_well_formed(const std::exception& error);

std::string integer_text(std::int32_t low, std::int32_t high);

}  // namespace magi
