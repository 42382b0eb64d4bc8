// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/backward/backward.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "base/check.hpp"
#include "base/math.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/tensor_map.hpp"
#include "kernels/sm90/backward/prepare.hpp"
#include "kernels/sm90/checks.hpp"

namespace magi {
namespace {

using sm90::to_int;

void check_like_out(const char* name, const TensorView& tensor, const BackwardArgs& args) {
  sm90::check_shape(name, tensor, {args.q.shape[0], args.q.shape[1], args.v.shape[2]});
  if (tensor.dtype != args.q.dtype && tensor.dtype != DType::Float32) {
    throw invalid(std::string(name) + ".dtype", dtype_name(tensor.dtype), "that of q, float32");
  }
}

void check_gradient(const char* name, const TensorView& gradient, const TensorView& of,
                    bool is_accumulating) {
  sm90::check_shape(name, gradient, {of.shape[0], of.shape[1], of.shape[2]});
  const bool is_float = gradient.dtype == DType::Float32;
  if (is_accumulating && !is_float) {
    throw invalid(std::string(name) + ".dtype", dtype_name(gradient.dtype),
                  "float32 where is_accumulating");
  }
  if (!is_float && gradient.dtype != of.dtype) {
    throw invalid(std::string(name) + ".dtype", dtype_name(gradient.dtype), "that of q, float32");
  }
}

void check_sinks(const BackwardArgs& args, std::int32_t device) {
  if (args.sink.empty() != args.dsink.empty()) {
    throw invalid(args.sink.empty() ? "sink" : "dsink", "missing",
                  "both of sink and dsink or none");
  }
  if (args.sink.empty()) return;
  for (const auto& [name, tensor] : {std::pair{"sink", &args.sink}, {"dsink", &args.dsink}}) {
    sm90::check_sink(name, *tensor, args.params.sink_layout, args.q);
    sm90::check_device(name, *tensor, device);
  }
  const auto axis = static_cast<std::size_t>(args.sink.rank - 2);
  if (args.dsink.shape[axis] != args.sink.shape[axis]) {
    throw invalid("dsink's number of sinks", args.dsink.shape[axis], "that of sink");
  }
}

void check_call(const BackwardArgs& args, std::int32_t device) {
  sm90::check_inputs(args.q, args.k, args.v);
  check_like_out("out", args.out, args);
  check_like_out("dout", args.dout, args);
  check_gradient("dq", args.dq, args.q, args.is_accumulating);
  check_gradient("dk", args.dk, args.k, args.is_accumulating);
  check_gradient("dv", args.dv, args.v, args.is_accumulating);
  for (const auto& [name, tensor] : {std::pair{"q", &args.q},
                                     {"k", &args.k},
                                     {"v", &args.v},
                                     {"out", &args.out},
                                     {"dout", &args.dout},
                                     {"dq", &args.dq},
                                     {"dk", &args.dk},
                                     {"dv", &args.dv}}) {
    sm90::check_copied(name, *tensor, device);
  }
  for (const auto& [name, tensor] : {std::pair{"lse", &args.lse}, {"dlse", &args.dlse}}) {
    if (tensor == &args.dlse && tensor->empty()) continue;
    sm90::check_float_rows(name, *tensor, args.q.shape[0], args.q.shape[1]);
    sm90::check_device(name, *tensor, device);
  }
  check_sinks(args, device);
  sm90::check_params(args.params);
}

BackwardProblem backward_problem(const BackwardArgs& args, std::int32_t num_ctas) {
  sm90::check_inputs(args.q, args.k, args.v);
  return {.rows_q = to_int(args.q.shape[0]),
          .rows_k = to_int(args.k.shape[0]),
          .heads_q = to_int(args.q.shape[1]),
          .heads_kv = to_int(args.k.shape[1]),
          .dim_qk = to_int(args.q.shape[2]),
          .dim_v = to_int(args.v.shape[2]),
          .num_ctas = num_ctas};
}

void check_work(const BackwardArgs& args, const BackwardWork::State& work) {
  const BackwardProblem& made_for = work.list.problem;
  if (backward_problem(args, made_for.num_ctas) != made_for ||
      args.q.dtype != work.instance->config.type || args.dout.dtype != work.dout_type) {
    throw invalid("work", "for other shapes or types", "a list made for these tensors");
  }
}

template <typename Element>
Element* part_at(void* workspace, std::size_t offset) {
  return reinterpret_cast<Element*>(static_cast<std::byte*>(workspace) + offset);
}

/// Tiles of 64 rows, as prepare and the converting kernel see them, in a q tile of the main kernel.
std::int32_t tiles_per_q_tile(const BackwardList& list) {
  return list.shape.rows / sm90::kTileRows;
}

sm90::PackedRows packed_rows(const BackwardList& list) {
  return {.rows_q = list.problem.rows_q,
          .heads_q = list.problem.heads_q,
          .packed_heads = list.packed_heads,
          .tiles_per_group = list.num_q_tiles() * tiles_per_q_tile(list)};
}

void prepare(const BackwardArgs& args, const BackwardWork::State& work, void* workspace,
             cudaStream_t stream) {
  const sm90::BackwardLayout layout = sm90::backward_layout(work);
  sm90::PrepareParams params;
  params.packed = packed_rows(work.list);
  params.dim_v = work.list.problem.dim_v;
  params.out = sm90::strided_rows(args.out);
  params.dout = sm90::strided_rows(args.dout);
  params.lse = sm90::strided_rows(args.lse);
  if (!args.dlse.empty()) params.dlse = sm90::strided_rows(args.dlse);
  params.exponent_scale = sm90::score_scale(args.params, args.q.shape[2]).exponent_scale;
  params.lse_log2 = part_at<float>(workspace, layout.lse_log2);
  params.delta = part_at<float>(workspace, layout.delta);
  if (work.dout_type == DType::Float32) {
    params.dout_copy = part_at<void>(workspace, layout.dout_copy);
  }
  params.sums = part_at<float>(workspace, layout.dq_sums);
  params.sums_per_tile = sm90::kTileRows * work.instance->config.dim_qk;
  params.tiles_per_q_tile = tiles_per_q_tile(work.list);
  if (work.list.is_ordered) {
    params.num_components = static_cast<const std::int32_t*>(work.tile_components.data());
  }
  params.semaphores = part_at<std::uint32_t>(workspace, layout.semaphores);
  params.num_semaphores = work.list.num_counters();
  sm90::prepare_backward(params, args.q.dtype, stream);
}

void add_sink_gradient(const BackwardArgs& args, const BackwardWork::State& work, void* workspace,
                       cudaStream_t stream) {
  if (args.sink.empty()) return;
  const sm90::BackwardLayout layout = sm90::backward_layout(work);
  const SinkLayout sinks = args.params.sink_layout;
  const sm90::SinkRows dsink = sm90::sink_rows(args.dsink, sinks);
  sm90::enqueue_sink_gradient(
      {.packed = packed_rows(work.list),
       .exponent_scale = sm90::score_scale(args.params, args.q.shape[2]).exponent_scale,
       .lse_log2 = part_at<float>(workspace, layout.lse_log2),
       .delta = part_at<float>(workspace, layout.delta),
       .sink = sm90::sink_rows(args.sink, sinks),
       .dsink = static_cast<float*>(args.dsink.data),
       .row_stride = dsink.row_stride,
       .sink_stride = dsink.sink_stride,
       .is_adding = args.is_accumulating},
      stream);
}

/// dout as the main kernel reads it: 16 bits per element.
TensorView half_dout(const BackwardArgs& args, const BackwardWork::State& work, void* workspace) {
  if (work.dout_type != DType::Float32) return args.dout;
  TensorView copy = args.dout;
  copy.data = part_at<void>(workspace, sm90::backward_layout(work).dout_copy);
  copy.dtype = args.q.dtype;
  copy.stride = {copy.shape[1] * copy.shape[2], copy.shape[2], 1};
  return copy;
}

/// Elements between rows of a q tile, a power of two apart, that begin at a multiple of it.
std::int64_t packed_stride(const sm90::StridedRows& target, std::int32_t packed_heads,
                           std::int32_t rows) {
  return rows < packed_heads ? rows * target.head_stride : rows / packed_heads * target.row_stride;
}

void set_tensors(sm90::BackwardParams& params, const BackwardArgs& args,
                 const BackwardWork::State& work, void* workspace) {
  const BackwardList& list = work.list;
  if (list.problem.rows_k == 0) return;
  // Without rows of q no tile is loaded; a descriptor needs some address all the same.
  const bool has_rows = list.problem.rows_q > 0;
  const TensorBox query_box{list.packed_heads, list.tile_tokens};
  params.q = make_tensor_map(has_rows ? args.q : args.k, query_box);
  params.dout = make_tensor_map(has_rows ? half_dout(args, work, workspace) : args.v, query_box);
  const TensorBox key_box{1, list.shape.keys};
  params.k = make_tensor_map(args.k, key_box);
  params.v = make_tensor_map(args.v, key_box);
}

sm90::QueryTiles query_tiles(const BackwardList& list) {
  return {.num_q_tiles = list.num_q_tiles(),
          .token_shift = std::countr_zero(static_cast<unsigned>(list.tile_tokens)),
          .packed_heads = list.packed_heads,
          .packed_shift = std::countr_zero(static_cast<unsigned>(list.packed_heads)),
          .heads_q = list.problem.heads_q,
          .rows_q = list.problem.rows_q};
}

sm90::DqOrder dq_order(const BackwardWork::State& work, unsigned* semaphores) {
  return {.runs = static_cast<const SemaphoreRun*>(work.semaphore_runs.data()),
          .num_components = static_cast<const std::int32_t*>(work.tile_components.data()),
          .semaphores = semaphores,
          .num_semaphores = work.list.num_semaphores(),
          .is_deterministic = work.list.is_ordered,
          .is_converting = work.list.is_converting};
}

sm90::DqOutput dq_output(const BackwardArgs& args, const BackwardWork::State& work, float* sums) {
  const sm90::StridedRows rows = sm90::strided_rows(args.dq);
  const std::int32_t packed_heads = work.list.packed_heads;
  const std::int64_t element_bytes = rows.is_float() ? 4 : 2;
  return {.sums = sums,
          .rows = rows,
          .dim = work.list.problem.dim_qk,
          .is_adding = args.is_accumulating,
          .bytes_to_row_8 = packed_stride(rows, packed_heads, 8) * element_bytes,
          .bytes_to_row_16 = packed_stride(rows, packed_heads, 16) * element_bytes,
          .left_tiles = static_cast<const std::int32_t*>(work.left_tiles.data()),
          .num_left = work.num_left};
}

sm90::KeyGradients key_gradients(const BackwardArgs& args, const BackwardProblem& problem,
                                 float* split_sums, unsigned* split_semaphores) {
  return {.dk = sm90::strided_rows(args.dk),
          .dv = sm90::strided_rows(args.dv),
          .dim_qk = problem.dim_qk,
          .dim_v = problem.dim_v,
          .is_adding = args.is_accumulating && !args.is_writing_keys,
          .split_sums = split_sums,
          .split_semaphores = split_semaphores};
}

sm90::BackwardItems backward_items(const BackwardWork::State& work, unsigned* ticket) {
  const BackwardList& list = work.list;
  sm90::BackwardItems items{.is_group_first = list.is_group_first,
                            .tiles = static_cast<const KeyTile*>(work.tiles.data()),
                            .records = static_cast<const KeyRecord*>(work.records.data()),
                            .ticket = ticket,
                            .num_items = to_int(list.num_items()),
                            .num_tiles = to_int(std::ssize(list.tiles)),
                            .heads_kv = list.problem.heads_kv};
  std::copy(list.spans.begin(), list.spans.end(), items.spans);
  return items;
}

sm90::BackwardParams backward_params(const BackwardArgs& args, const BackwardWork::State& work,
                                     void* workspace) {
  const sm90::BackwardLayout layout = sm90::backward_layout(work);
  const BackwardList& list = work.list;
  auto* semaphores = part_at<unsigned>(workspace, layout.semaphores);
  sm90::BackwardParams params;
  set_tensors(params, args, work, workspace);
  params.query = query_tiles(list);
  params.softmax = {.lse_log2 = part_at<float>(workspace, layout.lse_log2),
                    .delta = part_at<float>(workspace, layout.delta),
                    .score = sm90::score_scale(args.params, args.q.shape[2])};
  params.dq_order = dq_order(work, semaphores);
  params.dq = dq_output(args, work, part_at<float>(workspace, layout.dq_sums));
  params.keys = key_gradients(args, list.problem, part_at<float>(workspace, layout.split_sums),
                              semaphores + std::int64_t{list.head_groups} * list.num_semaphores());
  params.items = backward_items(work, semaphores + (list.num_counters() - 1));
  return params;
}

const sm90::BackwardInstance* find_instance(const BackwardArgs& args, bool has_softcap) {
  if (args.q.device < 0) throw invalid("q.device", args.q.device, "a CUDA ordinal");
  if (!device_info(args.q.device).is_hopper()) {
    throw invalid("q.device", device_name(args.q.device), "GPUs of compute capability 9.0");
  }
  const auto* instance = sm90::find_backward_instance(args.q.dtype, to_int(args.q.shape[2]),
                                                      to_int(args.v.shape[2]), has_softcap);
  MAGI_CHECK(instance != nullptr);
  return instance;
}

}  // namespace

namespace sm90 {
namespace {

/// With costs in q tiles, which were measured in tiles of 64 rows.
BackwardTileShape tile_shape(const BackwardConfig& config) {
  BackwardTileShape shape{.rows = config.rows, .keys = config.keys};
  if (config.has_wide_tiles()) {
    shape.overhead = 2;
    shape.split_cost = 1;
  }
  return shape;
}

}  // namespace

BackwardLayout backward_layout(const BackwardWork::State& work) {
  const BackwardList& list = work.list;
  const BackwardConfig& config = work.instance->config;
  BackwardLayout layout;
  const auto append = [&layout](std::int64_t size_bytes) {
    const std::size_t offset = layout.size_bytes;
    layout.size_bytes += static_cast<std::size_t>(align_up(size_bytes, kWorkspaceAlignment));
    return offset;
  };
  constexpr std::int64_t kFloatBytes = sizeof(float);
  layout.semaphores = append(list.num_counters() * kFloatBytes);
  layout.lse_log2 = append(list.num_sums() * list.shape.rows * kFloatBytes);
  layout.delta = append(list.num_sums() * list.shape.rows * kFloatBytes);
  layout.dq_sums = append(list.sum_floats(config.dim_qk) * kFloatBytes);
  layout.split_sums = append(list.slot_floats(config.dim_qk, config.dim_v) * kFloatBytes);
  const BackwardProblem& problem = list.problem;
  const std::int64_t dout_bytes =
      std::int64_t{problem.rows_q} * problem.heads_q * problem.dim_v * 2;
  layout.dout_copy = append(work.dout_type == DType::Float32 ? dout_bytes : 0);
  return layout;
}

BackwardWork::State make_backward_work(const BackwardInstance& instance, const BackwardArgs& args,
                                       const BackwardTuning& tuning) {
  if (tuning.head_walk > HeadWalk::InTurn) {
    throw invalid("head_walk", static_cast<int>(tuning.head_walk), "ByCost, Together or InTurn");
  }
  BackwardWork::State state;
  state.instance = &instance;
  state.dout_type = args.dout.dtype;
  state.device = current_device();
  const std::int32_t num_sms = count_free_sms(state.device, tuning.sm_margin);
  state.list = build_backward_list(
      backward_problem(args, num_sms), args.slices, tile_shape(instance.config),
      {.packed_heads = tuning.packed_heads,
       .heads_per_item = tuning.heads_per_item,
       .section_heads = tuning.section_heads,
       .is_group_first = tuning.head_walk == HeadWalk::ByCost
                             ? std::nullopt
                             : std::optional(tuning.head_walk == HeadWalk::InTurn),
       .is_deterministic = tuning.is_deterministic});
  BackwardList& list = state.list;
  state.num_ctas = to_int(std::min<std::int64_t>(list.num_items(), num_sms));
  state.tiles = to_device_sync<KeyTile>(list.tiles);
  state.records = to_device_sync<KeyRecord>(list.records);
  state.semaphore_runs = to_device_sync<SemaphoreRun>(list.semaphore_runs);
  state.tile_components = to_device_sync<std::int32_t>(list.tile_components);
  state.num_left = to_int(std::ssize(list.left_tiles));
  state.left_tiles = to_device_sync<std::int32_t>(list.left_tiles);
  list.records = {};
  list.semaphore_runs = {};
  list.tile_components = {};
  list.left_tiles = {};
  return state;
}

void enqueue_backward(const BackwardArgs& args, const BackwardWork::State& work, void* workspace,
                      cudaStream_t stream) {
  const BackwardInstance* instance =
      args.params.softcap > 0.0 ? work.softcap_instance : work.instance;
  MAGI_CHECK(instance != nullptr);
  prepare(args, work, workspace, stream);
  add_sink_gradient(args, work, workspace, stream);
  const BackwardParams params = backward_params(args, work, workspace);
  if (work.num_ctas > 0) instance->launch(params, work.num_ctas, stream);
  if (params.query.rows_q > 0) instance->convert_dq(params, stream);
}

}  // namespace sm90

BackwardWork::BackwardWork(const BackwardArgs& args, const BackwardTuning& tuning) {
  sm90::check_inputs(args.q, args.k, args.v);
  check_like_out("dout", args.dout, args);
  const sm90::BackwardInstance* instance = find_instance(args, false);
  const DeviceScope scope(args.q.device);
  State state = sm90::make_backward_work(*instance, args, tuning);
  state.softcap_instance = find_instance(args, true);
  state_ = std::make_shared<const State>(std::move(state));
}

BackwardWork::~BackwardWork() = default;
BackwardWork::BackwardWork(BackwardWork&&) noexcept = default;
BackwardWork& BackwardWork::operator=(BackwardWork&&) noexcept = default;

std::int32_t BackwardWork::packed_heads() const { return state_->list.packed_heads; }

std::int32_t BackwardWork::heads_per_item() const {
  const BackwardList& list = state_->list;
  return list.spans.empty() ? 0 : list.packed_heads * list.spans.front().groups_per_item;
}

std::int64_t BackwardWork::size_bytes() const {
  return static_cast<std::int64_t>(state_->tiles.size_bytes() + state_->records.size_bytes() +
                                   state_->semaphore_runs.size_bytes() +
                                   state_->tile_components.size_bytes() +
                                   state_->left_tiles.size_bytes());
}

std::int64_t BackwardWork::workspace_bytes() const {
  return static_cast<std::int64_t>(sm90::backward_layout(*state_).size_bytes);
}

void attention_backward_cuda(const BackwardArgs& args, const BackwardWork& work,
                             const DeviceWorkspace& workspace, void* stream) {
  const BackwardWork::State& state = *work.state();
  check_call(args, state.device);
  check_work(args, state);
  sm90::check_workspace(workspace, work.workspace_bytes());
  const DeviceScope scope(state.device);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (cudaGraph_t graph = graph_of_capture(cuda_stream); graph != nullptr) {
    keep_with_graph(graph, work.state());
  }
  sm90::enqueue_backward(args, state, workspace.data, cuda_stream);
}

}  // namespace magi
