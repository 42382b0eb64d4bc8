// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/forward/forward.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>

#include "base/check.hpp"
#include "cuda/device.hpp"
#include "cuda/tensor_map.hpp"

namespace magi {
namespace {

constexpr int kRowsPerStore = 16;  // a warp stores its own rows
constexpr std::int32_t kMaxSinks = 8;
constexpr double kSlackLog2 = 8.0;  // P reaches 2^8: far from what float16 holds

std::int32_t to_int(std::int64_t value) { return static_cast<std::int32_t>(value); }

void check_shape(const char* name, const TensorView& tensor, std::array<std::int64_t, 3> shape) {
  const bool is_equal =
      tensor.rank == 3 && std::equal(shape.begin(), shape.end(), tensor.shape.begin());
  if (is_equal) return;
  std::string seen = "of rank " + std::to_string(tensor.rank) + ", [";
  for (std::size_t i = 0; i < 3; ++i)
    seen += std::to_string(tensor.shape[i]) + (i < 2 ? ", " : "]");
  throw invalid(name, seen,
                "[" + std::to_string(shape[0]) + ", " + std::to_string(shape[1]) + ", " +
                    std::to_string(shape[2]) + "]");
}

void check_dim(const char* name, std::int64_t dim) {
  if (dim < 8 || dim > 128 || dim % 8 != 0) {
    throw invalid(name, dim, "multiples of 8 from 8 to 128");
  }
}

void check_rows(const char* name, std::int64_t rows) {
  if (rows < 0 || rows > kMaxRows) throw invalid(name, rows, "0 to 2^30 - 1");
}

/// What a work list depends on.
void check_problem_tensors(const ForwardArgs& args) {
  const DType type = args.q.dtype;
  if (type != DType::BFloat16 && type != DType::Float16) {
    throw invalid("q.dtype", dtype_name(type), "bfloat16, float16");
  }
  if (args.k.dtype != type) throw invalid("k.dtype", dtype_name(args.k.dtype), "that of q");
  if (args.v.dtype != type) throw invalid("v.dtype", dtype_name(args.v.dtype), "that of q");
  check_rows("q.shape[0]", args.q.shape[0]);
  check_rows("k.shape[0]", args.k.shape[0]);
  check_dim("q.shape[2]", args.q.shape[2]);
  check_dim("v.shape[2]", args.v.shape[2]);
  check_shape("q", args.q, {args.q.shape[0], args.q.shape[1], args.q.shape[2]});
  check_shape("k", args.k, {args.k.shape[0], args.k.shape[1], args.q.shape[2]});
  check_shape("v", args.v, {args.k.shape[0], args.k.shape[1], args.v.shape[2]});
}

void check_float_rows(const char* name, const TensorView& tensor) {
  if (tensor.dtype != DType::Float32) {
    throw invalid(std::string(name) + ".dtype", dtype_name(tensor.dtype), "float32");
  }
  if (tensor.empty()) throw invalid(std::string(name) + ".data", "null", "device memory");
}

void check_outputs(const ForwardArgs& args) {
  const std::int64_t rows = args.q.shape[0];
  const std::int64_t heads = args.q.shape[1];
  check_shape("out", args.out, {rows, heads, args.v.shape[2]});
  if (args.out.dtype != args.q.dtype && args.out.dtype != DType::Float32) {
    throw invalid("out.dtype", dtype_name(args.out.dtype), "that of q, float32");
  }
  if (args.is_merging && args.out.dtype != DType::Float32) {
    throw invalid("out.dtype", dtype_name(args.out.dtype), "float32 where is_merging");
  }
  check_float_rows("lse", args.lse);
  if (args.lse.rank != 2 || args.lse.shape[0] != rows || args.lse.shape[1] != heads) {
    throw invalid("lse.shape", args.lse.shape[0], "[rows of q, heads of q]");
  }
  if (args.max_logits.empty()) return;
  check_float_rows("max_logits", args.max_logits);
  if (args.max_logits.rank != 1 || args.max_logits.shape[0] != heads ||
      (heads > 1 && args.max_logits.stride[0] != 1)) {
    throw invalid("max_logits.shape", args.max_logits.shape[0], "[heads of q], contiguous");
  }
}

void check_sink(const ForwardArgs& args) {
  const TensorView& sink = args.sink;
  if (sink.empty()) return;
  check_float_rows("sink", sink);
  const bool is_per_row = args.params.sink_layout == SinkLayout::RowSinkHead;
  const std::int32_t rank = is_per_row ? 3 : 2;
  if (sink.rank != rank) throw invalid("sink.rank", sink.rank, is_per_row ? "3" : "2");
  const auto last = static_cast<std::size_t>(rank - 1);
  const std::int64_t count = sink.shape[last - 1];
  if (count < 1 || count > kMaxSinks) throw invalid("number of sinks", count, "1 to 8");
  if (sink.shape[last] != args.q.shape[1]) {
    throw invalid("sink's heads", sink.shape[last], "heads of q");
  }
  if (is_per_row && sink.shape[0] != args.q.shape[0]) {
    throw invalid("sink.shape[0]", sink.shape[0], "rows of q");
  }
  if (sink.stride[last] != 1 && sink.shape[last] > 1) {
    throw invalid("sink's head stride", sink.stride[last], "1");
  }
}

void check_work(const ForwardArgs& args, const ForwardWork::State& work) {
  ForwardProblem problem = sm90::forward_problem(args);
  problem.cache_bytes = work.list.problem.cache_bytes;
  if (problem != work.list.problem || args.q.dtype != work.instance->config.type) {
    throw invalid("work", "for other shapes or types", "a list made for these tensors");
  }
}

sm90::ScoreScale score_scale(const ForwardArgs& args) {
  const double softmax_scale = args.params.softmax_scale > 0.0
                                   ? args.params.softmax_scale
                                   : 1.0 / std::sqrt(static_cast<double>(args.q.shape[2]));
  const double softcap = args.params.softcap;
  const double unit = softcap > 0.0 ? softcap : softmax_scale;
  return {.exponent_scale = static_cast<float>(unit * std::numbers::log2e),
          .cap_scale = softcap > 0.0 ? static_cast<float>(softmax_scale / softcap) : 0.0f,
          .softmax_scale = static_cast<float>(softmax_scale),
          .slack = static_cast<float>(kSlackLog2 / (softmax_scale * std::numbers::log2e))};
}

sm90::FloatRows float_rows(const TensorView& tensor) {
  return {static_cast<float*>(tensor.data), tensor.stride[0], tensor.stride[1]};
}

sm90::SinkRows sink_rows(const ForwardArgs& args) {
  if (args.sink.empty()) return {};
  const auto* data = static_cast<const float*>(args.sink.data);
  if (args.params.sink_layout == SinkLayout::SinkHead) {
    return {data, 0, args.sink.stride[0], to_int(args.sink.shape[0])};
  }
  return {data, args.sink.stride[0], args.sink.stride[1], to_int(args.sink.shape[1])};
}

void set_tensors(sm90::ForwardParams& params, const ForwardArgs& args, const ForwardList& list) {
  params.q = make_tensor_map(args.q, {list.packed_heads, list.tile_tokens});
  // Without keys no tile is loaded; a descriptor needs some address all the same.
  const bool has_keys = args.k.shape[0] > 0;
  const TensorBox key_box{1, list.shape.keys};
  params.k = make_tensor_map(has_keys ? args.k : args.q, key_box);
  params.v = make_tensor_map(has_keys ? args.v : args.q, key_box);
  if (args.out.dtype == DType::Float32) {
    params.out_float = float_rows(args.out);
  } else {
    params.out = make_tensor_map(args.out, {list.packed_heads, kRowsPerStore / list.packed_heads});
  }
  params.lse = float_rows(args.lse);
  params.sink = sink_rows(args);
  params.max_logits = static_cast<float*>(args.max_logits.data);
}

void set_list(sm90::ForwardParams& params, const ForwardList& list,
              const sm90::ListOnDevice& parts) {
  params.tiles = parts.tiles;
  params.records = parts.records;
  params.ticket = parts.ticket;
  params.chosen_heads = parts.chosen_heads;
  params.num_tiles = list.num_tiles();
  params.num_items = params.num_tiles * list.head_groups;
  params.head_groups = list.head_groups;
  params.groups_per_section = list.groups_per_section;
  params.tile_tokens = list.tile_tokens;
  params.packed_heads = list.packed_heads;
  params.packed_shift = std::countr_zero(static_cast<unsigned>(list.packed_heads));
  params.heads_per_kv = list.problem.heads_q / list.problem.heads_kv;
  params.rows_q = list.problem.rows_q;
  params.rows_k = list.problem.rows_k;
  params.dim_v = list.problem.dim_v;
}

}  // namespace

namespace sm90 {

ForwardProblem forward_problem(const ForwardArgs& args) {
  check_problem_tensors(args);
  return {.rows_q = to_int(args.q.shape[0]),
          .rows_k = to_int(args.k.shape[0]),
          .heads_q = to_int(args.q.shape[1]),
          .heads_kv = to_int(args.k.shape[1]),
          .dim_qk = to_int(args.q.shape[2]),
          .dim_v = to_int(args.v.shape[2])};
}

void check_forward_call(const ForwardArgs& args, std::int32_t device) {
  check_problem_tensors(args);
  check_outputs(args);
  check_sink(args);
  for (const auto& [name, tensor] :
       {std::pair{"q", &args.q}, {"k", &args.k}, {"v", &args.v}, {"out", &args.out}}) {
    if (tensor->device != device) {
      throw invalid(std::string(name) + ".device", tensor->device,
                    "the work list's device " + std::to_string(device));
    }
    if (tensor->empty() && tensor->num_elements() > 0) {
      throw invalid(std::string(name) + ".data", "null", "device memory");
    }
    check_copyable(name, *tensor);
  }
  if (args.params.softmax_scale < 0.0) {
    throw invalid("softmax_scale", args.params.softmax_scale, "0 (default) or positive");
  }
  if (args.params.softcap < 0.0) throw invalid("softcap", args.params.softcap, "0 or positive");
}

InstancePair find_instances(const ForwardArgs& args) {
  const DeviceInfo info = device_info(args.q.device);
  if (!info.is_hopper()) {
    throw invalid("q.device", info.name, "GPUs of compute capability 9.0");
  }
  const auto dim = to_int(std::max(args.q.shape[2], args.v.shape[2]));
  const InstancePair pair{find_forward_instance(args.q.dtype, dim, false),
                          find_forward_instance(args.q.dtype, dim, true)};
  MAGI_CHECK(pair.plain != nullptr && pair.softcap != nullptr);
  return pair;
}

TileShape tile_shape(const ForwardInstance& instance) {
  return {
      .rows = instance.config.rows(), .keys = instance.config.keys, .trimmed_keys = kTrimmedKeys};
}

std::int32_t count_ctas(std::int32_t device, const ForwardTuning& tuning, std::int64_t num_items) {
  if (num_items > std::numeric_limits<std::int32_t>::max()) {
    throw invalid("number of work items", num_items, "up to 2^31 - 1");
  }
  const std::int32_t num_sms = device_info(device).num_sms;
  if (tuning.sm_margin < 0 || tuning.sm_margin >= num_sms) {
    throw invalid("sm_margin", tuning.sm_margin, "0 to one less than the device's SMs");
  }
  return to_int(std::min<std::int64_t>(num_sms - tuning.sm_margin, num_items));
}

void fill_max_logits(const ForwardArgs& args, cudaStream_t stream) {
  if (args.max_logits.empty() || args.is_merging) return;
  fill_no_logits(static_cast<float*>(args.max_logits.data), to_int(args.q.shape[1]), stream);
}

void launch_list(const ForwardArgs& args, const ForwardList& list, const ListOnDevice& parts,
                 const ForwardInstance& instance, std::int32_t num_ctas, cudaStream_t stream) {
  ForwardParams params;
  set_list(params, list, parts);
  set_tensors(params, args, list);
  params.score = score_scale(args);
  params.is_merging = args.is_merging;
  instance.launch(params, num_ctas, stream);
}

ForwardWork::State make_work(const ForwardInstance& instance, const ForwardProblem& problem,
                             std::span<const BandSlice> slices, const ForwardTuning& tuning) {
  ForwardWork::State state;
  const TileShape shape = tile_shape(instance);
  state.instance = &instance;
  state.device = current_device();
  state.list = tuning.packed_heads > 0
                   ? build_forward_list(problem, slices, shape, tuning.packed_heads)
                   : build_forward_list(problem, slices, shape);
  ForwardList& list = state.list;
  state.num_ctas = count_ctas(state.device, tuning, list.num_items());
  state.tiles = to_device_sync<TileWork>(list.tiles);
  state.records = to_device_sync<BandRecord>(list.records);
  const unsigned zero = 0;
  state.ticket = to_device_sync<unsigned>({&zero, 1});
  list.tiles = {};
  list.records = {};
  return state;
}

void enqueue_forward(const ForwardArgs& args, const ForwardWork::State& work, cudaStream_t stream) {
  fill_max_logits(args, stream);
  if (work.num_ctas == 0) return;
  const ForwardInstance* instance =
      args.params.softcap > 0.0 ? work.softcap_instance : work.instance;
  MAGI_CHECK(instance != nullptr);
  const ListOnDevice parts{.tiles = static_cast<const TileWork*>(work.tiles.data()),
                           .records = static_cast<const BandRecord*>(work.records.data()),
                           .ticket = static_cast<unsigned*>(work.ticket.data())};
  launch_list(args, work.list, parts, *instance, work.num_ctas, stream);
}

}  // namespace sm90

ForwardWork::ForwardWork(const ForwardArgs& args, const ForwardTuning& tuning) {
  const ForwardProblem problem = sm90::forward_problem(args);
  const DeviceScope scope(args.q.device);
  const sm90::InstancePair instances = sm90::find_instances(args);
  state_ = std::make_unique<State>(sm90::make_work(*instances.plain, problem, args.slices, tuning));
  state_->softcap_instance = instances.softcap;
}

ForwardWork::~ForwardWork() = default;
ForwardWork::ForwardWork(ForwardWork&&) noexcept = default;
ForwardWork& ForwardWork::operator=(ForwardWork&&) noexcept = default;

std::int32_t ForwardWork::packed_heads() const { return state_->list.packed_heads; }

std::int64_t ForwardWork::size_bytes() const {
  return static_cast<std::int64_t>(state_->tiles.size_bytes() + state_->records.size_bytes() +
                                   state_->ticket.size_bytes());
}

void attention_forward_cuda(const ForwardArgs& args, const ForwardWork& work, void* stream) {
  const ForwardWork::State& state = work.state();
  sm90::check_forward_call(args, state.device);
  check_work(args, state);
  const DeviceScope scope(state.device);
  sm90::enqueue_forward(args, state, static_cast<cudaStream_t>(stream));
}

}  // namespace magi
