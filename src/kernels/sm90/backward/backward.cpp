// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/backward/backward.hpp"

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <utility>

#include "base/check.hpp"
#include "cuda/arena.hpp"
#include "cuda/device.hpp"
#include "cuda/tensor_map.hpp"
#include "kernels/schedule/host/plain_list.hpp"
#include "kernels/sm90/backward/destinations.hpp"
#include "kernels/sm90/conversions.hpp"

namespace magi::sm90 {
namespace {

/// The number of tiles of the preprocess and postprocess kernels in a q tile of the main one.
std::int32_t tiles_per_q_tile(const BackwardList& list) { return list.shape.rows / kTileRows; }

PackedRows packed_rows(const BackwardList& list) {
  return {.rows_q = list.problem.rows_q,
          .heads_q = list.problem.heads_q,
          .packed_heads = list.packed_heads,
          .tiles_per_group = list.num_q_tiles() * tiles_per_q_tile(list)};
}

/// Counts the words of the main kernel that the prepare kernel clears.
std::int64_t num_words(const BackwardList& list) {
  return list.num_counters() + list.num_late_counters();
}

/// The arguments of the preprocess kernel.
PrepareParams prepare_params(const BackwardArgs& args, const BackwardState& state,
                             void* workspace) {
  const BackwardLayout layout = backward_layout(state);
  PrepareParams params;
  params.packed = packed_rows(state.list);
  params.dim_v = state.list.problem.dim_v;
  params.out = strided_rows(args.out);
  params.dout = strided_rows(args.dout);
  params.lse = strided_rows(args.lse);
  if (!args.dlse.empty()) params.dlse = strided_rows(args.dlse);
  params.exponent_scale = score_scale(args.params, args.q.shape[2]).exponent_scale;
  params.lse_log2 = part_at<float>(workspace, layout.lse_log2);
  params.delta = part_at<float>(workspace, layout.delta);
  if (state.dout_type == DType::Float32) {
    params.dout_copy = part_at<void>(workspace, layout.dout_copy);
  }
  params.sums = part_at<float>(workspace, layout.dq_sums);
  if (state.instance->config.makes_dq()) {
    params.sums_per_tile = kTileRows * state.instance->config.dim_qk;
  }
  params.tiles_per_q_tile = tiles_per_q_tile(state.list);
  if (state.list.is_ordered) {
    params.num_components = state.parts.tile_components;
  }
  params.semaphores = part_at<std::uint32_t>(workspace, layout.semaphores);
  params.num_semaphores = num_words(state.list);
  return params;
}

void add_sink_gradient(const BackwardArgs& args, const BackwardState& state, void* workspace,
                       cudaStream_t stream) {
  if (args.sink.empty()) return;
  const BackwardLayout layout = backward_layout(state);
  const SinkLayout sinks = args.params.sink_layout;
  const SinkRows dsink = sink_rows(args.dsink, sinks);
  enqueue_sink_gradient({.packed = packed_rows(state.list),
                         .exponent_scale = score_scale(args.params, args.q.shape[2]).exponent_scale,
                         .lse_log2 = part_at<float>(workspace, layout.lse_log2),
                         .delta = part_at<float>(workspace, layout.delta),
                         .sink = sink_rows(args.sink, sinks),
                         .dsink = static_cast<float*>(args.dsink.data),
                         .row_stride = dsink.row_stride,
                         .sink_stride = dsink.sink_stride,
                         .is_adding = args.is_accumulating},
                        stream);
}

/// Returns dout with 16-bit elements, as the main kernel reads it.
TensorView half_dout(const BackwardArgs& args, const BackwardState& state, void* workspace) {
  if (state.dout_type != DType::Float32) return args.dout;
  TensorView copy = args.dout;
  copy.data = part_at<void>(workspace, backward_layout(state).dout_copy);
  copy.dtype = args.q.dtype;
  copy.stride = {copy.shape[1] * copy.shape[2], copy.shape[2], 1};
  return copy;
}

/// Elements from a q tile's row r to row r + `rows`, a power of two that divides r.
std::int64_t packed_stride(const StridedRows& target, std::int32_t packed_heads,
                           std::int32_t rows) {
  return rows < packed_heads ? rows * target.head_stride : rows / packed_heads * target.row_stride;
}

void set_tensors(BackwardParams& params, const BackwardArgs& args, const BackwardState& state,
                 void* workspace) {
  const BackwardList& list = state.list;
  if (list.problem.rows_k == 0) return;
  if (state.instance->config.is(KernelForm::Mma)) {
    params.tensors = {strided_rows(args.q), strided_rows(args.k), strided_rows(args.v),
                      strided_rows(half_dout(args, state, workspace))};
    return;
  }
  // Without rows of q no tile is loaded, but a descriptor needs some address.
  const bool has_rows = list.problem.rows_q > 0;
  const TensorBox query_box{list.packed_heads, list.tile_tokens};
  params.q = make_tensor_map(has_rows ? args.q : args.k, query_box);
  params.dout = make_tensor_map(has_rows ? half_dout(args, state, workspace) : args.v, query_box);
  const TensorBox key_box{1, state.instance->config.keys};
  params.k = make_tensor_map(args.k, key_box);
  params.v = make_tensor_map(args.v, key_box);
}

SeenTiles seen_tiles(const BackwardArgs& args, const BackwardState& state, void* workspace) {
  const BackwardList& list = state.list;
  const BackwardListOnDevice& parts = state.parts;
  SeenTiles seen{.rows_k = list.problem.rows_k};
  if (list.problem.rows_q == 0 || list.problem.rows_k == 0) return seen;
  if (parts.seen_queries == nullptr && parts.seen_keys == nullptr) return seen;
  seen.queries = parts.seen_queries;
  seen.keys = parts.seen_keys;
  if (parts.tiles_per_list > 0) seen.words_per_list = num_seen_words(seen.rows_k);
  if (state.instance->config.is(KernelForm::Mma)) return seen;
  const auto pieces_of = [](const TensorView& tensor, std::int32_t heads) {
    const auto shift = std::countr_zero(static_cast<unsigned>(heads));
    return TilePieces{{make_tensor_map(tensor, {heads, unit_tokens(shift)}),
                       make_tensor_map(tensor, {heads, 1})}};
  };
  seen.q = pieces_of(args.q, list.packed_heads);
  seen.dout = pieces_of(half_dout(args, state, workspace), list.packed_heads);
  seen.k = pieces_of(args.k, 1);
  seen.v = pieces_of(args.v, 1);
  return seen;
}

QueryTiles query_tiles(const BackwardList& list) {
  return {.num_q_tiles = list.num_q_tiles(),
          .token_shift = std::countr_zero(static_cast<unsigned>(list.tile_tokens)),
          .packed_heads = list.packed_heads,
          .packed_shift = std::countr_zero(static_cast<unsigned>(list.packed_heads)),
          .heads_q = list.problem.heads_q,
          .rows_q = list.problem.rows_q};
}

DqOrder dq_order(const BackwardState& state, unsigned* semaphores) {
  return {.runs = state.parts.semaphore_runs,
          .num_components = state.parts.tile_components,
          .semaphores = semaphores,
          .num_semaphores = state.list.num_semaphores(),
          .is_ordered = state.list.is_ordered,
          .is_converting = state.list.is_converting};
}

DqCompletion dq_completion(const BackwardArgs& args, const BackwardState& state) {
  const std::int32_t ctas = state.instance->config.ctas();
  const std::int32_t num_pairs = device_info(args.q.device).num_sms / ctas;
  // Without items there is no main kernel that could signal.
  const bool has_order = state.list.is_ordered && state.num_ctas > 0;
  // A kernel of another call may not begin early: it could write into this one's workspace.
  const bool has_next =
      !state.instance->config.makes_dq() || !state.list.is_converting || state.parts.num_left > 0;
  return {.tiles = has_order ? state.parts.tile_semaphores : nullptr,
          .num_adders = ctas,
          .is_next_beside = has_next && state.num_ctas >= num_pairs * ctas};
}

DqOutput dq_output(const BackwardArgs& args, const BackwardState& state, float* sums) {
  const StridedRows rows = strided_rows(args.dq);
  const std::int32_t packed_heads = state.list.packed_heads;
  const std::int64_t element_bytes = rows.is_float() ? 4 : 2;
  return {.sums = sums,
          .rows = rows,
          .dim = state.list.problem.dim_qk,
          .is_adding = args.is_accumulating,
          .bytes_to_row_8 = packed_stride(rows, packed_heads, 8) * element_bytes,
          .bytes_to_row_16 = packed_stride(rows, packed_heads, 16) * element_bytes,
          .left_tiles = state.parts.left_tiles,
          .num_left = state.parts.num_left,
          .converted_tiles = state.parts.converted_tiles};
}

KeyGradients key_gradients(const BackwardArgs& args, const BackwardProblem& problem,
                           float* split_sums, unsigned* split_semaphores) {
  return {.dk = strided_rows(args.dk),
          .dv = strided_rows(args.dv),
          .dim_qk = problem.dim_qk,
          .dim_v = problem.dim_v,
          .is_adding = args.is_accumulating && !args.is_writing_keys,
          .split_sums = split_sums,
          .split_semaphores = split_semaphores};
}

BackwardItems backward_items(const BackwardState& state, unsigned* ticket) {
  const BackwardList& list = state.list;
  const bool has_lists = state.parts.tiles_per_list > 0;  // then the host knows num_items
  BackwardItems items{.is_group_first = list.is_group_first,
                      .tiles = state.parts.tiles,
                      .records = state.parts.records,
                      .ticket = ticket,
                      .num_items = to_int(list.num_items()),
                      .num_tiles = to_int(list.num_tiles()),
                      .heads_kv = list.problem.heads_kv,
                      .outcome = has_lists ? nullptr : state.parts.outcome,
                      .order = state.parts.order,
                      .tiles_per_list = state.parts.tiles_per_list,
                      .records_per_list = state.parts.records_per_list};
  std::copy(list.spans.begin(), list.spans.end(), items.spans);
  return items;
}

/// `counters`: BackwardList::num_late_counters of them.
InFlightItems in_flight_items(const BackwardState& state, unsigned* counters) {
  const BackwardList& list = state.list;
  const InFlightKeys& coming = list.problem.coming;
  unsigned* num_deferred = counters + list.problem.heads_kv * list.num_tiles();
  return {.flags = {.num_sources = coming.num_sources},
          .heads_per_section = coming.heads_per_section(list.problem.heads_kv),
          .tiles = state.parts.arrivals,
          .decisions = counters,
          .num_deferred = num_deferred,
          .deferred_ticket = num_deferred + 1,
          .deferred_words = num_deferred + 2};
}

BackwardParams backward_params(const BackwardArgs& args, const BackwardState& state,
                               void* workspace) {
  const BackwardLayout layout = backward_layout(state);
  const BackwardList& list = state.list;
  auto* semaphores = part_at<unsigned>(workspace, layout.semaphores);
  BackwardParams params;
  set_tensors(params, args, state, workspace);
  params.query = query_tiles(list);
  params.softmax = {.lse_log2 = part_at<float>(workspace, layout.lse_log2),
                    .delta = part_at<float>(workspace, layout.delta),
                    .score = score_scale(args.params, args.q.shape[2])};
  params.dq_order = dq_order(state, semaphores);
  params.dq = dq_output(args, state, part_at<float>(workspace, layout.dq_sums));
  params.key_gradients =
      key_gradients(args, list.problem, part_at<float>(workspace, layout.split_sums),
                    semaphores + std::int64_t{list.head_groups} * list.num_semaphores());
  params.items = backward_items(state, semaphores + (list.num_counters() - 1));
  params.coming = in_flight_items(state, semaphores + list.num_counters());
  params.completion = dq_completion(args, state);
  params.seen = seen_tiles(args, state, workspace);
  return params;
}

/// Enqueues the preprocess kernel. It runs beside the push, or the making of the list, that comes
/// just before it on the stream.
void launch_prepare(PrepareParams params, const BackwardState& state, DType type,
                    bool is_beside_push, cudaStream_t stream) {
  constexpr std::int32_t kLateCtas = 264;  // enough to clear sums at the speed of memory
  const bool is_beside_list = state.parts.is_under_way;
  if (is_beside_list) params.num_late_ctas = kLateCtas;
  params.is_beside = is_beside_push || is_beside_list;
  prepare_backward(params, type, stream);
}

/// Copies the parts of the list that kernels read to the device, and frees them on the host.
void keep_on_device_sync(BackwardState& state) {
  BackwardList& list = state.list;
  state.lists = lists_to_device_sync(
      {std::as_bytes(std::span(list.tiles)), std::as_bytes(std::span(list.records)),
       std::as_bytes(std::span(list.semaphore_runs)),
       std::as_bytes(std::span(list.tile_components)), std::as_bytes(std::span(list.left_tiles)),
       std::as_bytes(std::span(list.arrivals)), std::as_bytes(std::span(list.tile_semaphores)),
       std::as_bytes(std::span(list.seen.queries)), std::as_bytes(std::span(list.seen.keys))});
  state.parts = {.tiles = static_cast<const KeyTile*>(state.lists[0].data()),
                 .records = static_cast<const KeyRecord*>(state.lists[1].data()),
                 .semaphore_runs = static_cast<const SemaphoreRun*>(state.lists[2].data()),
                 .tile_components = static_cast<const std::int32_t*>(state.lists[3].data()),
                 .tile_semaphores = static_cast<const TileSemaphores*>(state.lists[6].data()),
                 .num_left = to_int(std::ssize(list.left_tiles)),
                 .left_tiles = static_cast<const std::int32_t*>(state.lists[4].data()),
                 .arrivals = static_cast<const TileArrival*>(state.lists[5].data()),
                 .seen_queries = static_cast<const std::uint32_t*>(state.lists[7].data()),
                 .seen_keys = static_cast<const std::uint32_t*>(state.lists[8].data())};
  list.records = {};
  list.semaphore_runs = {};
  list.tile_components = {};
  list.tile_semaphores = {};
  list.left_tiles = {};
  list.arrivals = {};
  list.seen = {};
}

const BackwardInstance* instance_for(const BackwardArgs& args, const BackwardState& state) {
  return args.params.softcap > 0.0 ? state.softcap_instance : state.instance;
}

void launch_items(const BackwardParams& params, const BackwardState& state,
                  const BackwardInstance& instance, LaunchStart start, cudaStream_t stream) {
  if (state.num_ctas > 0) instance.launch(params, state.num_ctas, start, stream);
}

/// Launches the kernel for unordered sums, if the host does not know whether sums are ordered: one
/// of the two launches has no items.
void launch_unordered(BackwardParams params, const BackwardArgs& args, const BackwardState& state,
                      cudaStream_t stream) {
  params.dq_order.is_ordered = false;
  params.items.is_group_first = is_plain_group_first(state.list.packed_heads, false);
  params.items.outcome = state.parts.unordered;
  params.items.ticket = state.parts.unordered_ticket;
  launch_items(params, state, *instance_for(args, state), LaunchStart::Ahead, stream);
}

const BackwardInstance* find_instance(std::span<const BackwardInstance> instances,
                                      const BackwardArgs& args, bool has_softcap) {
  const auto found = std::ranges::find_if(instances, [&](const BackwardInstance& instance) {
    const BackwardConfig& config = instance.config;
    return config.type == args.q.dtype && config.dim_qk >= args.q.shape[2] &&
           config.dim_v >= args.v.shape[2] && (config.has_softcap || !has_softcap);
  });
  MAGI_CHECK(found != instances.end());
  return std::to_address(found);
}

}  // namespace

BackwardProblem backward_problem(const BackwardArgs& args, std::int32_t num_ctas,
                                 const InFlightKeys& coming) {
  return {.rows_q = to_int(args.q.shape[0]),
          .rows_k = to_int(args.k.shape[0]),
          .heads_q = to_int(args.q.shape[1]),
          .heads_kv = to_int(args.k.shape[1]),
          .dim_qk = to_int(args.q.shape[2]),
          .dim_v = to_int(args.v.shape[2]),
          .num_ctas = num_ctas,
          .cache_bytes = cache_bytes(),
          .coming = coming};
}

/// Returns the tile shape. Costs were measured in tiles of 64 rows, and count q tiles here.
BackwardTileShape tile_shape(const BackwardConfig& config) {
  BackwardTileShape shape{.rows = config.rows,
                          .keys = config.tile_keys(),
                          .has_converter = config.ordered(true).has_converter()};
  if (config.is(KernelForm::Wide)) {
    shape.overhead = 2;
    shape.split_cost = 1;
  }
  return shape;
}

BackwardLayout backward_layout(const BackwardState& state) {
  const BackwardList& list = state.list;
  const BackwardConfig& config = state.instance->config;
  const BackwardProblem& problem = list.problem;
  const std::int64_t dout_elements = std::int64_t{problem.rows_q} * problem.heads_q * problem.dim_v;
  Arena arena;
  BackwardLayout layout;
  layout.semaphores = arena.add<std::uint32_t>(num_words(list));
  layout.lse_log2 = arena.add<float>(list.num_sums() * list.shape.rows);
  layout.delta = arena.add<float>(list.num_sums() * list.shape.rows);
  layout.dq_sums = arena.add<float>(config.makes_dq() ? list.sum_floats(config.dim_qk) : 0);
  layout.split_sums = arena.add<float>(list.slot_floats(config.dim_qk, config.dim_v));
  layout.dout_copy =
      arena.add<std::uint16_t>(state.dout_type == DType::Float32 ? dout_elements : 0);
  layout.destinations = arena.add<KeyDestination>(std::ssize(list.segments));
  layout.size_bytes = arena.size_bytes();
  return layout;
}

std::int64_t BackwardState::size_bytes() const {
  std::size_t size = 0;
  for (const DeviceList& part : lists) size += part.size_bytes();
  return static_cast<std::int64_t>(size);
}

BackwardState backward_state(std::span<const BackwardInstance> instances,
                             const BackwardArgs& args) {
  BackwardState state;
  state.instance = find_instance(instances, args, false);
  state.softcap_instance = find_instance(instances, args, true);
  state.dout_type = args.dout.dtype;
  return state;
}

std::int32_t count_walkers(const BackwardState& state, std::int32_t device,
                           std::int32_t sm_margin) {
  const BackwardConfig& config = state.instance->config;
  return std::max(count_free_sms(device, sm_margin) * config.ctas_per_sm() / config.ctas(), 1);
}

BackwardState make_backward(std::span<const BackwardInstance> instances, const BackwardArgs& args,
                            const BackwardTuning& tuning, const InFlightKeys& coming) {
  if (tuning.head_walk > HeadWalk::InTurn) {
    throw invalid("head_walk", static_cast<int>(tuning.head_walk), "ByCost, Together or InTurn");
  }
  BackwardState state = backward_state(instances, args);
  const std::int32_t num_walkers = count_walkers(state, current_device(), tuning.sm_margin);
  state.list = build_backward_list(
      backward_problem(args, num_walkers, coming), args.slices, tile_shape(state.instance->config),
      {.packed_heads = tuning.packed_heads,
       .heads_per_item = tuning.heads_per_item,
       .section_heads = tuning.section_heads,
       .is_group_first = tuning.head_walk == HeadWalk::ByCost
                             ? std::nullopt
                             : std::optional(tuning.head_walk == HeadWalk::InTurn),
       .is_deterministic = tuning.is_deterministic,
       .is_plain = tuning.is_plain});
  BackwardList& list = state.list;
  state.num_ctas =
      to_int(std::min<std::int64_t>(list.num_items(), num_walkers)) * state.instance->config.ctas();
  keep_on_device_sync(state);
  return state;
}

PreparedRows prepared_rows(const BackwardArgs& args, const BackwardState& state, void* workspace) {
  const BackwardLayout layout = backward_layout(state);
  return {.packed = packed_rows(state.list),
          .lse_log2 = part_at<const float>(workspace, layout.lse_log2),
          .delta = part_at<const float>(workspace, layout.delta),
          .dout = half_dout(args, state, workspace)};
}

BackwardParams enqueue_main(const BackwardArgs& args, const BackwardState& state, void* workspace,
                            cudaStream_t stream) {
  const BackwardParams params = backward_params(args, state, workspace);
  launch_prepare(prepare_params(args, state, workspace), state, args.q.dtype, false, stream);
  add_sink_gradient(args, state, workspace, stream);
  if (state.parts.unordered != nullptr) launch_unordered(params, args, state, stream);
  launch_items(params, state, *instance_for(args, state), LaunchStart::Ahead, stream);
  return params;
}

void enqueue_backward(const BackwardArgs& args, const BackwardState& state, void* workspace,
                      cudaStream_t stream) {
  const BackwardParams params = enqueue_main(args, state, workspace, stream);
  if (params.query.rows_q > 0) instance_for(args, state)->convert_dq(params, stream);
}

BackwardRun::BackwardRun(const BackwardArgs& args, const BackwardState& state, RunMemory memory,
                         const BackwardArrivals& arrivals, cudaStream_t stream)
    : args_(args),
      state_(state),
      memory_(std::move(memory)),
      keys_(arrivals.keys),
      device_(current_device()),
      stream_(stream),
      params_(backward_params(args, state, memory_.workspace)),
      prepared_(prepare_params(args, state, memory_.workspace)) {
  if (!arrivals.gradients.empty()) keep_destinations(arrivals.gradients);
}

void BackwardRun::keep_destinations(std::span<const PartGradients> gradients) {
  destinations_ = part_at<KeyDestination>(memory_.workspace, backward_layout(state_).destinations);
  params_.key_gradients.destinations = destinations_;
  const auto destinations = key_destinations(args_, state_.list.segments, gradients);
  if (destinations.size() > StoredDestinations::kMost) {
    return store_destinations(destinations, destinations_, stream_);
  }
  std::ranges::copy(destinations, prepared_.destinations.values);
  prepared_.destinations.count = to_int(std::ssize(destinations));
  prepared_.destinations.target = destinations_;
}

AddressTable BackwardRun::places() const {
  if (destinations_ == nullptr) return {};
  constexpr std::size_t kData = offsetof(GradientRows, data);
  return {.records = reinterpret_cast<std::byte*>(destinations_),
          .num_records = to_int(std::ssize(state_.list.segments)),
          .record_bytes = sizeof(KeyDestination),
          .offsets = {offsetof(KeyDestination, dk) + kData, offsetof(KeyDestination, dv) + kData}};
}

void BackwardRun::prepare() {
  const DeviceScope scope(device_);
  const bool is_beside_push = has_flags() && keys_.is_beside_push;
  launch_prepare(prepared_, state_, args_.q.dtype, is_beside_push, stream_);
  if (has_flags()) add_sink_gradient(args_, state_, memory_.workspace, stream_);
}

void BackwardRun::attend() {
  const DeviceScope scope(device_);
  // Without flags the push comes right after `prepare`, because other ranks wait for it.
  if (!has_flags()) add_sink_gradient(args_, state_, memory_.workspace, stream_);
  BackwardParams params = params_;
  if (has_waiting_tiles()) {
    params.completion.is_next_beside = false;
    params.coming.flags.flags = keys_.flags;
    params.coming.flags.expected = keys_.expected;
    params.coming.flags.spin_budget_ns = keys_.spin_budget_ns;
  }
  launch_items(params, state_, *instance_for(args_, state_), LaunchStart::Ahead, stream_);
}

void BackwardRun::finish() {
  const DeviceScope scope(device_);
  if (has_waiting_tiles()) {
    BackwardParams params = params_;
    params.completion.is_next_beside = false;
    params.coming.is_for_deferred = true;
    params.items.ticket = params.coming.deferred_ticket;
    launch_items(params, state_, *instance_for(args_, state_), LaunchStart::Behind, stream_);
  }
  if (params_.query.rows_q > 0) instance_for(args_, state_)->convert_dq(params_, stream_);
}

}  // namespace magi::sm90
