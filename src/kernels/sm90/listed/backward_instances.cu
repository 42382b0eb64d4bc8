// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/listed/backward_launch.cuh"

namespace magi::sm90 {

std::span<const ListedBackwardInstance> listed_backward_instances(DType type) {
  static constexpr auto kBf16 = listed_backward_instances_of<DType::BFloat16, false>();
  static constexpr auto kFp16 = listed_backward_instances_of<DType::Float16, false>();
  return type == DType::BFloat16 ? kBf16 : kFp16;
}

namespace {

/// NOTE: with tiles of 64 rows and two CTAs per multiprocessor, ptxas spills.
template <DType kType>
constexpr std::array kJoined{listed_backward_instance<kType, 64, 2, false, true>(),
                             listed_backward_instance<kType, 128, 2, false, true>()};

std::span<const ListedBackwardInstance> instances_of(DType type, ListedForm form) {
  if (form == ListedForm::Parts) return listed_part_instances(type);
  if (form == ListedForm::Plain) return listed_backward_instances(type);
  return type == DType::BFloat16 ? kJoined<DType::BFloat16> : kJoined<DType::Float16>;
}

}  // namespace

const ListedBackwardInstance* find_listed_backward_instance(DType type, int dim, int heads,
                                                            ListedForm form) {
  if (type != DType::BFloat16 && type != DType::Float16) return nullptr;
  const bool is_wide = heads > 64 || form == ListedForm::Joined;
  for (const ListedBackwardInstance& instance : instances_of(type, form)) {
    const ListedConfig& config = instance.config;
    if (config.dim >= dim && (config.consumers == 2) == is_wide) return &instance;
  }
  return nullptr;
}

}  // namespace magi::sm90
