// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace magi {

/// Version of the library, as in CMake's project().
inline constexpr const char* kVersion = "0.1.0";

}  // namespace magi
