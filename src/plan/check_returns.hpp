// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "magi/plan.hpp"

namespace magi::planner {

/// Of which rows the results and gradients are made by one attend each, on one rank that does not
/// own them. With shares of the heads these go back in the tensors' type and into place.
struct ReturnsOnce {
  bool queries = false;
  bool keys = false;

  bool of(Role role) const {
    if (!is_returning(role)) return false;
    return role == Role::KeyGradients ? keys : queries;
  }
};

/// The checker's own way of finding it, for plans whose heads are in several shares, as flat rows.
ReturnsOnce returns_once(const Plan& plan);

}  // namespace magi::planner
