// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "kernels/sm90/backward/case.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/gpu/graph.hpp"
#include "support/gpu/hog.hpp"
#include "support/masks.hpp"

// How a call behaves beside others: few multiprocessors, busy ones, graphs, streams.
namespace magi::test {
namespace {

/// Without sinks the main kernel is launched before prepare has ended. Head dim 64 has q tiles of
/// 128 rows, 128 has 64; 192 goes with 128 for v; 256 has k tiles that two CTAs share.
struct Variant {
  std::int32_t dim = 128;
  std::int32_t num_sinks = 1;
};
constexpr Variant kVariants[] = {{64, 0},  {64, 1},  {128, 0}, {128, 1},
                                 {192, 0}, {192, 1}, {256, 0}, {256, 1}};

BackwardCase documents_case(const Variant& variant) {
  BackwardCase test;
  test.heads_q = 16;
  test.heads_kv = 2;
  set_instance_dims(test, variant.dim);
  test.num_sinks = variant.num_sinks;
  test.mask = testing::document_mask({420, 30, 1, 240, 219});
  return test;
}

/// Everything of a call, so that a call itself allocates nothing.
struct Call {
  explicit Call(const BackwardCase& test, const BackwardInputs& inputs)
      : outputs(test),
        args(with_outputs(test, inputs)),
        work(args, test.tuning),
        workspace(work.workspace_bytes()) {
    // The tensors are filled on the default stream, the calls are made on others.
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  void enqueue(cudaStream_t stream) const {
    attention_backward_cuda(args, work, workspace.view(), stream);
  }

  BackwardOutputs outputs;
  BackwardArgs args;
  BackwardWork work;
  GuardedWorkspace workspace;

 private:
  BackwardArgs with_outputs(const BackwardCase& test, const BackwardInputs& inputs) const {
    BackwardArgs filled = inputs.args(test);
    outputs.put_into(filled);
    return filled;
  }
};

/// Whether the stream's work ends within 20 seconds.
bool ends_soon(cudaStream_t stream) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (std::chrono::steady_clock::now() < limit) {
    const cudaError_t status = cudaStreamQuery(stream);
    if (status == cudaSuccess) return true;
    if (status != cudaErrorNotReady) cuda_check(status, "cudaStreamQuery");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

using BackwardLaunchTest = GpuTest;

void expect_alike(const BackwardCase& test, const BackwardOutputs& first,
                  const BackwardOutputs& second) {
  if (test.tuning.is_deterministic) {
    expect_same_gradients(first, second);
  } else {
    expect_same_but_dq(first, second);
  }
}

/// Whole items and splits, which wait for each other too, in both modes; and sums that the
/// main kernel converts.
std::vector<BackwardCase> cases_of_modes() {
  std::vector<BackwardCase> cases;
  for (const bool is_deterministic : {true, false}) {
    for (const Variant& variant : kVariants) {
      BackwardCase test = documents_case(variant);
      test.tuning = {.packed_heads = 1,
                     .heads_per_item = variant.num_sinks == 0 ? 8 : 1,
                     .is_deterministic = is_deterministic};
      if (!is_deterministic) {
        // Where there are only documents, dQ is summed in order in the fast mode too.
        const Range rows{0, test.mask.rows_q};
        test.mask.slices.push_back(band_slice(rows, {0, 128}, MaskType::Full));
      }
      cases.push_back(test);
    }
  }
  BackwardCase window;
  window.mask = converted_window();
  window.dim_v = 8;
  cases.push_back(window);
  return cases;
}

/// Lists for other grids have other orders, so bits need not be those of the whole chip.
TEST_F(BackwardLaunchTest, GridsOfAnySizeEndAndRepeat) {
  for (BackwardCase test : cases_of_modes()) {
    const BackwardInputs inputs(test);
    for (const std::int32_t num_ctas : {1, 8, 16, 131}) {
      test.tuning.sm_margin = device_info(0).num_sms - num_ctas;
      SCOPED_TRACE(::testing::Message() << num_ctas << " CTAs, " << test);
      Call first(test, inputs);
      Call second(test, inputs);
      const Stream stream;
      first.enqueue(stream.handle());
      second.enqueue(stream.handle());
      ASSERT_TRUE(ends_soon(stream.handle()));
      first.outputs.download_sync();
      second.outputs.download_sync();
      expect_alike(test, first.outputs, second.outputs);
      // Float64 takes its time: whole items on a small grid, splits on a large one.
      if (num_ctas == (test.tuning.heads_per_item == 8 ? 8 : 131)) check_backward(test);
      if (HasFailure()) return;
    }
  }
}

void check_beside_a_hog(const BackwardCase& test, const BackwardInputs& inputs,
                        std::int32_t num_free) {
  SCOPED_TRACE(::testing::Message() << num_free << " multiprocessors free, " << test);
  Call alone(test, inputs);
  Call beside(test, inputs);
  const Stream stream;
  alone.enqueue(stream.handle());
  stream.wait_sync();
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  {
    const Hog hog(device_info(0).num_sms - num_free);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    beside.enqueue(stream.handle());
    EXPECT_TRUE(ends_soon(stream.handle())) << "the call waits for busy multiprocessors";
  }
  stream.wait_sync();
  alone.outputs.download_sync();
  beside.outputs.download_sync();
  expect_alike(test, alone.outputs, beside.outputs);
}

/// Head dims above 192 run in clusters of two CTAs, which want two multiprocessors of one GPC. The
/// chip has fewer GPCs than this, so among as many free multiprocessors two are of one.
constexpr std::int32_t kHasNeighbours = 16;

/// A grid larger than the multiprocessors left to it must not wait for CTAs that have no place.
TEST_F(BackwardLaunchTest, EndsBesideAHog) {
  for (const BackwardCase& test : cases_of_modes()) {
    const BackwardInputs inputs(test);
    for (const std::int32_t num_free : {1, 8, 16, 131}) {
      if (test.dim_qk > 192 && num_free < kHasNeighbours) continue;
      check_beside_a_hog(test, inputs, num_free);
      if (HasFailure()) return;
    }
  }
}

TEST_F(BackwardLaunchTest, RepeatsUnderLoadGiveEqualBits) {
  constexpr int kRepeats = 25;  // of each case
  for (const BackwardCase& test : cases_of_modes()) {
    SCOPED_TRACE(::testing::Message() << test);
    const BackwardInputs inputs(test);
    Call first(test, inputs);
    Call later(test, inputs);
    const Stream stream;
    first.enqueue(stream.handle());
    stream.wait_sync();
    first.outputs.download_sync();
    const Hog hog(device_info(0).num_sms / 2);
    for (int i = 0; i < kRepeats; ++i) {
      later.enqueue(stream.handle());
      ASSERT_TRUE(ends_soon(stream.handle()));
      later.outputs.download_sync();
      expect_alike(test, first.outputs, later.outputs);
      if (HasFailure()) return;
    }
  }
}

/// So many items that the main kernel has all multiprocessors, and dq is made of sums that are
/// complete beside its last items: of rows of one document, of several and of none.
BackwardCase crowded_case(std::int32_t dim) {
  BackwardCase test;
  test.heads_q = 32;
  test.heads_kv = 16;
  set_instance_dims(test, dim);
  test.mask = testing::document_mask({420, 30, 1, 2, 240, 419, 100});
  test.mask.rows_q = test.mask.rows_k = 1500;
  return test;
}

TEST_F(BackwardLaunchTest, SumsAreConvertedBesideTheLastItems) {
  for (const std::int32_t dim : {64, 128, 192, 256}) {
    BackwardCase test = crowded_case(dim);
    check_backward(test);
    if (HasFailure()) return;
  }
  BackwardCase test = crowded_case(128);
  test.is_accumulating = true;
  check_backward(test);
}

TEST_F(BackwardLaunchTest, SumsAreConvertedBesideTheLastItemsUnderLoad) {
  constexpr int kRepeats = 25;  // of each case
  for (const std::int32_t dim : {64, 128, 192, 256}) {
    const BackwardCase test = crowded_case(dim);
    const BackwardInputs inputs(test);
    Call first(test, inputs);
    Call later(test, inputs);
    const Stream stream;
    first.enqueue(stream.handle());
    stream.wait_sync();
    first.outputs.download_sync();
    for (int i = 0; i < kRepeats; ++i) {
      std::optional<Hog> hog;
      if (i % 2 == 1) hog.emplace(device_info(0).num_sms * i / (kRepeats + 5));
      // Two in a row: the second's main kernel is behind the first's dq.
      later.enqueue(stream.handle());
      later.enqueue(stream.handle());
      ASSERT_TRUE(ends_soon(stream.handle())) << "dim " << dim;
      later.outputs.download_sync();
      expect_same_gradients(first.outputs, later.outputs);
      if (HasFailure()) return;
    }
  }
}

void check_two_streams(const BackwardCase& test) {
  SCOPED_TRACE(::testing::Message() << test);
  check_backward(test);
  const BackwardInputs inputs(test);
  Call alone(test, inputs);
  Call first(test, inputs);
  Call second(test, inputs);
  const Stream streams[2];
  alone.enqueue(streams[0].handle());
  streams[0].wait_sync();
  alone.outputs.download_sync();
  for (int i = 0; i < 20; ++i) {
    first.enqueue(streams[0].handle());
    attention_backward_cuda(second.args, first.work, second.workspace.view(), streams[1].handle());
  }
  ASSERT_TRUE(ends_soon(streams[0].handle()));
  ASSERT_TRUE(ends_soon(streams[1].handle()));
  first.outputs.download_sync();
  second.outputs.download_sync();
  expect_same_gradients(alone.outputs, first.outputs);
  expect_same_gradients(first.outputs, second.outputs);
}

TEST_F(BackwardLaunchTest, TwoStreamsShareAList) {
  for (const Variant& variant :
       {Variant{64, 0}, Variant{128, 1}, Variant{192, 0}, Variant{256, 0}}) {
    check_two_streams(documents_case(variant));
  }
}

void check_graph(const BackwardCase& test) {
  SCOPED_TRACE(::testing::Message() << test);
  BackwardInputs inputs(test);
  Call direct(test, inputs);
  Call captured(test, inputs);
  const Stream stream;
  const Graph graph(stream.handle(), [&] { captured.enqueue(stream.handle()); });
  RandomStream random(99);
  for (int i = 0; i < 3; ++i) {
    fill_random(inputs.dout, random, 1.0);
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    graph.launch(stream.handle());
    direct.enqueue(stream.handle());
    stream.wait_sync();
    direct.outputs.download_sync();
    captured.outputs.download_sync();
    expect_same_gradients(direct.outputs, captured.outputs);
  }
}

TEST_F(BackwardLaunchTest, AGraphReplaysWithOtherValues) {
  for (const Variant& variant : kVariants) check_graph(documents_case(variant));
}

}  // namespace
}  // namespace magi::test
