// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <thread>

#include "capi/abi_tensor.hpp"
#include "capi/owned_handles.hpp"
#include "cuda/stream.hpp"
#include "kernels/attention/backend.hpp"
#include "support/gpu/device_slices.hpp"
#include "support/gpu/gate.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/gpu/graph.hpp"

// Attention on device tensors through the C ABI: the bits of the C++ call, from any stream, in
// graphs, with lists that come and go.
namespace magi::test {
namespace {

using capi_test::mask_from;
using capi_test::Owned;

using CapiForwardTest = GpuTest;

/// The structs of one call on `tensors`.
struct AbiCall {
  explicit AbiCall(const CallTensors& tensors)
      : args(tensors.args()),
        q(to_tensor(args.q)),
        k(to_tensor(args.k)),
        v(to_tensor(args.v)),
        out(to_tensor(args.out)),
        lse(to_tensor(args.lse)) {}
  AbiCall(const AbiCall&) = delete;
  AbiCall& operator=(const AbiCall&) = delete;

  ForwardArgs args;
  magi_tensor q, k, v, out, lse;
  magi_attention_inputs inputs{.struct_size = sizeof(inputs), .q = &q, .k = &k, .v = &v};
  magi_attention_result result{.struct_size = sizeof(result), .out = &out, .lse = &lse};
};

Mask document_mask(std::int32_t rows) {
  Mask mask{rows, rows, {}};
  const std::int32_t step = rows / 5;
  for (std::int32_t begin = 0; begin < rows; begin += step) {
    const Range range{begin, std::min(begin + step, rows)};
    mask.slices.push_back(band_slice(range, range, MaskType::Causal));
  }
  return mask;
}

std::vector<std::uint8_t> expected_bits(const CallTensors& tensors, const Mask& mask,
                                        const std::string& backend = {},
                                        const ForwardTuning& tuning = {}) {
  ForwardArgs args = tensors.args();
  args.slices = mask.slices;
  tensors.poison_sync();
  find_backend(backend, args.q.device)->prepare_forward(args, tuning)->run(args, {}, nullptr);
  return tensors.results_sync();
}

void call(const Owned<magi_mask>& mask, const AbiCall& abi, cudaStream_t stream) {
  ASSERT_EQ(magi_flex_attention_forward(mask.get(), &abi.inputs, &abi.result, stream), MAGI_OK)
      << magi_last_error_message();
}

TEST_F(CapiForwardTest, EqualsTheCppCallOnFirstAndLaterCalls) {
  const CallTensors tensors(700, 700, 8, 2, 128);
  const Mask mask = document_mask(700);
  const auto expected = expected_bits(tensors, mask);
  const auto handle = mask_from(mask);
  AbiCall abi(tensors);
  for (const std::int32_t sm_margin : {0, 0, 100, 0}) {
    tensors.poison_sync();
    abi.inputs.sm_margin = sm_margin;
    call(handle, abi, nullptr);
    ASSERT_EQ(tensors.results_sync(), expected);
  }
}

TEST_F(CapiForwardTest, MoreCombinationsThanAreKept) {
  const Mask mask = document_mask(300);
  const auto handle = mask_from(mask);
  for (int round = 0; round < 2; ++round) {
    for (std::int32_t heads = 1; heads <= 10; ++heads) {
      const CallTensors tensors(300, 300, heads, 1, 64);
      const auto expected = expected_bits(tensors, mask);
      tensors.poison_sync();
      call(handle, AbiCall(tensors), nullptr);
      ASSERT_EQ(tensors.results_sync(), expected) << heads << " heads";
    }
  }
}

TEST_F(CapiForwardTest, LaterCallsWaitForNothing) {
  const CallTensors tensors(512, 512, 8, 2, 128);
  const Mask mask = document_mask(512);
  const auto expected = expected_bits(tensors, mask);
  const auto handle = mask_from(mask);
  const AbiCall abi(tensors);
  const Stream stream;
  call(handle, abi, stream.handle());
  tensors.poison_sync();
  Gate gate(stream.handle());
  for (int i = 0; i < 20; ++i) call(handle, abi, stream.handle());
  EXPECT_FALSE(gate.has_given_up) << "a call waited for its stream";
  gate.is_open = true;
  ASSERT_EQ(tensors.results_sync(), expected);
}

TEST_F(CapiForwardTest, OneMaskOnManyStreamsAndThreadsAtOnce) {
  constexpr int kThreads = 3;
  constexpr int kRounds = 60;
  const Mask mask = document_mask(1500);
  const auto handle = mask_from(mask);
  std::vector<CallTensors> tensors;
  for (int i = 0; i < 2 * kThreads; ++i) tensors.emplace_back(1500, 1500, 16, 2, 128);
  const auto expected = expected_bits(tensors[0], mask);
  for (const CallTensors& each : tensors) each.poison_sync();
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      const Stream streams[2];
      const AbiCall calls[2] = {AbiCall(tensors[2 * thread]), AbiCall(tensors[2 * thread + 1])};
      for (int round = 0; round < kRounds; ++round) {
        for (std::size_t i = 0; i < 2; ++i) call(handle, calls[i], streams[i].handle());
      }
      for (const Stream& stream : streams) stream.wait_sync();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const CallTensors& each : tensors) ASSERT_EQ(each.results_sync(), expected);
}

template <typename Enqueue>
Graph captured(const Enqueue& enqueue) {
  const Stream stream;
  return {stream.handle(), [&] { enqueue(stream.handle()); }};
}

TEST_F(CapiForwardTest, AGraphKeepsItsListAndItsTicket) {
  const CallTensors first(900, 900, 16, 2, 128);
  const CallTensors second(900, 900, 16, 2, 128);
  const Mask mask = document_mask(900);
  const auto expected = expected_bits(first, mask);
  auto handle = mask_from(mask);
  // The list is made during the capture, and lost to the caller before the first replay.
  const Graph one = captured([&](cudaStream_t s) { call(handle, AbiCall(first), s); });
  const Graph two = captured([&](cudaStream_t s) { call(handle, AbiCall(second), s); });
  handle.reset();
  const DeviceBuffer scribbled(std::size_t{64} << 20);
  scribbled.fill(0xff, nullptr);
  first.poison_sync();
  second.poison_sync();
  const Stream streams[2];
  for (int round = 0; round < 50; ++round) {
    one.launch(streams[0].handle());
    two.launch(streams[1].handle());
  }
  ASSERT_EQ(first.results_sync(), expected);
  ASSERT_EQ(second.results_sync(), expected);
}

TEST_F(CapiForwardTest, DestroyedGraphsGiveTheirTicketsBack) {
  const CallTensors tensors(200, 200, 4, 1, 64);
  const Mask mask = document_mask(200);
  const auto expected = expected_bits(tensors, mask);
  const auto handle = mask_from(mask);
  for (int round = 0; round < 200; ++round) {
    const Graph graph = captured([&](cudaStream_t s) { call(handle, AbiCall(tensors), s); });
    if (round % 50 == 0) tensors.poison_sync();
    graph.launch(nullptr);
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  ASSERT_EQ(tensors.results_sync(), expected);
}

struct AbiRanges {
  explicit AbiRanges(const DeviceRanges& device)
      : q_ranges(to_tensor(device.view().q_ranges)),
        k_ranges(to_tensor(device.view().k_ranges)),
        types(to_tensor(device.view().types)) {}
  AbiRanges(const AbiRanges&) = delete;
  AbiRanges& operator=(const AbiRanges&) = delete;

  magi_tensor q_ranges, k_ranges, types;
  magi_flex_ranges ranges{
      .struct_size = sizeof(ranges), .q_ranges = &q_ranges, .k_ranges = &k_ranges, .types = &types};
};

TEST_F(CapiForwardTest, RangesOnTheDeviceGiveTheSameBitsAndAReport) {
  constexpr std::int32_t kRows = 640;
  RandomStream random(9);
  TypedRanges ranges = random_ranges(random, kRows, kRows, 30);
  ranges.types[11] = -5;
  const CallTensors tensors(kRows, kRows, 8, 2, 128);
  const DeviceRanges device(ranges);
  const AbiRanges given(device);
  AbiCall abi(tensors);
  for (const char* backend : {"", "mma"}) {
    SCOPED_TRACE(backend);
    abi.inputs.backend = backend;
    const Mask mask{kRows, kRows, ranges.bands(kRows, kRows)};
    const auto expected = expected_bits(tensors, mask, backend, {.packed_heads = 4});
    size_t bytes = 0;
    ASSERT_EQ(magi_flex_ranges_workspace_bytes(&given.ranges, &abi.inputs, &bytes), MAGI_OK);
    const DeviceBuffer memory(bytes);
    const magi_workspace workspace{
        .struct_size = sizeof(workspace), .data = memory.data(), .size_bytes = bytes};
    tensors.poison_sync();
    const Graph graph = captured([&](cudaStream_t stream) {
      ASSERT_EQ(
          magi_flex_ranges_forward(&given.ranges, &abi.inputs, &abi.result, &workspace, stream),
          MAGI_OK)
          << magi_last_error_message();
    });
    graph.launch(nullptr);
    ASSERT_EQ(tensors.results_sync(), expected);
    magi_flex_ranges_report report{.struct_size = sizeof(report)};
    ASSERT_EQ(magi_flex_ranges_report_sync(&workspace, &report, nullptr), MAGI_OK);
    EXPECT_EQ(report.bad_slice, 11);
    EXPECT_STREQ(report.bad_field, "types");
    EXPECT_GT(report.num_records, 0);
    EXPECT_EQ(report.is_overflowing, 0);
  }
}

TEST_F(CapiForwardTest, NamesATensorOnTheHost) {
  const CallTensors tensors(64, 64, 2, 1, 64);
  AbiCall abi(tensors);
  abi.lse.device = MAGI_CPU_DEVICE;
  const auto handle = mask_from(document_mask(64));
  EXPECT_EQ(magi_flex_attention_forward(handle.get(), &abi.inputs, &abi.result, nullptr),
            MAGI_INVALID_ARGUMENT);
  EXPECT_STREQ(magi_last_error_message(), "lse.device is -1; allowed: 0 (that of the call)");
}

}  // namespace
}  // namespace magi::test
