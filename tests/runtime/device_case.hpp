// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>

#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "runtime/pipeline.hpp"

namespace magi::test {

/// A rank's tensors in the memory of GPU 0, its calls on a stream of its own.
class GpuHome final : public testing::TensorHome {
 public:
  TensorView view(testing::HostArray& array) override;
  void* stream() override { return stream_.handle(); }
  void take_back_sync() override;

 private:
  Stream stream_;
  std::map<testing::HostArray*, DeviceBuffer> buffers_;
};

/// make_case for results of a GPU.
testing::AttentionCase make_gpu_case(const Mask& mask, const testing::CaseSizes& sizes,
                                     std::uint64_t seed = 1, DType dtype = DType::BFloat16);

/// run_pipeline with ranks that are threads on one GPU.
struct GpuRun {
  testing::PassKind kind = testing::PassKind::ForwardAndBackward;
  int repeats = 1;
  AttentionOptions options = {.exchange_sms = 4};
  bool is_over_nvlink = false;
  std::int32_t num_sections = 1;  ///< as in RankRun
};
testing::PipelineRun run_on_gpu(const testing::AttentionCase& test,
                                const std::shared_ptr<const Plan>& plan, const GpuRun& how = {});

/// Runs the case over the threads' group and over nvlink and compares with dense float64 attention.
void expect_gpu_run_close(const testing::AttentionCase& test,
                          const std::shared_ptr<const Plan>& plan, const GpuRun& how = {});

}  // namespace magi::test
