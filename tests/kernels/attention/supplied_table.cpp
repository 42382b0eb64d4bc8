// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/supplied_table.hpp"

#include <exception>
#include <initializer_list>
#include <vector>

#include "magi/attention.hpp"

namespace magi::test {
namespace {

TableLog& log_of(void* context) { return *static_cast<TableLog*>(context); }

TensorView view(const magi_tensor* tensor) {
  if (tensor == nullptr) return {};
  TensorView result{.data = tensor->data,
                    .dtype = static_cast<DType>(tensor->dtype),
                    .device = tensor->device,
                    .rank = tensor->rank};
  for (std::size_t axis = 0; axis < 4; ++axis) {
    result.shape[axis] = tensor->shape[axis];
    result.stride[axis] = tensor->stride[axis];
  }
  return result;
}

AttentionParams params_of(const magi_attention_inputs& inputs) {
  return {.softmax_scale = inputs.softmax_scale,
          .softcap = inputs.softcap,
          .sink_layout = static_cast<SinkLayout>(inputs.sink_layout)};
}

void count_optional(TableLog& log, std::initializer_list<const magi_tensor*> tensors) {
  for (const magi_tensor* tensor : tensors) log.num_optional += tensor != nullptr ? 1 : 0;
}

using Slices = std::vector<BandSlice>;

template <typename Body>
std::int32_t guarded(TableLog& log, const Body& body) {
  if (!log.error.empty()) return MAGI_INVALID_ARGUMENT;
  try {
    body();
    return MAGI_OK;
  } catch (const std::exception& error) {
    log.error = error.what();
    return MAGI_INTERNAL_ERROR;
  }
}

std::int32_t plan(void* context, const magi_attention_problem* problem, void** handle) {
  ++log_of(context).num_plans;
  return guarded(log_of(context), [&] {
    auto* slices = new Slices;
    for (std::int64_t i = 0; i < problem->num_slices; ++i) {
      const std::int32_t* s = problem->slices + 6 * i;
      slices->push_back({s[0], s[1], s[2], s[3], s[4], s[5]});
    }
    *handle = slices;
  });
}

std::int32_t forward(void* context, void* handle, const magi_attention_inputs* inputs,
                     const magi_attention_result* result, void* /*stream*/) {
  ++log_of(context).num_forwards;
  count_optional(log_of(context), {inputs->sink, result->max_logits});
  return guarded(log_of(context), [&] {
    attention_forward_cpu({.q = view(inputs->q),
                           .k = view(inputs->k),
                           .v = view(inputs->v),
                           .slices = *static_cast<const Slices*>(handle),
                           .sink = view(inputs->sink),
                           .out = view(result->out),
                           .lse = view(result->lse),
                           .max_logits = view(result->max_logits),
                           .params = params_of(*inputs)});
  });
}

std::int32_t backward(void* context, void* handle, const magi_attention_inputs* inputs,
                      const magi_attention_result* result,
                      const magi_attention_gradients* gradients, void* /*stream*/) {
  ++log_of(context).num_backwards;
  count_optional(log_of(context), {inputs->sink, gradients->dlse, gradients->dsink});
  return guarded(log_of(context), [&] {
    const TensorView dsink = view(gradients->dsink);
    attention_backward_cpu({.q = view(inputs->q),
                            .k = view(inputs->k),
                            .v = view(inputs->v),
                            .slices = *static_cast<const Slices*>(handle),
                            .out = view(result->out),
                            .lse = view(result->lse),
                            .dout = view(gradients->dout),
                            .dlse = view(gradients->dlse),
                            .sink = dsink.empty() ? TensorView{} : view(inputs->sink),
                            .dq = view(gradients->dq),
                            .dk = view(gradients->dk),
                            .dv = view(gradients->dv),
                            .dsink = dsink,
                            .params = params_of(*inputs)});
  });
}

void release(void* context, void* handle) {
  ++log_of(context).num_releases;
  delete static_cast<Slices*>(handle);
}

const char* last_error(void* context) { return log_of(context).error.c_str(); }

void destroy(void* context) { ++log_of(context).num_destroys; }

}  // namespace

magi_attention_backend table_over_cpu(TableLog& log, const char* name) {
  return {.struct_size = sizeof(magi_attention_backend),
          .context = &log,
          .name = name,
          .serves_cpu = 1,
          .serves_gpu = 0,
          .limits = {.struct_size = sizeof(magi_attention_limits),
                     .min_dim_qk = 8,
                     .max_dim_qk = 64,
                     .dim_qk_multiple = 8,
                     .min_dim_v = 8,
                     .max_dim_v = 64,
                     .dim_v_multiple = 8,
                     .dtypes = 1 << MAGI_FLOAT32 | 1 << MAGI_BFLOAT16,
                     .stride_bytes = 4,
                     .has_float_outputs = 0,
                     .has_sink = 0,
                     .has_softcap = 0,
                     .has_max_logits = 0,
                     .has_dlse = 0,
                     .has_any_scale = 0},
          .plan = plan,
          .forward = forward,
          .backward = backward,
          .release = release,
          .last_error = last_error,
          .destroy = destroy};
}

}  // namespace magi::test
