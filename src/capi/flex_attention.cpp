// SPDX-License-Identifier: Apache-2.0
#include "capi/attention_arguments.hpp"
#include "capi/device_attention.hpp"
#include "capi/handles.hpp"
#include "capi/status.hpp"

namespace magi::capi {
namespace {

/// The mask's rows must be the tensors'.
void check_rows(const Mask& mask, const TensorView& q, const TensorView& k) {
  if (q.shape[0] != mask.rows_q) {
    throw invalid("q.shape[0]", q.shape[0], std::to_string(mask.rows_q) + " (the mask's)");
  }
  if (k.shape[0] != mask.rows_k) {
    throw invalid("k.shape[0]", k.shape[0], std::to_string(mask.rows_k) + " (the mask's)");
  }
}

magi::BackwardArgs read_backward(const Mask& mask, const magi_attention_inputs* inputs,
                                 const magi_attention_result* result,
                                 const magi_attention_gradients* gradients) {
  magi::BackwardArgs args =
      backward_args(read_inputs(inputs), read_result(result), read_gradients(gradients));
  args.slices = mask.slices;
  check_rows(mask, args.q, args.k);
  return args;
}

BackwardTuning backward_tuning(const magi_attention_inputs& inputs) {
  return {.sm_margin = inputs.sm_margin, .is_deterministic = inputs.is_fast_backward == 0};
}

struct Ranges {
  DeviceSlices slices;
  DeviceListTuning tuning;
};

Ranges read_ranges(const magi_flex_ranges* ranges, const magi_attention_inputs* inputs) {
  const magi_flex_ranges given = read_struct(ranges, "ranges");
  return {.slices = {.q_ranges = read_tensor(given.q_ranges, "q_ranges"),
                     .k_ranges = read_tensor(given.k_ranges, "k_ranges"),
                     .types = read_optional_tensor(given.types, "types")},
          .tuning = {.forward = {.sm_margin = read_struct(inputs, "inputs").sm_margin,
                                 .packed_heads = given.packed_heads},
                     .record_capacity = given.record_capacity}};
}

magi_flex_ranges_report to_struct(const DeviceListReport& report) {
  magi_flex_ranges_report result{.bad_slice = -1,
                                 .num_records = report.num_records,
                                 .is_overflowing = report.is_overflowing ? 1 : 0,
                                 .packed_heads = report.packed_heads};
  if (report.first_bad) {
    result.bad_slice = report.first_bad->index;
    report.first_bad->field.copy(result.bad_field, sizeof result.bad_field - 1);
  }
  return result;
}

}  // namespace
}  // namespace magi::capi

using namespace magi::capi;

magi_status magi_flex_attention_forward(const magi_mask* mask, const magi_attention_inputs* inputs,
                                        const magi_attention_result* result, void* stream) {
  return guarded([&] {
    const magi_mask& given = require(mask, "mask");
    magi::ForwardArgs args = forward_args(read_inputs(inputs), read_result(result));
    args.slices = given.mask.slices;
    check_rows(given.mask, args.q, args.k);
    if (args.q.device == magi::kCpuDevice) {
      magi::attention_forward_cpu(args);
    } else {
      forward_on_device(given, args, inputs->sm_margin, stream);
    }
  });
}

magi_status magi_flex_attention_backward(const magi_mask* mask, const magi_attention_inputs* inputs,
                                         const magi_attention_result* result,
                                         const magi_attention_gradients* gradients, void* stream) {
  return guarded([&] {
    const magi_mask& given = require(mask, "mask");
    const magi::BackwardArgs args = read_backward(given.mask, inputs, result, gradients);
    if (args.q.device == magi::kCpuDevice) {
      magi::attention_backward_cpu(args);
    } else {
      backward_on_device(given, args, backward_tuning(*inputs),
                         read_workspace(gradients->workspace), stream);
    }
  });
}

magi_status magi_flex_attention_backward_workspace_bytes(const magi_mask* mask,
                                                         const magi_attention_inputs* inputs,
                                                         const magi_attention_result* result,
                                                         const magi_attention_gradients* gradients,
                                                         size_t* size_bytes) {
  return guarded([&] {
    const magi_mask& given = require(mask, "mask");
    const magi::BackwardArgs args = read_backward(given.mask, inputs, result, gradients);
    const bool is_on_host = args.q.device == magi::kCpuDevice;
    require(size_bytes, "size_bytes") =
        is_on_host
            ? 0
            : static_cast<size_t>(backward_workspace_bytes(given, args, backward_tuning(*inputs)));
  });
}

magi_status magi_flex_ranges_workspace_bytes(const magi_flex_ranges* ranges,
                                             const magi_attention_inputs* inputs,
                                             size_t* size_bytes) {
  return guarded([&] {
    const Ranges given = read_ranges(ranges, inputs);
    const std::int64_t bytes = ranges_workspace_bytes(forward_args(read_inputs(inputs), {}),
                                                      given.slices.q_ranges.shape[0], given.tuning);
    require(size_bytes, "size_bytes") = static_cast<size_t>(bytes);
  });
}

magi_status magi_flex_ranges_forward(const magi_flex_ranges* ranges,
                                     const magi_attention_inputs* inputs,
                                     const magi_attention_result* result,
                                     const magi_workspace* workspace, void* stream) {
  return guarded([&] {
    const Ranges given = read_ranges(ranges, inputs);
    forward_ranges(forward_args(read_inputs(inputs), read_result(result)), given.slices,
                   read_workspace(workspace), given.tuning, stream);
  });
}

magi_status magi_flex_ranges_report_sync(const magi_workspace* workspace,
                                         magi_flex_ranges_report* report, void* stream) {
  return guarded([&] {
    require(report, "report");
    write_struct(report, to_struct(ranges_report_sync(read_workspace(workspace), stream)),
                 "report");
  });
}
