// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/forward/forward.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "base/check.hpp"
#include "base/math.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/pool.hpp"
#include "cuda/tensor_map.hpp"
#include "kernels/sm90/checks.hpp"
#include "kernels/sm90/forward/combine.hpp"
#include "kernels/worklist/split_list.hpp"

namespace magi {
namespace {

constexpr int kRowsPerStore = 16;  // a warp stores its own rows

void check_outputs(const ForwardArgs& args) {
  const std::int64_t rows = args.q.shape[0];
  const std::int64_t heads = args.q.shape[1];
  sm90::check_shape("out", args.out, {rows, heads, args.v.shape[2]});
  if (args.out.dtype != args.q.dtype && args.out.dtype != DType::Float32) {
    throw invalid("out.dtype", dtype_name(args.out.dtype), "that of q, float32");
  }
  if (args.is_merging && args.out.dtype != DType::Float32) {
    throw invalid("out.dtype", dtype_name(args.out.dtype), "float32 where is_merging");
  }
  sm90::check_float_rows("lse", args.lse, rows, heads);
  if (args.max_logits.empty()) return;
  const TensorView& logits = args.max_logits;
  if (logits.dtype != DType::Float32) {
    throw invalid("max_logits.dtype", dtype_name(logits.dtype), "float32");
  }
  if (logits.rank != 1 || logits.shape[0] != heads || (heads > 1 && logits.stride[0] != 1)) {
    throw invalid("max_logits.shape", logits.shape[0], "[heads of q], contiguous");
  }
}

/// Where the kernel reads or writes memory through plain addresses.
void check_devices_of_rows(const ForwardArgs& args, std::int32_t device) {
  for (const auto& [name, tensor] :
       {std::pair{"lse", &args.lse}, {"max_logits", &args.max_logits}, {"sink", &args.sink}}) {
    if (tensor->empty() || tensor->device == device) continue;
    throw invalid(std::string(name) + ".device", tensor->device,
                  "that of q, " + std::to_string(device));
  }
}

void check_work(const ForwardArgs& args, const ForwardWork::State& work) {
  ForwardProblem problem = sm90::forward_problem(args);
  problem.cache_bytes = work.list.problem.cache_bytes;
  if (problem != work.list.problem ||
      args.q.dtype != work.instances.of(sm90::FeatureSet::Plain)->config.type) {
    throw invalid("work", "for other shapes or types", "a list made for these tensors");
  }
}

void set_tensors(sm90::ForwardParams& params, const ForwardArgs& args, const ForwardList& list,
                 std::int32_t keys) {
  params.q = make_tensor_map(args.q, {list.packed_heads, list.tile_tokens});
  // Without keys no tile is loaded; a descriptor needs some address all the same.
  const bool has_keys = args.k.shape[0] > 0;
  const TensorBox key_box{1, keys};
  params.k = make_tensor_map(has_keys ? args.k : args.q, key_box);
  params.v = make_tensor_map(has_keys ? args.v : args.q, key_box);
  if (args.out.dtype == DType::Float32) {
    params.out_float = sm90::strided_rows(args.out);
  } else {
    params.out = make_tensor_map(args.out, {list.packed_heads, kRowsPerStore / list.packed_heads});
  }
  params.lse = sm90::strided_rows(args.lse);
  params.sink = sm90::sink_rows(args.sink, args.params.sink_layout);
  params.max_logits = static_cast<float*>(args.max_logits.data);
}

void set_list(sm90::ForwardParams& params, const ForwardList& list,
              const sm90::ListOnDevice& parts) {
  params.tiles = parts.tiles;
  params.records = parts.records;
  params.ticket = parts.ticket;
  params.outcome = parts.outcome;
  params.wanted = parts.wanted;
  params.num_works = list.num_works;
  params.head_groups = list.head_groups;
  params.groups_per_section = list.groups_per_section;
  params.tile_tokens = list.tile_tokens;
  params.packed_heads = list.packed_heads;
  params.packed_shift = std::countr_zero(static_cast<unsigned>(list.packed_heads));
  params.heads_per_kv = list.problem.heads_q / list.problem.heads_kv;
  params.rows_q = list.problem.rows_q;
  params.dim_v = list.problem.dim_v;
  params.partial = parts.partial;
}

std::size_t partial_bytes_of(const ForwardArgs& args, const ForwardWork::State& work) {
  return sm90::partial_bytes(work.list.shape, args,
                             std::int64_t{work.num_slots} * work.list.head_groups);
}

/// A ticket counter and partial rows that a graph holds, and with them the list.
struct GraphTicket {
  GraphTicket(std::shared_ptr<const ForwardWork::State> list, const ForwardArgs& args)
      : work(std::move(list)),
        partial(partial_bytes_of(args, *work)),
        counter(work->tickets->take()) {}
  ~GraphTicket() { work->tickets->put_back(counter); }
  GraphTicket(const GraphTicket&) = delete;
  GraphTicket& operator=(const GraphTicket&) = delete;

  std::shared_ptr<const ForwardWork::State> work;
  DeviceBuffer partial;
  unsigned* counter;
};

void launch_work(const ForwardArgs& args, const ForwardWork::State& work, unsigned* ticket,
                 void* partial, cudaStream_t stream) {
  sm90::FeatureSet features = sm90::feature_set_of(args);
  if (work.num_splits > 0) features = std::max(features, sm90::FeatureSet::AnyOut);
  const sm90::ForwardInstance* instance = work.instances.of(features);
  const sm90::ListOnDevice parts{
      .tiles = static_cast<const TileWork*>(work.tiles.data()),
      .records = static_cast<const BandRecord*>(work.records.data()),
      .ticket = ticket,
      .splits = static_cast<const SplitTile*>(work.splits.data()),
      .partial = sm90::partial_rows(work.list.shape, args, partial,
                                    std::int64_t{work.num_slots} * work.list.head_groups)};
  sm90::launch_list(args, work.list, parts, *instance, work.num_ctas, stream);
  if (work.num_splits > 0) sm90::launch_combine(args, work.list, parts, work.num_splits, stream);
}

/// Partial rows in stream order.
void launch_with_pieces(const ForwardArgs& args, const ForwardWork::State& work, unsigned* ticket,
                        cudaStream_t stream) {
  void* partial = pool_allocate(partial_bytes_of(args, work), work.device, stream);
  try {
    launch_work(args, work, ticket, partial, stream);
  } catch (...) {
    pool_release(partial, stream);
    throw;
  }
  pool_release(partial, stream);
}

/// Into a graph that is being captured.
void capture_forward(const ForwardArgs& args, const std::shared_ptr<const ForwardWork::State>& work,
                     cudaGraph_t graph, cudaStream_t stream) {
  sm90::fill_max_logits(args, stream);
  if (work->num_ctas == 0) return;
  const auto ticket = std::make_shared<const GraphTicket>(work, args);
  keep_with_graph(graph, ticket);
  launch_work(args, *work, ticket->counter, ticket->partial.data(), stream);
}

}  // namespace

namespace sm90 {

ForwardProblem forward_problem(const ForwardArgs& args) {
  check_inputs(args.q, args.k, args.v);
  return {.rows_q = to_int(args.q.shape[0]),
          .rows_k = to_int(args.k.shape[0]),
          .heads_q = to_int(args.q.shape[1]),
          .heads_kv = to_int(args.k.shape[1]),
          .dim_qk = to_int(args.q.shape[2]),
          .dim_v = to_int(args.v.shape[2])};
}

void check_forward_call(const ForwardArgs& args, std::int32_t device) {
  check_inputs(args.q, args.k, args.v);
  check_outputs(args);
  if (!args.sink.empty()) check_sink("sink", args.sink, args.params.sink_layout, args.q);
  check_devices_of_rows(args, device);
  for (const auto& [name, tensor] :
       {std::pair{"q", &args.q}, {"k", &args.k}, {"v", &args.v}, {"out", &args.out}}) {
    check_copied(name, *tensor, device);
  }
  check_params(args.params);
}

InstanceSet find_instances(const ForwardArgs& args) {
  if (args.q.device < 0) throw invalid("q.device", args.q.device, "a CUDA ordinal");
  if (!device_info(args.q.device).is_hopper()) {
    throw invalid("q.device", device_name(args.q.device), "GPUs of compute capability 9.0");
  }
  const std::int32_t dim_qk = to_int(args.q.shape[2]);
  const std::int32_t dim_v = to_int(args.v.shape[2]);
  InstanceSet set;
  for (const FeatureSet features : {FeatureSet::Plain, FeatureSet::AnyOut, FeatureSet::General}) {
    set.by_features[static_cast<std::size_t>(features)] =
        find_forward_instance(args.q.dtype, dim_qk, dim_v, features);
    MAGI_CHECK(set.of(features) != nullptr);
  }
  return set;
}

FeatureSet feature_set_of(const ForwardArgs& args) {
  if (args.params.softcap > 0.0 || !args.max_logits.empty()) return FeatureSet::General;
  const bool is_plain = args.sink.empty() && !args.is_merging && args.out.dtype != DType::Float32;
  return is_plain ? FeatureSet::Plain : FeatureSet::AnyOut;
}

TileShape tile_shape(const ForwardInstance& instance) {
  return {
      .rows = instance.config.rows(), .keys = instance.config.keys, .trimmed_keys = kTrimmedKeys};
}

std::int32_t count_ctas(std::int32_t device, const ForwardTuning& tuning, std::int64_t num_items) {
  if (num_items > kMaxItems) {
    throw invalid("number of work items", num_items, "up to 2^31 - 1025");
  }
  return to_int(std::min<std::int64_t>(count_free_sms(device, tuning.sm_margin), num_items));
}

SplitRule split_rule(std::int32_t device, const ForwardTuning& tuning) {
  constexpr std::int32_t kPiecesPerSm = 2;
  if (tuning.max_pieces < 0 || tuning.max_pieces > kMaxSplits) {
    throw invalid("max_pieces", tuning.max_pieces, "0 to 4096");
  }
  if (tuning.piece_cost < 0) throw invalid("piece_cost", tuning.piece_cost, "0 or more");
  SplitRule rule;
  const std::int32_t filling = kPiecesPerSm * count_free_sms(device, tuning.sm_margin);
  rule.max_splits = tuning.max_pieces == 0 ? filling : tuning.max_pieces;
  if (tuning.piece_cost > 0) rule.min_cost = tuning.piece_cost;
  return rule;
}

std::size_t partial_bytes(const TileShape& shape, const ForwardArgs& args,
                          std::int64_t num_partials) {
  return static_cast<std::size_t>(num_partials * shape.rows * (args.v.shape[2] + 1)) *
         sizeof(float);
}

PartialRows partial_rows(const TileShape& shape, const ForwardArgs& args, void* data,
                         std::int64_t num_partials) {
  auto* out = static_cast<float*>(data);
  return {.out = out, .lse = out + num_partials * shape.rows * args.v.shape[2]};
}

void fill_max_logits(const ForwardArgs& args, cudaStream_t stream) {
  if (args.max_logits.empty() || args.is_merging) return;
  fill_no_logits(static_cast<float*>(args.max_logits.data), to_int(args.q.shape[1]), stream);
}

void launch_list(const ForwardArgs& args, const ForwardList& list, const ListOnDevice& parts,
                 const ForwardInstance& instance, std::int32_t num_ctas, cudaStream_t stream) {
  ForwardParams params;
  set_list(params, list, parts);
  set_tensors(params, args, list, instance.config.keys);
  params.score = score_scale(args.params, args.q.shape[2]);
  params.is_merging = args.is_merging;
  instance.launch(params, num_ctas, stream);
}

void launch_combine(const ForwardArgs& args, const ForwardList& list, const ListOnDevice& parts,
                    std::int32_t num_splits, cudaStream_t stream) {
  CombineParams params;
  params.partial = parts.partial;
  params.splits = parts.splits;
  params.outcome = parts.outcome;
  params.num_split_tiles = num_splits;
  params.packed_heads = list.packed_heads;
  params.tile_rows = list.shape.rows;
  params.heads_q = list.problem.heads_q;
  params.rows_q = list.problem.rows_q;
  params.dim_v = list.problem.dim_v;
  params.out = strided_rows(args.out);
  params.lse = strided_rows(args.lse);
  params.is_merging = args.is_merging;
  params.sink = sink_rows(args.sink, args.params.sink_layout);
  launch_combine_kernel(params, std::int64_t{num_splits} * list.head_groups * list.shape.rows,
                        stream);
}

ForwardWork::State make_work(const InstanceSet& instances, const ForwardProblem& problem,
                             std::span<const BandSlice> slices, const ForwardTuning& tuning) {
  ForwardWork::State state;
  const TileShape shape = tile_shape(*instances.of(FeatureSet::Plain));
  state.instances = instances;
  state.device = current_device();
  state.list = tuning.packed_heads > 0
                   ? build_forward_list(problem, slices, shape, tuning.packed_heads)
                   : build_forward_list(problem, slices, shape);
  ForwardList& list = state.list;
  split_long_tiles(list, split_rule(state.device, tuning));
  state.num_splits = list.num_split_tiles();
  state.num_slots = list.num_slots();
  state.num_ctas = count_ctas(state.device, tuning, list.num_items());
  state.tiles = to_device_sync<TileWork>(list.tiles);
  state.records = to_device_sync<BandRecord>(list.records);
  state.splits = to_device_sync<SplitTile>(list.split_tiles);
  state.tickets = std::make_unique<StreamCounters>();
  list.tiles = {};
  list.records = {};
  list.split_tiles = {};
  return state;
}

void enqueue_forward(const ForwardArgs& args, const ForwardWork::State& work, cudaStream_t stream) {
  fill_max_logits(args, stream);
  if (work.num_ctas == 0) return;
  unsigned* ticket = work.tickets->of_stream(stream);
  if (work.num_splits > 0) {
    launch_with_pieces(args, work, ticket, stream);
  } else {
    launch_work(args, work, ticket, nullptr, stream);
  }
}

}  // namespace sm90

ForwardWork::ForwardWork(const ForwardArgs& args, const ForwardTuning& tuning) {
  const ForwardProblem problem = sm90::forward_problem(args);
  const DeviceScope scope(args.q.device);
  const sm90::InstanceSet instances = sm90::find_instances(args);
  state_ = std::make_shared<const State>(sm90::make_work(instances, problem, args.slices, tuning));
}

ForwardWork::~ForwardWork() = default;
ForwardWork::ForwardWork(ForwardWork&&) noexcept = default;
ForwardWork& ForwardWork::operator=(ForwardWork&&) noexcept = default;

std::int32_t ForwardWork::packed_heads() const { return state_->list.packed_heads; }

std::int32_t ForwardWork::num_pieces() const {
  return state_->num_slots * state_->list.head_groups;
}

std::int64_t ForwardWork::size_bytes() const {
  return static_cast<std::int64_t>(state_->tiles.size_bytes() + state_->records.size_bytes() +
                                   state_->splits.size_bytes() + state_->tickets->size_bytes());
}

void attention_forward_cuda(const ForwardArgs& args, const ForwardWork& work, void* stream) {
  const ForwardWork::State& state = *work.state();
  sm90::check_forward_call(args, state.device);
  check_work(args, state);
  const DeviceScope scope(state.device);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (cudaGraph_t graph = graph_of_capture(cuda_stream); graph != nullptr) {
    capture_forward(args, work.state(), graph, cuda_stream);
  } else {
    sm90::enqueue_forward(args, state, cuda_stream);
  }
}

}  // namespace magi
