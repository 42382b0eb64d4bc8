// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/supplied_backend.hpp"

#include <string>

#include "base/check.hpp"
#include "kernels/attention/supplied_runs.hpp"

namespace magi {
namespace {

class SuppliedBackend final : public AttentionBackend {
 public:
  explicit SuppliedBackend(const magi_attention_backend& table)
      : table_(std::make_shared<const SuppliedTable>(table)), limits_(to_limits(table.limits)) {}

  const std::string& name() const override { return table_->name; }
  const AttentionLimits& limits() const override { return limits_; }
  bool serves(std::int32_t device) const override {
    const magi_attention_backend& table = table_->functions;
    return (device == kCpuDevice ? table.serves_cpu : table.serves_gpu) != 0;
  }

  std::shared_ptr<const PreparedForward> prepare_forward(
      const ForwardArgs& args, const ForwardTuning& tuning) const override {
    check_problem(limits_, args);
    return supplied_forward(limits_, problem_of(args),
                            plan({.q = args.q,
                                  .k = args.k,
                                  .v = args.v,
                                  .slices = args.slices,
                                  .sm_margin = tuning.sm_margin}));
  }
  std::shared_ptr<const PreparedBackward> prepare_backward(
      const BackwardArgs& args, const BackwardTuning& tuning) const override {
    check_problem(limits_, args);
    return supplied_backward(limits_, problem_of(args),
                             plan({.q = args.q,
                                   .k = args.k,
                                   .v = args.v,
                                   .slices = args.slices,
                                   .is_backward = true,
                                   .is_deterministic = tuning.is_deterministic,
                                   .sm_margin = tuning.sm_margin}));
  }

 private:
  std::unique_ptr<const SuppliedHandle> plan(const SuppliedProblem& problem) const {
    return std::make_unique<const SuppliedHandle>(table_, problem);
  }

  std::shared_ptr<const SuppliedTable> table_;
  AttentionLimits limits_;
};

void check_table(const magi_attention_backend& table) {
  if (table.name == nullptr) throw invalid("backend.name", "null", "a name");
  const bool is_whole = table.plan != nullptr && table.forward != nullptr &&
                        table.backward != nullptr && table.release != nullptr &&
                        table.last_error != nullptr;
  if (!is_whole) {
    throw invalid("backend", "a table with a null entry",
                  "plan, forward, backward, release and last_error");
  }
  const bool serves_cpu = read_flag(table.serves_cpu, "backend.serves_cpu");
  if (!read_flag(table.serves_gpu, "backend.serves_gpu") && !serves_cpu) {
    throw invalid("backend.serves_cpu", 0, "1, or serves_gpu 1");
  }
  to_limits(table.limits);
}

HeadDims to_dims(const char* name, HeadDims dims) {
  if (dims.min >= 1 && dims.max >= dims.min && dims.multiple >= 1) return dims;
  throw invalid(std::string("backend.limits, dims of ") + name,
                std::to_string(dims.min) + " to " + std::to_string(dims.max) + " by " +
                    std::to_string(dims.multiple),
                "1 <= min <= max, multiples of 1 or more");
}

}  // namespace

AttentionLimits to_limits(const magi_attention_limits& given) {
  constexpr std::int32_t kAllTypes = 15;
  if (given.dtypes < 1 || given.dtypes > kAllTypes) {
    throw invalid("backend.limits.dtypes", given.dtypes, "bits 0 (float64) to 3 (bfloat16)");
  }
  if (given.stride_bytes < 1) {
    throw invalid("backend.limits.stride_bytes", given.stride_bytes, "1 or more");
  }
  return {
      .dim_qk = to_dims("q and k", {given.min_dim_qk, given.max_dim_qk, given.dim_qk_multiple}),
      .dim_v = to_dims("v", {given.min_dim_v, given.max_dim_v, given.dim_v_multiple}),
      .types = static_cast<std::uint32_t>(given.dtypes),
      .stride_bytes = given.stride_bytes,
      .has_float_outputs = read_flag(given.has_float_outputs, "backend.limits.has_float_outputs"),
      .has_sink = read_flag(given.has_sink, "backend.limits.has_sink"),
      .has_softcap = read_flag(given.has_softcap, "backend.limits.has_softcap"),
      .has_max_logits = read_flag(given.has_max_logits, "backend.limits.has_max_logits"),
      .has_dlse = read_flag(given.has_dlse, "backend.limits.has_dlse"),
      .has_any_scale = read_flag(given.has_any_scale, "backend.limits.has_any_scale")};
}

magi_attention_limits to_c(const AttentionLimits& limits) {
  return {.struct_size = sizeof(magi_attention_limits),
          .min_dim_qk = limits.dim_qk.min,
          .max_dim_qk = limits.dim_qk.max,
          .dim_qk_multiple = limits.dim_qk.multiple,
          .min_dim_v = limits.dim_v.min,
          .max_dim_v = limits.dim_v.max,
          .dim_v_multiple = limits.dim_v.multiple,
          .dtypes = static_cast<std::int32_t>(limits.types),
          .stride_bytes = limits.stride_bytes,
          .has_float_outputs = limits.has_float_outputs,
          .has_sink = limits.has_sink,
          .has_softcap = limits.has_softcap,
          .has_max_logits = limits.has_max_logits,
          .has_dlse = limits.has_dlse,
          .has_any_scale = limits.has_any_scale};
}

std::shared_ptr<const AttentionBackend> make_supplied_backend(const magi_attention_backend& table) {
  check_table(table);
  return std::make_shared<const SuppliedBackend>(table);
}

}  // namespace magi
