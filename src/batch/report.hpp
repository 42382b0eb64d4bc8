// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "batch/work.hpp"

namespace magi::batch {

/// The figures of the parts of a plan; `work` is work_of its samples.
BatchReport make_report(const BatchPlan& plan, const BatchWork& work);

}  // namespace magi::batch
