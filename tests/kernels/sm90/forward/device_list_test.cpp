// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "kernels/attention/backend.hpp"
#include "kernels/schedule/host/forward_list.hpp"
#include "magi/error.hpp"
#include "support/gpu/device_slices.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/gpu/graph.hpp"
#include "support/random_streams.hpp"

namespace magi::test {
namespace {

/// Parameter: the backend; empty: the first that serves the GPU.
class ForwardDeviceListTest : public GpuTest, public ::testing::WithParamInterface<const char*> {
 protected:
  DeviceListTuning tuning() const { return {.backend = GetParam()}; }
};

struct CallShape {
  std::int32_t rows_q = 700;
  std::int32_t rows_k = 900;
  std::int32_t heads_q = 8;
  std::int32_t heads_kv = 2;
  std::int32_t dim = 128;
};

/// One set of tensors, called with lists from both sides.
class Caller {
 public:
  Caller(const CallShape& shape, std::int64_t num_slices, const DeviceListTuning& tuning)
      : shape_(shape),
        tuning_(tuning),
        tensors_(shape.rows_q, shape.rows_k, shape.heads_q, shape.heads_kv, shape.dim),
        memory_(static_cast<std::size_t>(
            forward_workspace_bytes(tensors_.args(), num_slices, tuning))) {
    memory_.fill(0xff, nullptr);
  }

  /// With heads packed as in the device's last list: of the host's choices it has some.
  std::vector<std::uint8_t> with_host_list(const TypedRanges& ranges) const {
    const std::vector<BandSlice> bands = ranges.bands(shape_.rows_q, shape_.rows_k);
    ForwardArgs args = tensors_.args();
    args.slices = bands;
    ForwardTuning tuning = tuning_.forward;
    tuning.packed_heads = report().packed_heads;
    tensors_.poison_sync();
    find_backend(tuning_.backend, args.q.device)
        ->prepare_forward(args, tuning)
        ->run(args, {}, nullptr);
    return tensors_.results_sync();
  }

  void enqueue(const DeviceRanges& ranges, cudaStream_t stream) const {
    attention_forward_cuda(tensors_.args(), ranges.view(), workspace(), tuning_, stream);
  }

  void expect_bits_of_host_list(const TypedRanges& ranges) const {
    const std::vector<std::uint8_t> found = with_device_list(ranges);
    ASSERT_EQ(found, with_host_list(ranges));
  }

  std::vector<std::uint8_t> with_device_list(const TypedRanges& ranges) const {
    const DeviceRanges device(ranges);
    tensors_.poison_sync();
    enqueue(device, nullptr);
    return tensors_.results_sync();
  }

  DeviceListReport report() const { return read_device_list_report_sync(workspace(), nullptr); }
  DeviceWorkspace workspace() const {
    return {memory_.data(), static_cast<std::int64_t>(memory_.size_bytes())};
  }
  const CallTensors& tensors() const { return tensors_; }

 private:
  CallShape shape_;
  DeviceListTuning tuning_;
  CallTensors tensors_;
  DeviceBuffer memory_;
};

TypedRanges ranges_of(RandomStream& random, const CallShape& shape, std::int32_t count) {
  return random_ranges(random, shape.rows_q, shape.rows_k, count);
}

/// Whether a tile has a record that is no slice cut to its rows: several were joined, or cut apart.
bool has_other_bands(const ForwardList& list, const std::vector<BandSlice>& bands) {
  for (const TileWork& work : list.tiles) {
    const Range rows{work.tile * list.tile_tokens, (work.tile + 1) * list.tile_tokens};
    for (std::int32_t i = work.record_begin; i < work.record_end; ++i) {
      const BandSlice& band = list.records[static_cast<std::size_t>(i)].band;
      const auto leaves_it = [&](const BandSlice& slice) {
        return shrink(cut_q(shrink(slice), rows)) == band;
      };
      if (std::none_of(bands.begin(), bands.end(), leaves_it)) return true;
    }
  }
  return false;
}

/// Whether slices are joined in some tile, however heads are packed. A tile whose records do not
/// fit walks them one by one, which rounds otherwise.
bool has_joined_slices(const CallShape& shape, const TypedRanges& ranges) {
  const std::vector<BandSlice> bands = ranges.bands(shape.rows_q, shape.rows_k);
  const ForwardProblem problem{.rows_q = shape.rows_q,
                               .rows_k = shape.rows_k,
                               .heads_q = shape.heads_q,
                               .heads_kv = shape.heads_kv};
  for (const std::int32_t rows : {64, 128, 192}) {
    const TileShape tile{.rows = rows};
    for (const std::int32_t heads : allowed_packed_heads(problem, tile)) {
      if (has_other_bands(build_forward_list(problem, bands, tile, heads), bands)) return true;
    }
  }
  return false;
}

/// Ranges that no tile joins.
TypedRanges separate_ranges(RandomStream& random, const CallShape& shape, std::int32_t count) {
  TypedRanges ranges = ranges_of(random, shape, count);
  while (has_joined_slices(shape, ranges)) ranges = ranges_of(random, shape, count);
  return ranges;
}

TEST_P(ForwardDeviceListTest, GivesTheBitsOfTheHostsList) {
  for (RandomStream& random : testing::RandomStreams(60)) {
    CallShape shape{.rows_q = random.between(1, 700), .rows_k = random.between(1, 900)};
    shape.heads_q = 2 << random.between(0, 3);
    shape.dim = 64 << random.between(0, 2);
    const TypedRanges ranges = ranges_of(random, shape, random.between(0, 30));
    const Caller caller(shape, ranges.count(), tuning());
    ASSERT_NO_FATAL_FAILURE(caller.expect_bits_of_host_list(ranges));
    ASSERT_FALSE(caller.report().is_overflowing);
    ASSERT_FALSE(caller.report().first_bad);
  }
}

TEST_P(ForwardDeviceListTest, GivesTheSameBitsBeyondTheCapacity) {
  for (RandomStream& random : testing::RandomStreams(40)) {
    const CallShape shape;
    const TypedRanges ranges = separate_ranges(random, shape, 60);
    DeviceListTuning tuning = this->tuning();
    tuning.record_capacity = random.between(1, 40);
    const Caller caller(shape, ranges.count(), tuning);
    ASSERT_NO_FATAL_FAILURE(caller.expect_bits_of_host_list(ranges));
    ASSERT_TRUE(caller.report().is_overflowing);
    ASSERT_GT(caller.report().num_records, tuning.record_capacity);
  }
}

TEST_P(ForwardDeviceListTest, GivesTheSameBitsInSplits) {
  std::int32_t num_cut = 0;
  for (RandomStream& random : testing::RandomStreams(60)) {
    CallShape shape{.rows_q = random.between(1, 300), .rows_k = random.between(400, 2000)};
    shape.dim = 64 << random.between(0, 2);
    const TypedRanges ranges = separate_ranges(random, shape, random.between(1, 30));
    DeviceListTuning tuning = this->tuning();
    tuning.forward.max_pieces = random.chance(50) ? 0 : 1000;
    tuning.forward.piece_cost = random.between(1, 8);
    if (random.chance(30)) tuning.record_capacity = random.between(1, 10);
    const Caller caller(shape, ranges.count(), tuning);
    ASSERT_NO_FATAL_FAILURE(caller.expect_bits_of_host_list(ranges));
    num_cut += caller.report().num_pieces > 0 ? 1 : 0;
  }
  EXPECT_GT(num_cut, 20);
}

/// Rows of a prefix tree's nodes see their ancestors, slice by slice, which tiles join.
TEST_P(ForwardDeviceListTest, GivesTheBitsOfTheHostsListWhereSlicesAreJoined) {
  int num_joined = 0;
  for (RandomStream& random : testing::RandomStreams(60)) {
    CallShape shape{.rows_q = random.between(300, 1500)};
    shape.rows_k = shape.rows_q;
    shape.heads_q = 2 << random.between(0, 3);
    shape.dim = 64 << random.between(0, 2);
    TypedRanges ranges;
    std::vector<Range> path;
    for (std::int32_t begin = 0; begin < shape.rows_q;) {
      const Range node{begin, std::min(begin + random.between(1, 150), shape.rows_q)};
      path.resize(static_cast<std::size_t>(random.between(0, static_cast<int>(path.size()))));
      for (const Range& ancestor : path) ranges.append(node, ancestor, 0);
      ranges.append(node, node, 1);
      path.push_back(node);
      begin = node.end;
    }
    num_joined += has_joined_slices(shape, ranges) ? 1 : 0;
    const Caller caller(shape, ranges.count(), tuning());
    ASSERT_NO_FATAL_FAILURE(caller.expect_bits_of_host_list(ranges));
  }
  EXPECT_GT(num_joined, 40);
}

TEST_P(ForwardDeviceListTest, ReplaysAGraphWithOtherSlices) {
  RandomStream random(3);
  const CallShape shape{.rows_q = 768};
  constexpr std::int32_t kSlices = 40;
  DeviceRanges device(ranges_of(random, shape, kSlices));
  const Caller caller(shape, kSlices, tuning());
  const Stream stream;
  const Graph graph(stream.handle(), [&] { caller.enqueue(device, stream.handle()); });
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(::testing::Message() << "round " << round);
    TypedRanges ranges;
    if (round % 2 == 0) {
      ranges = ranges_of(random, shape, kSlices);
    } else if (round % 4 == 1) {  // whole tiles: the host packs no heads
      ranges.append({0, shape.rows_q}, {0, shape.rows_k}, 0);
      while (ranges.count() < kSlices) ranges.append({}, {}, 0);
    } else {
      for (std::int32_t i = 0; i < kSlices; ++i) {
        ranges.append({16 * i, 16 * i + 16}, {16 * i, 16 * i + 16}, 1);
      }
    }
    device.upload_sync(ranges);
    caller.tensors().poison_sync();
    graph.launch(nullptr);
    const std::vector<std::uint8_t> found = caller.tensors().results_sync();
    ASSERT_EQ(found, caller.with_host_list(ranges));
  }
}

TEST_P(ForwardDeviceListTest, BadRangesAreClampedAndReported) {
  RandomStream random(4);
  const CallShape shape;
  for (const std::int64_t capacity : {0, 7}) {
    TypedRanges ranges;
    do {
      ranges = ranges_of(random, shape, 50);
      ranges.q_ranges[2 * 20] = std::numeric_limits<std::int32_t>::min();
      ranges.q_ranges[2 * 20 + 1] = std::numeric_limits<std::int32_t>::max();
      ranges.k_ranges[2 * 21 + 1] = 1 << 30;
      ranges.k_ranges[2 * 22] = std::numeric_limits<std::int32_t>::max();
      ranges.types[23] = 77;
    } while (has_joined_slices(shape, ranges));
    DeviceListTuning tuning = this->tuning();
    tuning.record_capacity = capacity;
    const Caller caller(shape, ranges.count(), tuning);
    ASSERT_NO_FATAL_FAILURE(caller.expect_bits_of_host_list(ranges));
    const DeviceListReport report = caller.report();
    ASSERT_TRUE(report.first_bad);
    EXPECT_EQ(report.first_bad->index, 20);
    EXPECT_EQ(report.first_bad->field, "q_ranges[0]");
  }
}

TEST_P(ForwardDeviceListTest, RefusesWhatItCannotUse) {
  RandomStream random(5);
  const CallShape shape;
  const DeviceRanges ranges(ranges_of(random, shape, 10));
  const Caller caller(shape, 10, tuning());
  const ForwardArgs args = caller.tensors().args();
  const auto refuses = [&](const DeviceSlices& slices, const DeviceWorkspace& workspace) {
    EXPECT_THROW(attention_forward_cuda(args, slices, workspace, tuning(), nullptr),
                 InvalidArgument);
  };
  DeviceSlices slices = ranges.view();
  slices.k_ranges.dtype = DType::Int64;
  refuses(slices, caller.workspace());
  slices = ranges.view();
  slices.types.shape[0] = 9;
  refuses(slices, caller.workspace());
  slices = ranges.view();
  slices.q_ranges.stride[0] = 4;
  refuses(slices, caller.workspace());
  DeviceWorkspace workspace = caller.workspace();
  workspace.size_bytes -= 1;
  refuses(ranges.view(), workspace);
  workspace = caller.workspace();
  workspace.data = static_cast<std::byte*>(workspace.data) + 16;
  refuses(ranges.view(), workspace);
}

INSTANTIATE_TEST_SUITE_P(Backends, ForwardDeviceListTest, ::testing::Values("", "mma"));

}  // namespace
}  // namespace magi::test
