// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace magi::cli {

/// Exit codes of the command.
enum class Exit : int {
  Ok = 0,
  CheckFailed = 1,  ///< a result is wrong
  Usage = 2,        ///< the call is wrong
  Unfit = 3,        ///< the machine cannot do it
};

}  // namespace magi::cli
