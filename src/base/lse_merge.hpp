// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <limits>

#include "base/host_device.hpp"

namespace magi {

/// The merge of two partial rows of attention: the lse of both, and what the values of each weigh.
template <typename Real>
struct LseWeights {
  Real lse, own, partial;
};

/// lse = log(exp(own) + exp(partial)). -inf stands for a row without keys: it weighs 0, also
/// against another -inf. +inf is that of a sink that takes all.
template <typename Real>
MAGI_HOST_DEVICE LseWeights<Real> merge_lse(Real own, Real partial) {
  using std::exp;
  using std::log1p;
  constexpr Real kNone = -std::numeric_limits<Real>::infinity();
  if (partial == kNone || own == -kNone) return {own, own == kNone ? Real{0} : Real{1}, Real{0}};
  if (own == kNone || partial == -kNone) return {partial, Real{0}, Real{1}};
  // Not fmax and fmin, which would drop a NaN.
  const Real high = own > partial ? own : partial;
  const Real low = own > partial ? partial : own;
  const Real lse = high + log1p(exp(low - high));
  return {lse, exp(own - lse), exp(partial - lse)};
}

}  // namespace magi
