// SPDX-License-Identifier: Apache-2.0
#include "capi/attention_arguments.hpp"
#include "capi/handles.hpp"

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
  magi::BackwardArgs args = capi::read_backward(inputs, result, gradients);
  args.slices = mask.slices;
  check_rows(mask, args.q, args.k);
  return args;
}

WorkKey::Shape shape_of(const TensorView& tensor) {
  return {tensor.shape[0], tensor.shape[1], tensor.shape[2]};
}

template <typename Args>
WorkKey key_of(const Args& args, const magi_attention_inputs& inputs) {
  return {.q = shape_of(args.q),
          .k = shape_of(args.k),
          .v = shape_of(args.v),
          .type = args.q.dtype,
          .device = args.q.device,
          .sm_margin = inputs.sm_margin,
          .backend = read_name(inputs.backend)};
}

std::shared_ptr<const PreparedForward> prepared_forward(const magi_mask& mask,
                                                        const ForwardArgs& args,
                                                        const magi_attention_inputs& inputs) {
  const WorkKey key = key_of(args, inputs);
  return mask.forwards->find_or_make(key, [&] {
    return find_backend(key.backend, args.q.device)
        ->prepare_forward(args, {.sm_margin = inputs.sm_margin});
  });
}

std::shared_ptr<const PreparedBackward> prepared_backward(const magi_mask& mask,
                                                          const BackwardArgs& args,
                                                          const magi_attention_inputs& inputs) {
  WorkKey key = key_of(args, inputs);
  key.dout_type = args.dout.dtype;
  key.is_fast_backward = inputs.is_fast_backward != 0;
  return mask.backwards->find_or_make(key, [&] {
    return find_backend(key.backend, args.q.device)
        ->prepare_backward(
            args, {.sm_margin = inputs.sm_margin, .is_deterministic = !key.is_fast_backward});
  });
}

struct Ranges {
  DeviceSlices slices;
  DeviceListTuning tuning;
  bool is_fast_backward = false;

  DeviceBackwardTuning backward() const {
    return {.sm_margin = tuning.forward.sm_margin,
            .packed_heads = tuning.forward.packed_heads,
            .is_deterministic = !is_fast_backward,
            .record_capacity = tuning.record_capacity,
            .backend = tuning.backend};
  }
};

Ranges read_ranges(const magi_flex_ranges* ranges, const magi_attention_inputs* inputs) {
  const magi_flex_ranges given = read_struct(ranges, "ranges");
  const magi_attention_inputs call = read_struct(inputs, "inputs");
  return {.slices = {.q_ranges = read_tensor(given.q_ranges, "q_ranges"),
                     .k_ranges = read_tensor(given.k_ranges, "k_ranges"),
                     .types = read_optional_tensor(given.types, "types")},
          .tuning = {.forward = {.sm_margin = call.sm_margin, .packed_heads = given.packed_heads},
                     .record_capacity = given.record_capacity,
                     .backend = read_name(call.backend)},
          .is_fast_backward = call.is_fast_backward != 0};
}

void write_report(magi_flex_ranges_report* target, const DeviceListReport& report) {
  magi_flex_ranges_report result{.bad_slice = -1,
                                 .num_records = report.num_records,
                                 .is_overflowing = report.is_overflowing ? 1 : 0,
                                 .packed_heads = report.packed_heads};
  if (report.first_bad) {
    result.bad_slice = report.first_bad->index;
    report.first_bad->field.copy(result.bad_field, sizeof result.bad_field - 1);
  }
  write_struct(target, result, "report");
}

}  // namespace
}  // namespace magi::capi

using namespace magi::capi;

magi_status magi_flex_attention_forward(const magi_mask* mask, const magi_attention_inputs* inputs,
                                        const magi_attention_result* result, void* stream) {
  return guarded([&] {
    const magi_mask& given = require(mask, "mask");
    magi::ForwardArgs args = read_forward(inputs, result);
    args.slices = given.mask.slices;
    check_rows(given.mask, args.q, args.k);
    prepared_forward(given, args, *inputs)->run(args, {}, stream);
  });
}

magi_status magi_flex_attention_backward(const magi_mask* mask, const magi_attention_inputs* inputs,
                                         const magi_attention_result* result,
                                         const magi_attention_gradients* gradients, void* stream) {
  return guarded([&] {
    const magi_mask& given = require(mask, "mask");
    const magi::BackwardArgs args = read_backward(given.mask, inputs, result, gradients);
    prepared_backward(given, args, *inputs)
        ->run(args, read_workspace(gradients->workspace), stream);
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
    require(size_bytes, "size_bytes") =
        static_cast<size_t>(prepared_backward(given, args, *inputs)->workspace_bytes());
  });
}

magi_status magi_flex_ranges_workspace_bytes(const magi_flex_ranges* ranges,
                                             const magi_attention_inputs* inputs,
                                             size_t* size_bytes) {
  return guarded([&] {
    const Ranges given = read_ranges(ranges, inputs);
    const std::int64_t bytes = magi::forward_workspace_bytes(
        forward_args(read_inputs(inputs), {}), given.slices.q_ranges.shape[0], given.tuning);
    require(size_bytes, "size_bytes") = static_cast<size_t>(bytes);
  });
}

magi_status magi_flex_ranges_forward(const magi_flex_ranges* ranges,
                                     const magi_attention_inputs* inputs,
                                     const magi_attention_result* result,
                                     const magi_workspace* workspace, void* stream) {
  return guarded([&] {
    const Ranges given = read_ranges(ranges, inputs);
    magi::attention_forward_cuda(read_forward(inputs, result), given.slices,
                                 read_workspace(workspace), given.tuning, stream);
  });
}

magi_status magi_flex_ranges_report_sync(const magi_workspace* workspace,
                                         magi_flex_ranges_report* report, void* stream) {
  return guarded([&] {
    require(report, "report");
    write_report(report, magi::read_device_list_report_sync(read_workspace(workspace), stream));
  });
}

magi_status magi_flex_ranges_backward(const magi_flex_ranges* ranges,
                                      const magi_attention_inputs* inputs,
                                      const magi_attention_result* result,
                                      const magi_attention_gradients* gradients, void* stream) {
  return guarded([&] {
    const Ranges given = read_ranges(ranges, inputs);
    const magi::BackwardArgs args = read_backward(inputs, result, gradients);
    magi::attention_backward_cuda(args, given.slices, read_workspace(gradients->workspace),
                                  given.backward(), stream);
  });
}

magi_status magi_flex_ranges_backward_workspace_bytes(const magi_flex_ranges* ranges,
                                                      const magi_attention_inputs* inputs,
                                                      const magi_attention_result* result,
                                                      const magi_attention_gradients* gradients,
                                                      size_t* size_bytes) {
  return guarded([&] {
    const Ranges given = read_ranges(ranges, inputs);
    const std::int64_t bytes = magi::backward_workspace_bytes(
        read_backward(inputs, result, gradients), given.slices.q_ranges.shape[0], given.backward());
    require(size_bytes, "size_bytes") = static_cast<size_t>(bytes);
  });
}

magi_status magi_flex_ranges_backward_report_sync(const magi_workspace* workspace,
                                                  magi_flex_ranges_report* report, void* stream) {
  return guarded([&] {
    require(report, "report");
    write_report(report, magi::read_backward_list_report_sync(read_workspace(workspace), stream));
  });
}
