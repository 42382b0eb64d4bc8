// SPDX-License-Identifier: Apache-2.0
#include "random_step.hpp"

#include <cmath>
#include <cstring>

#include "magi/error.hpp"
#include "mask/random_mask.hpp"
#include "rank_memory.hpp"

namespace magi::reliability {
namespace {

constexpr std::int32_t kHeadsQ = 4;
constexpr std::int32_t kHeadsKv = 2;

std::uint64_t number_of(std::uint64_t seed, std::int64_t step) {
  return seed + static_cast<std::uint64_t>(step) * 0x9e3779b97f4a7c15ULL;
}

bool is_nan(const std::byte* bytes, DType type) {
  if (type == DType::Float32) {
    float value = 0;
    std::memcpy(&value, bytes, sizeof value);
    return std::isnan(value);
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return (bits & 0x7fffU) > 0x7f80U;
}

class AttentionLayer final : public Layer {
 public:
  AttentionLayer(std::shared_ptr<const Plan> plan, Communicator& group, std::int32_t device,
                 std::uint64_t seed, const DeviceAllocator& allocator)
      : plan_(std::move(plan)),
        group_(group),
        memory_(make_memory(device)),
        attention_(plan_, group, {.allocator = allocator}) {
    const PlanConfig& config = plan_->config;
    const std::int64_t rows_q = plan_->placement_q.rows_of(group.rank());
    const std::int64_t rows_k = plan_->placement_k.rows_of(group.rank());
    const DType type = device == kCpuDevice ? DType::Float32 : DType::BFloat16;
    RandomStream random(number_of(seed, group.rank()));
    const auto tensor = [&](std::int64_t rows, std::int64_t heads, std::int64_t dim) {
      TensorView view = contiguous_view(nullptr, type, {rows, heads, dim});
      view.device = device;
      view.data = memory_->take(random_values(random, view.num_elements(), type));
      return view;
    };
    inputs_ = {.q = tensor(rows_q, config.num_heads_q, config.head_dim_qk),
               .k = tensor(rows_k, config.num_heads_kv, config.head_dim_qk),
               .v = tensor(rows_k, config.num_heads_kv, config.head_dim_v)};
    TensorView lse = contiguous_view(nullptr, DType::Float32, {rows_q, config.num_heads_q});
    lse.device = device;
    lse.data =
        memory_->take(std::vector<std::byte>(static_cast<std::size_t>(rows_q) * 4 * kHeadsQ));
    result_ = {.out = tensor(rows_q, config.num_heads_q, config.head_dim_v), .lse = lse};
    dout_ = tensor(rows_q, config.num_heads_q, config.head_dim_v);
    gradients_ = {.dq = tensor(rows_q, config.num_heads_q, config.head_dim_qk),
                  .dk = tensor(rows_k, config.num_heads_kv, config.head_dim_qk),
                  .dv = tensor(rows_k, config.num_heads_kv, config.head_dim_v)};
  }

  void forward() override { attention_.forward(inputs_, result_, memory_->stream()); }
  void backward() override {
    attention_.backward(inputs_, result_, {.dout = dout_}, gradients_, memory_->stream());
  }
  std::uint64_t digest_sync() override {
    std::uint64_t digest = 0xcbf29ce484222325ULL;
    for (const TensorView& tensor : {result_.out, gradients_.dk, gradients_.dv}) {
      const std::vector<std::byte> bytes = memory_->fetch_sync(tensor);
      group_.check();  // a group that has failed leaves NaN
      for (std::size_t i = 0; i < bytes.size(); i += dtype_bytes(tensor.dtype)) {
        if (is_nan(bytes.data() + i, tensor.dtype)) throw InternalError("a result is NaN");
      }
      for (const std::byte byte : bytes) {
        digest = (digest ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3ULL;
      }
    }
    return digest;
  }

 private:
  static std::vector<std::byte> random_values(RandomStream& random, std::int64_t count,
                                              DType type) {
    const std::size_t element = dtype_bytes(type);
    std::vector<std::byte> bytes(static_cast<std::size_t>(count) * element);
    for (std::size_t i = 0; i < bytes.size(); i += element) {
      const float value = static_cast<float>(random.between(-128, 128)) / 128;
      std::uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof bits);
      if (type == DType::BFloat16) bits >>= 16;
      std::memcpy(bytes.data() + i, &bits, element);
    }
    return bytes;
  }

  std::shared_ptr<const Plan> plan_;
  Communicator& group_;
  std::unique_ptr<RankMemory> memory_;
  DistributedAttention attention_;
  AttentionInputs inputs_;
  AttentionResult result_;
  TensorView dout_;
  InputGradients gradients_;
};

}  // namespace

std::shared_ptr<const Plan> random_plan(std::uint64_t seed, std::int64_t step,
                                        std::int32_t num_ranks, bool is_on_gpu) {
  RandomStream random(number_of(seed, step));
  const std::int32_t most = is_on_gpu ? 600 : 96;
  const Mask mask = random_mask(
      random,
      {.min_rows = 16, .max_rows_q = most, .max_rows_k = most, .is_square = random.chance(80)});
  const std::int32_t dim = is_on_gpu ? 64 : 8;
  PlanConfig config{.num_ranks = num_ranks,
                    .num_heads_q = kHeadsQ,
                    .num_heads_kv = kHeadsKv,
                    .head_dim_qk = dim,
                    .head_dim_v = dim,
                    .element_bytes = is_on_gpu ? 2 : 4,
                    .min_stage_rows = 1};
  config.placement.uneven_shard = random.chance(50);
  config.placement.chunk_size = random.between(1, std::max(1, mask.rows_q / num_ranks));
  config.overlap_degree = is_on_gpu && random.chance(50) ? 0 : random.between(0, 3);
  config.stage_mode = random.chance(50) ? StageMode::Heads : StageMode::Rows;
  return std::make_shared<const Plan>(make_plan(mask, config));
}

std::unique_ptr<Layer> make_layer(std::shared_ptr<const Plan> plan, Communicator& group,
                                  std::int32_t device, std::uint64_t seed,
                                  const DeviceAllocator& allocator) {
  return std::make_unique<AttentionLayer>(std::move(plan), group, device, seed, allocator);
}

}  // namespace magi::reliability
