// SPDX-License-Identifier: Apache-2.0
#include "runtime/device_case.hpp"

#include <gtest/gtest.h>

namespace magi::test {

using testing::AttentionCase;
using testing::PassKind;
using testing::PipelineRun;

TensorView GpuHome::view(testing::HostArray& array) {
  const std::span<std::byte> storage = array.storage();
  auto [place, is_new] = buffers_.try_emplace(&array);
  if (is_new) place->second = to_device_sync<std::byte>(storage);
  TensorView tensor = array.view();
  const auto offset = static_cast<std::byte*>(tensor.data) - storage.data();
  tensor.data = static_cast<std::byte*>(place->second.data()) + offset;
  tensor.device = 0;
  return tensor;
}

void GpuHome::take_back_sync() {
  stream_.wait_sync();
  for (const auto& [array, buffer] : buffers_) {
    cuda_check(cudaMemcpy(array->storage().data(), buffer.data(), buffer.size_bytes(),
                          cudaMemcpyDeviceToHost),
               "cudaMemcpy");
  }
}

AttentionCase make_gpu_case(const Mask& mask, const testing::CaseSizes& sizes, std::uint64_t seed,
                            DType dtype) {
  AttentionCase test = testing::make_case(mask, dtype, sizes, seed);
  test.is_on_gpu = true;
  return test;
}

PipelineRun run_on_gpu(const AttentionCase& test, const std::shared_ptr<const Plan>& plan,
                       const GpuRun& how) {
  PipelineRun run = testing::empty_run(test, plan->config.num_ranks);
  run_ranks(plan->config.num_ranks,
            [&](Communicator& communicator) {
              GpuHome home;
              std::unique_ptr<Communicator> nvlink;
              if (how.is_over_nvlink) {
                nvlink = make_nvlink_group({std::shared_ptr<void>(), &communicator}, 0,
                                           {.deadline = std::chrono::seconds(10)});
              }
              testing::run_rank(test, plan, nvlink ? *nvlink : communicator,
                                {.home = home,
                                 .kind = how.kind,
                                 .repeats = how.repeats,
                                 .options = how.options,
                                 .num_sections = how.num_sections},
                                run);
            },
            {.deadline = std::chrono::seconds(20)});
  return run;
}

void expect_gpu_run_close(const AttentionCase& test, const std::shared_ptr<const Plan>& plan,
                          const GpuRun& how) {
  SCOPED_TRACE(test.describe());
  for (const bool is_over_nvlink : {false, true}) {
    SCOPED_TRACE(is_over_nvlink ? "nvlink" : "threads");
    GpuRun transport = how;
    transport.is_over_nvlink = is_over_nvlink;
    const PipelineRun run = run_on_gpu(test, plan, transport);
    testing::expect_forward_close(test, run.forward);
    if (how.kind == PassKind::Forward) continue;
    testing::expect_backward_close(test, dense_forward(test.dense, test.counts()), run.gradients);
  }
}

}  // namespace magi::test
