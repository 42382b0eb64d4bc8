// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <string>

#include "base/check.hpp"
#include "cuda/arena.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream_buffer.hpp"
#include "kernels/attention/built_in.hpp"
#include "kernels/attention/checks.hpp"
#include "kernels/attention/combine.hpp"
#include "kernels/sm90/listed/latent.hpp"
#include "kernels/sm90/listed/listed_backward.hpp"
#include "kernels/sm90/listed/listed_forward.hpp"
#include "magi/key_lists.hpp"

// Calls under lists of keys in device memory. One architecture gathers keys so far.
namespace magi {
namespace {

constexpr const char* kWithLatents = " with head dims 576 and 512 under lists on a GPU";

/// The limits of kernels that gather keys: those of slices but for head dims.
AttentionLimits listed_limits() {
  AttentionLimits limits = sm90_backend()->limits();
  limits.dim_qk.max = sm90::kLatentDim;
  limits.dim_v.max = sm90::kLatentValueDim;
  return limits;
}

/// Throws unless values are the first columns of keys.
void check_latents(const TensorView& k, const TensorView& v) {
  const bool has_strides =
      v.stride[0] == k.stride[0] && (k.shape[1] == 1 || v.stride[1] == k.stride[1]);
  if (v.num_elements() == 0 || (v.data == k.data && has_strides)) return;
  throw invalid("v", "apart from k", std::string("k[..., :512], in its memory,") + kWithLatents);
}

/// The arguments with a dv in dk where latents have none.
BackwardArgs with_dv(const BackwardArgs& args) {
  BackwardArgs whole = args;
  if (!sm90::has_latent_dims(args.q, args.v)) return whole;
  if (args.dv.data != nullptr && args.dv.num_elements() > 0) {
    throw invalid("dv", "given", std::string("none, as it is added to dk,") + kWithLatents);
  }
  whole.dv = args.dk;
  whole.dv.shape[2] = sm90::kLatentValueDim;
  return whole;
}

/// Throws for what the kernels that gather keys do not take, beyond those of slices.
template <typename Args>
void check_listed_dims(const Args& args) {
  if (sm90::has_latent_dims(args.q, args.v)) {
    if (args.q.dtype != DType::BFloat16) {
      throw invalid("q.dtype", dtype_name(args.q.dtype), std::string("bfloat16") + kWithLatents);
    }
    if (args.params.softcap > 0.0) {
      throw invalid("softcap", args.params.softcap, std::string("0 (off)") + kWithLatents);
    }
    return check_latents(args.k, args.v);
  }
  for (const auto& [name, dim] :
       {std::pair{"q.shape[2]", args.q.shape[2]}, {"v.shape[2]", args.v.shape[2]}}) {
    if (dim > sm90::kMaxListedDim) {
      throw invalid(name, dim,
                    "multiples of 8 from 8 to 128, or 576 beside 512 of v, under lists on a GPU");
    }
  }
}

void check_gradients(const BackwardArgs& args) {
  for (const auto& [name, tensor] : {std::pair{"out", &args.out}, {"dout", &args.dout}}) {
    if (tensor->dtype != args.q.dtype) {
      throw invalid(std::string(name) + ".dtype", dtype_name(tensor->dtype),
                    "that of q under lists on a GPU");
    }
  }
  if (!args.slices.empty()) throw invalid("slices", "given", "none beside lists");
  if (args.is_accumulating) {
    throw invalid("is_accumulating", "true", "false under lists on a GPU");
  }
}

/// A row-major float32 tensor of the shape of a gradient of keys.
TensorView sums_like(const TensorView& gradient, float* data) {
  return contiguous_view(data, DType::Float32,
                         {gradient.shape[0], gradient.shape[1], gradient.shape[2]},
                         gradient.device);
}

struct BackwardPlaces {
  BackwardPlaces(const BackwardArgs& args, const KeyLists& lists, bool is_fast)
      : is_latent(sm90::has_latent_dims(args.q, args.v)) {
    Arena arena;
    if (!is_fast && args.q.num_elements() > 0) {
      sums = sm90::key_parts_of(args, lists);
      parts = arena.add<std::byte>(static_cast<std::int64_t>(sums->layout.size_bytes));
    } else if (args.q.num_elements() > 0) {
      joined = sm90::joined_layout_of(args, lists);
      joined_lists = arena.add<std::byte>(static_cast<std::int64_t>(joined.size_bytes));
    }
    delta = arena.add<float>(args.q.shape[0] * args.q.shape[1]);
    dk_sums = arena.add<float>(args.dk.num_elements());
    if (!is_latent) dv_sums = arena.add<float>(args.dv.num_elements());
    size_bytes = arena.size_bytes();
  }
  bool is_latent;  ///< dv is in dk
  std::optional<sm90::OrderedKeySums> sums;
  sm90::JoinedLayout joined;
  std::size_t parts = 0, joined_lists = 0, delta = 0, dk_sums = 0, dv_sums = 0, size_bytes = 0;
};

void run_backward(const BackwardArgs& args, const KeyLists& lists, std::int32_t sm_margin,
                  const BackwardPlaces& places, void* workspace, cudaStream_t stream) {
  const sm90::ListedBackwardMemory memory{
      .delta = part_at<float>(workspace, places.delta),
      .dk_sums = part_at<float>(workspace, places.dk_sums),
      .dv_sums = places.is_latent ? nullptr : part_at<float>(workspace, places.dv_sums),
      .parts = part_at<std::byte>(workspace, places.parts),
      .joined_layout = places.joined,
      .joined = part_at<std::byte>(workspace, places.joined_lists)};
  sm90::enqueue_listed_backward(args, lists, sm_margin, memory,
                                places.sums ? &*places.sums : nullptr, stream);
  combine(sums_like(args.dk, memory.dk_sums), args.dk, Combination::Write, stream);
  if (places.is_latent) return;
  combine(sums_like(args.dv, memory.dv_sums), args.dv, Combination::Write, stream);
}

/// Calls run(memory) with `bytes` that hold until the work which it enqueues is done: those of a
/// graph as long as the graph.
template <typename Run>
void with_memory(std::size_t bytes, std::int32_t device, cudaStream_t stream, const Run& run) {
  if (cudaGraph_t graph = graph_of_capture(stream); bytes > 0 && graph != nullptr) {
    const auto held = std::make_shared<const DeviceBuffer>(bytes);
    keep_with_graph(graph, held);
    return run(held->data());
  }
  const StreamBuffer own(bytes, device, stream);
  run(own.data());
}

}  // namespace

void attention_forward_cuda(const ForwardArgs& args, const KeyLists& lists, std::int32_t sm_margin,
                            void* stream) {
  if (!sm90_backend()->serves(args.q.device)) refuse_device(args.q.device);
  check_attention(listed_limits(), args, args.q.device);
  check_listed_dims(args);
  check_lists(lists, args.q, args.k);
  if (!args.slices.empty()) throw invalid("slices", "given", "none beside lists");
  if (args.is_merging) throw invalid("is_merging", "true", "false under lists on a GPU");
  if (sm90::has_latent_dims(args.q, args.v) && !args.max_logits.empty()) {
    throw invalid("max_logits", "given", std::string("none") + kWithLatents);
  }
  const DeviceScope scope(args.q.device);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  const sm90::ListedForwardCall call = sm90::listed_forward_call(args, lists);
  with_memory(call.joined.size_bytes, args.q.device, cuda_stream, [&](void* memory) {
    sm90::enqueue_listed_forward(args, lists, call, sm_margin, memory, cuda_stream);
  });
}

void attention_backward_cuda(const BackwardArgs& args, const KeyLists& lists,
                             const ListedBackwardTuning& tuning, void* stream) {
  if (!sm90_backend()->serves(args.q.device)) refuse_device(args.q.device);
  check_attention(listed_limits(), with_dv(args), args.q.device);
  check_listed_dims(args);
  check_lists(lists, args.q, args.k);
  check_gradients(args);
  const DeviceScope scope(args.q.device);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  const BackwardPlaces places(args, lists, tuning.is_fast);
  with_memory(places.size_bytes, args.q.device, cuda_stream, [&](void* memory) {
    run_backward(args, lists, tuning.sm_margin, places, memory, cuda_stream);
  });
}

}  // namespace magi
