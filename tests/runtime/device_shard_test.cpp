// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/element.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "magi/runtime.hpp"
#include "plan/placements.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/refusal.hpp"

// Shards on a GPU against the same calls on host memory, bit for bit.
namespace magi::test {
namespace {

using DistributedShardTest = GpuTest;

/// A row-major tensor in both memories; what a call has not written is 0xa5.
class TwinTensor {
 public:
  TwinTensor(DType dtype, std::initializer_list<std::int64_t> shape)
      : host_(contiguous_view(nullptr, dtype, shape)) {
    bytes_.assign(static_cast<std::size_t>(host_.num_elements()) * dtype_bytes(dtype) + 8, 0xa5);
    host_.data = bytes_.data();
    device_bytes_ = to_device_sync<std::uint8_t>(bytes_);
  }
  void fill(std::mt19937_64& random) {
    for (std::int64_t i = 0; i < host_.num_elements(); ++i) {
      const auto value = static_cast<float>(static_cast<int>(random() % 512) - 256) / 64.0f;
      store(i, value);
    }
    device_bytes_ = to_device_sync<std::uint8_t>(bytes_);
  }
  TensorView host() const { return host_; }
  TensorView device() const {
    TensorView view = host_;
    view.data = device_bytes_.data();
    view.device = 0;
    return view;
  }
  void expect_equal_sync(const char* what) const {
    EXPECT_EQ(to_host_sync<std::uint8_t>(device_bytes_.data(), bytes_.size()), bytes_) << what;
  }

 private:
  void store(std::int64_t i, float value) {
    std::uint8_t* target = bytes_.data() + static_cast<std::size_t>(i) * dtype_bytes(host_.dtype);
    const auto put = [target](auto element) { std::memcpy(target, &element, sizeof(element)); };
    if (host_.dtype == DType::Int32) return put(static_cast<std::int32_t>(value * 64.0f));
    if (host_.dtype == DType::Int64) return put(static_cast<std::int64_t>(value * 64.0f));
    with_float_type(host_.dtype, [&](auto type) { put(narrowed<decltype(type)>(value)); });
  }

  TensorView host_;
  std::vector<std::uint8_t> bytes_;
  DeviceBuffer device_bytes_;
};

constexpr DType kTypes[] = {DType::Float64,  DType::Float32, DType::Float16,
                            DType::BFloat16, DType::Int32,   DType::Int64};

struct ShardCase {
  Placement placement;
  DType dtype;
  std::int64_t width;
  std::int32_t num_rows;  ///< valid
  std::int64_t shift;
  std::uint64_t seed;
};

void check_rank(const ShardCase& test, Communicator& group) {
  const std::int64_t local_rows = test.placement.rows_of(group.rank());
  std::mt19937_64 same(test.seed);
  std::mt19937_64 own(test.seed * 100 + static_cast<std::uint64_t>(group.rank()));
  TwinTensor global(test.dtype, {test.num_rows, test.width});
  global.fill(same);
  TwinTensor local(test.dtype, {local_rows, test.width});
  TwinTensor back(test.dtype, {test.num_rows, test.width});
  TwinTensor rolled(test.dtype, {local_rows, test.width});
  TwinTensor summed(test.dtype, {local_rows, test.width});
  TwinTensor part(test.dtype, {test.num_rows, test.width});
  part.fill(own);
  const Stream stream;
  void* queue = stream.handle();
  for (const bool on_device : {false, true}) {
    const auto view = [on_device](const TwinTensor& t) {
      return on_device ? t.device() : t.host();
    };
    dispatch(view(global), test.placement, group.rank(), view(local), 3.0, queue);
    undispatch(view(local), test.placement, group, view(back), queue);
    roll(view(local), test.placement, test.num_rows, test.shift, group, view(rolled), queue);
    if (!is_float(test.dtype)) continue;
    undispatch_backward(view(part), test.placement, group, UndispatchGradient::Partial,
                        view(summed), queue);
  }
  stream.wait_sync();
  local.expect_equal_sync("dispatch");
  back.expect_equal_sync("undispatch");
  rolled.expect_equal_sync("roll");
  summed.expect_equal_sync("undispatch_backward");
}

TEST_F(DistributedShardTest, EqualHostShardsBitForBit) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    ShardCase test{.placement = random_placement(random), .dtype = kTypes[seed % 6]};
    const std::int64_t widths[] = {1, 3, 8, 64, 100};
    test.width = widths[random() % 5];
    test.num_rows = 1 + static_cast<std::int32_t>(
                            random() % static_cast<std::uint64_t>(test.placement.num_rows));
    test.shift = static_cast<std::int64_t>(random() % 200) - 100;
    test.seed = seed;
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    run_ranks(test.placement.num_ranks, [&](Communicator& group) { check_rank(test, group); });
    if (HasFailure()) break;
  }
}

TEST_F(DistributedShardTest, TensorsWithGapsAreRefused) {
  const auto group = make_thread_group(1);
  const Placement placement = placement_from_chunks(8, 8, 1, {0});
  const DeviceBuffer memory(4096);
  TensorView tensor = contiguous_view(memory.data(), DType::Float32, {8, 4});
  tensor.device = 0;
  TensorView gaps = tensor;
  gaps.stride[0] = 5;
  EXPECT_EQ(testing::refusal_of([&] { undispatch(gaps, placement, *group[0], tensor); }),
            "local.stride[0] is 5; allowed: 4 (on a GPU shards are row-major without gaps)");
}

}  // namespace
}  // namespace magi::test
