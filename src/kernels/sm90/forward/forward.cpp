// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/forward/forward.hpp"

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>

#include "base/check.hpp"
#include "cuda/arena.hpp"
#include "cuda/device.hpp"
#include "cuda/tensor_map.hpp"
#include "kernels/schedule/host/forward_arrivals.hpp"
#include "kernels/schedule/host/split_list.hpp"
#include "kernels/sm90/conversions.hpp"
#include "kernels/sm90/forward/combine.hpp"
#include "kernels/sm90/poison.hpp"

namespace magi::sm90 {
namespace {

constexpr int kRowsPerStore = 16;  // a warp stores its own rows

/// Descriptors of K and V from row `own_rows` on, and of the rows before it.
void set_keys(ForwardParams& params, const ForwardArgs& args, const ListOnDevice& parts,
              TensorBox box) {
  // Without keys no tile is loaded; a descriptor needs some address all the same.
  const auto map_of = [&](const TensorView& keys) {
    return make_tensor_map(keys.shape[0] > 0 ? keys : args.q, box);
  };
  const auto window_of = [&](const TensorView& keys) {
    return make_window_map(keys.shape[0] > 0 ? keys : args.q, box.tokens / 2);
  };
  if (parts.own_k.data == nullptr) {
    params.k = map_of(args.k);
    params.v = map_of(args.v);
    params.v_window = window_of(args.v);
    return;
  }
  params.own_rows = to_int(parts.own_k.shape[0]);
  params.own_k = map_of(parts.own_k);
  params.own_v = map_of(parts.own_v);
  params.own_v_window = window_of(parts.own_v);
  const TensorView others = args.v.slice(0, params.own_rows, args.v.shape[0]);
  params.k = map_of(args.k.slice(0, params.own_rows, args.k.shape[0]));
  params.v = map_of(others);
  params.v_window = window_of(others);
}

void set_tensors(ForwardParams& params, const ForwardArgs& args, const ForwardList& list,
                 const ListOnDevice& parts, const ForwardConfig& config) {
  const bool is_float = args.out.dtype == DType::Float32;
  (is_float ? params.out_float : params.out_half) = strided_rows(args.out);
  if (config.mma_warps > 0) {
    params.q_rows = strided_rows(args.q);
    params.k_rows = strided_rows(args.k);
    params.v_rows = strided_rows(args.v);
    params.dim_qk = list.problem.dim_qk;
  } else {
    params.q = make_tensor_map(args.q, {list.packed_heads, list.tile_tokens / config.q_parts()});
    set_keys(params, args, parts, {1, config.keys});
    if (!is_float) {
      params.out =
          make_tensor_map(args.out, {list.packed_heads, kRowsPerStore / list.packed_heads});
    }
  }
  params.lse = strided_rows(args.lse);
  params.sink = sink_rows(args.sink, args.params.sink_layout);
  params.max_logits = static_cast<float*>(args.max_logits.data);
}

void set_list(ForwardParams& params, const ForwardList& list, const ListOnDevice& parts) {
  params.tiles = parts.tiles;
  params.records = parts.records;
  params.ticket = parts.ticket;
  params.outcome = parts.outcome;
  params.wanted = parts.wanted;
  params.num_works = list.num_works;
  params.head_groups = list.head_groups;
  params.groups_per_section = list.groups_per_section;
  params.num_in_flight_works = list.num_in_flight_works;
  params.in_flight_groups_per_section = list.in_flight_groups_per_section;
  params.tile_tokens = list.tile_tokens;
  params.packed_heads = list.packed_heads;
  params.packed_shift = std::countr_zero(static_cast<unsigned>(list.packed_heads));
  params.heads_per_kv = list.problem.heads_q / list.problem.heads_kv;
  params.rows_q = list.problem.rows_q;
  params.dim_v = list.problem.dim_v;
  params.partial = parts.partial;
  params.arrivals = parts.arrivals;
  params.heads_per_arrival_chunk = list.problem.heads_q / parts.num_arrival_chunks;
  params.is_for_deferred = parts.is_for_deferred;
  params.is_beside = parts.is_beside;
  params.deferred = parts.deferred;
}

/// Finds where the parts of a run's list lie.
ListOnDevice parts_of(const ForwardState& state, const RunMemory& memory) {
  ListOnDevice parts{.tiles = static_cast<const TileWork*>(state.tiles.data()),
                     .records = static_cast<const BandRecord*>(state.records.data()),
                     .ticket = memory.counters + kTicket,
                     .splits = static_cast<const SplitTile*>(state.splits.data())};
  const std::int64_t dim_v = state.list.problem.dim_v;
  auto* items = part_at<std::int32_t>(
      memory.workspace,
      static_cast<std::size_t>(partial_bytes(state.list.shape, dim_v, state.num_splits())));
  if (state.num_split_tiles > 0) {
    parts.partial = partial_rows(state.list.shape, dim_v, memory.workspace, state.num_splits());
  }
  parts.num_arrival_chunks = state.num_arrival_chunks;
  parts.deferred = {.items = items,
                    .count = memory.counters + kNumDeferred,
                    .num_ended = memory.counters + kNumEnded};
  return parts;
}

ForwardParams list_params(const ForwardArgs& args, const ForwardList& list,
                          const ListOnDevice& parts, const ForwardInstance& instance) {
  ForwardParams params;
  set_list(params, list, parts);
  set_tensors(params, args, list, parts, instance.config);
  params.score = score_scale(args.params, args.q.shape[2]);
  params.is_merging = args.is_merging;
  return params;
}

}  // namespace

ForwardProblem forward_problem(const ForwardArgs& args) {
  return {.rows_q = to_int(args.q.shape[0]),
          .rows_k = to_int(args.k.shape[0]),
          .heads_q = to_int(args.q.shape[1]),
          .heads_kv = to_int(args.k.shape[1]),
          .dim_qk = to_int(args.q.shape[2]),
          .dim_v = to_int(args.v.shape[2]),
          .cache_bytes = cache_bytes()};
}

InstanceSet find_instances(std::span<const ForwardInstance> instances, const ForwardArgs& args) {
  const auto find = [&](FeatureSet features) {
    const auto found = std::ranges::find_if(instances, [&](const ForwardInstance& instance) {
      const ForwardConfig& config = instance.config;
      return config.type == args.q.dtype && config.dim_qk >= args.q.shape[2] &&
             config.dim_v >= args.v.shape[2] && config.features >= features;
    });
    MAGI_CHECK(found != instances.end());
    return std::to_address(found);
  };
  return {{find(FeatureSet::Plain), find(FeatureSet::AnyOut), find(FeatureSet::General)}};
}

FeatureSet feature_set_of(const ForwardArgs& args) {
  if (args.params.softcap > 0.0 || !args.max_logits.empty()) return FeatureSet::General;
  const bool is_plain = args.sink.empty() && !args.is_merging && args.out.dtype != DType::Float32;
  return is_plain ? FeatureSet::Plain : FeatureSet::AnyOut;
}

TileShape tile_shape(const ForwardInstance& instance) {
  const ForwardConfig& config = instance.config;
  return {.rows = config.rows(), .keys = config.keys, .trimmed_keys = config.trimmed_keys};
}

std::int32_t count_ctas(std::int32_t device, const ForwardTuning& tuning, std::int64_t num_items,
                        std::int32_t ctas_per_sm) {
  if (num_items > kMaxItems) {
    throw invalid("number of work items", num_items, "up to 2^31 - 1025");
  }
  const std::int32_t num_ctas = count_free_sms(device, tuning.sm_margin) * ctas_per_sm;
  return to_int(std::min<std::int64_t>(num_ctas, num_items));
}

SplitRule split_rule(std::int32_t device, const ForwardTuning& tuning) {
  constexpr std::int32_t kSplitsPerSm = 2;
  if (tuning.max_pieces < 0 || tuning.max_pieces > kMaxSplits) {
    throw invalid("max_pieces", tuning.max_pieces, "0 to 4096");
  }
  if (tuning.piece_cost < 0) throw invalid("piece_cost", tuning.piece_cost, "0 or more");
  SplitRule rule;
  const std::int32_t filling = kSplitsPerSm * count_free_sms(device, tuning.sm_margin);
  rule.max_splits = tuning.max_pieces == 0 ? filling : tuning.max_pieces;
  if (tuning.piece_cost > 0) rule.min_cost = tuning.piece_cost;
  return rule;
}

std::int64_t partial_bytes(const TileShape& shape, std::int64_t dim_v, std::int64_t num_partials) {
  return num_partials * shape.rows * (dim_v + 1) * std::int64_t{sizeof(float)};
}

PartialRows partial_rows(const TileShape& shape, std::int64_t dim_v, void* data,
                         std::int64_t num_partials) {
  auto* out = static_cast<float*>(data);
  return {.out = out, .lse = out + num_partials * shape.rows * dim_v};
}

std::int64_t ForwardState::size_bytes() const {
  return static_cast<std::int64_t>(tiles.size_bytes() + records.size_bytes() + splits.size_bytes());
}

std::int64_t ForwardState::workspace_bytes() const {
  return partial_bytes(list.shape, list.problem.dim_v, num_splits()) +
         list.num_waiting_items() * std::int64_t{sizeof(std::int32_t)};
}

void fill_max_logits(const ForwardArgs& args, cudaStream_t stream) {
  if (args.max_logits.empty() || args.is_merging) return;
  fill_no_logits(static_cast<float*>(args.max_logits.data), to_int(args.q.shape[1]), stream);
}

void launch_list(const ForwardArgs& args, const ForwardList& list, const ListOnDevice& parts,
                 const ForwardInstance& instance, std::int32_t num_ctas, cudaStream_t stream) {
  instance.launch(list_params(args, list, parts, instance), num_ctas, stream);
}

void launch_combine(const ForwardArgs& args, const ForwardList& list, const ListOnDevice& parts,
                    std::int32_t num_split_tiles, cudaStream_t stream) {
  CombineParams params;
  params.partial = parts.partial;
  params.splits = parts.splits;
  params.outcome = parts.outcome;
  params.num_split_tiles = num_split_tiles;
  params.packed_heads = list.packed_heads;
  params.tile_rows = list.shape.rows;
  params.heads_q = list.problem.heads_q;
  params.rows_q = list.problem.rows_q;
  params.dim_v = list.problem.dim_v;
  params.out = strided_rows(args.out);
  params.lse = strided_rows(args.lse);
  params.is_merging = args.is_merging;
  params.sink = sink_rows(args.sink, args.params.sink_layout);
  launch_combine_kernel(params, std::int64_t{num_split_tiles} * list.head_groups * list.shape.rows,
                        stream);
}

ForwardState make_forward(const InstanceSet& instances, const ForwardProblem& problem,
                          std::span<const BandSlice> slices, const ForwardTuning& tuning,
                          const InFlightKeys& coming) {
  ForwardState state;
  const std::int32_t device = current_device();
  const TileShape shape = tile_shape(*instances.of(FeatureSet::Plain));
  state.instances = instances;
  const std::vector<BandSlice> cut = cut_at_own_rows(coming, slices);
  ForwardProblem cut_problem = problem;
  cut_problem.key_cut = coming.own_rows;
  state.list = tuning.packed_heads > 0
                   ? build_forward_list(cut_problem, cut, shape, tuning.packed_heads)
                   : build_forward_list(cut_problem, cut, shape);
  ForwardList& list = state.list;
  split_long_tiles(list, split_rule(device, tuning));
  if (!coming.empty()) order_by_arrival(list, coming, count_free_sms(device, tuning.sm_margin));
  state.num_split_tiles = list.num_split_tiles();
  state.num_slots = list.num_slots();
  state.num_sources = coming.num_sources;
  state.num_arrival_chunks = coming.num_sections;
  state.num_ctas = count_ctas(device, tuning, list.num_items(),
                              instances.of(FeatureSet::Plain)->config.ctas_per_sm());
  const auto lists = lists_to_device_sync({std::as_bytes(std::span(list.tiles)),
                                           std::as_bytes(std::span(list.records)),
                                           std::as_bytes(std::span(list.split_tiles))});
  state.tiles = lists[0];
  state.records = lists[1];
  state.splits = lists[2];
  list.tiles = {};
  list.records = {};
  list.split_tiles = {};
  return state;
}

ForwardRun::ForwardRun(const ForwardArgs& args, const ForwardState& state, RunMemory memory,
                       const KeyArrivals& arrivals, cudaStream_t stream)
    : args_(args),
      state_(state),
      memory_(std::move(memory)),
      arrivals_(arrivals),
      device_(current_device()),
      stream_(stream) {
  fill_max_logits(args, stream);
  if (state.num_ctas == 0) return;
  FeatureSet features = feature_set_of(args);
  if (state.num_split_tiles > 0) features = std::max(features, FeatureSet::AnyOut);
  instance_ = state.instances.of(features);
  parts_ = parts_of(state, memory_);
  parts_.own_k = arrivals.own_k;
  parts_.own_v = arrivals.own_v;
  if (arrivals.flags == nullptr) return;
  parts_.arrivals = {.flags = arrivals.flags,
                     .expected = arrivals.expected,
                     .spin_budget_ns = arrivals.spin_budget_ns,
                     .num_sources = state.num_sources};
  parts_.is_beside = arrivals.is_beside_push;
}

ForwardRun::~ForwardRun() {
  if (!may_defer_) return;
  cuda_forget(cudaMemsetAsync(parts_.deferred.count, 0, sizeof(unsigned), stream_));
}

void ForwardRun::attend() {
  if (state_.num_ctas == 0) return;
  const DeviceScope scope(device_);
  params_ = list_params(args_, state_.list, parts_, *instance_);
  instance_->launch(params_, state_.num_ctas, stream_);
  may_defer_ = arrivals_.flags != nullptr;
}

void ForwardRun::finish() {
  if (state_.num_ctas == 0) return;
  const DeviceScope scope(device_);
  // Launched behind the wait for all keys: normally nothing is deferred.
  if (std::exchange(may_defer_, false) && state_.list.num_waiting_works > 0) {
    params_.arrivals = {};
    params_.is_beside = false;
    params_.is_for_deferred = true;
    const auto num_ctas = std::min<std::int64_t>(state_.num_ctas, state_.list.num_waiting_items());
    instance_->launch(params_, to_int(num_ctas), stream_);
  }
  if (state_.num_split_tiles > 0) {
    launch_combine(args_, state_.list, parts_, state_.num_split_tiles, stream_);
  }
}

void enqueue_forward(const ForwardArgs& args, const ForwardState& state, const RunMemory& memory,
                     cudaStream_t stream) {
  ForwardRun run(args, state, {memory.counters, memory.workspace}, {}, stream);
  run.attend();
  run.finish();
}

}  // namespace magi::sm90
