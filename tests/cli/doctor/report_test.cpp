// SPDX-License-Identifier: Apache-2.0
#include "doctor/report.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace magi::cli {
namespace {

/// Two GPUs, of which one is served, as a machine might have them.
DoctorReport two_gpus() {
  DoctorReport report;
  report.host = {.text = "x86_64, 32 cores, Linux 6.1",
                 .num_cores = 32,
                 .memory_bytes = std::int64_t{256} << 30,
                 .available_bytes = std::int64_t{128} << 30,
                 .shm_bytes = std::int64_t{64} << 20,
                 .shm_free_bytes = std::int64_t{64} << 20};
  report.machine.driver = "CUDA 13.0";
  report.machine.runtime = "13.0";
  report.machine.gpus = {{.name = "NVIDIA H200",
                          .major = 9,
                          .minor = 0,
                          .memory_bytes = std::int64_t{140} << 30,
                          .free_bytes = std::int64_t{139} << 30,
                          .num_sms = 132,
                          .block_shared_bytes = 227 << 10,
                          .backend = "sm90"},
                         {.name = "NVIDIA T4", .major = 7, .minor = 5, .refusal = "too old"}};
  report.machine.has_peer_access = {true, false, false, true};
  report.nccl = {.version = "2.27.3", .path = "/usr/lib/libnccl.so.2"};
  report.backends = {{.name = "cpu", .served = {{kCpuDevice, "the CPU"}}},
                     {.name = "sm90", .served = {{0, "GPU 0"}}, .refused = {"GPU 1: too old"}}};
  report.backends[1].limits = {.dim_qk = {.min = 8, .max = 256, .multiple = 8},
                               .dim_v = {.min = 8, .max = 256, .multiple = 8},
                               .types = 1U << static_cast<unsigned>(DType::BFloat16),
                               .has_sink = true};
  report.cost.machine = "a machine";
  report.checks = {{.where = "the CPU", .backend = "cpu"}, {.where = "GPU 0", .backend = "sm90"}};
  return report;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(DoctorReport, TellsAPersonWhatTheMachineHas) {
  const std::string text = doctor_text(two_gpus());
  for (const char* line :
       {"memory        128 GiB free of 256 GiB\n",
        "shared memory 64 MiB free of 64 MiB in /dev/shm, which NCCL may use\n",
        "driver        CUDA 13.0 (this magi is built with 13.0)\n",
        "GPU 0         NVIDIA H200, compute capability 9.0, 139 GiB free of 140 GiB, 132 "
        "multiprocessors with 227 KiB of shared memory a block, attention by sm90\n",
        "no attention: too old\n", "peer access   not 0 to 1, 1 to 0\n",
        "NCCL          2.27.3, /usr/lib/libnccl.so.2\n",
        "ranks         no launcher: magi starts its ranks itself\n",
        "sm90 serves GPU 0: head dims 8 to 256 in steps of 8; bfloat16; with sinks; without "
        "softcap, max_logits, gradients through lse\n",
        "                GPU 1: too old\n", "attention     GPU 0, sm90: right\n",
        "summary       unfit: GPU 1 has no attention: too old\n"}) {
    EXPECT_TRUE(has(text, line)) << line << "in\n" << text;
  }
}

TEST(DoctorReport, OnlyRightAttentionOnAFitMachineIsOk) {
  DoctorReport report = two_gpus();
  EXPECT_EQ(report.exit(), Exit::Unfit);
  report.machine.gpus.pop_back();
  EXPECT_EQ(report.exit(), Exit::Ok);
  EXPECT_TRUE(
      has(doctor_text(report), "summary       attention runs on this machine and is right"));
  report.ranks.findings = {"RANK is 8; allowed: 0 to 7"};
  EXPECT_EQ(report.exit(), Exit::Unfit);
  EXPECT_TRUE(has(doctor_text(report), "WRONG: RANK is 8; allowed: 0 to 7\n"));
  report.checks[1].findings = {"dq: error 1, allowed 0.1"};
  EXPECT_EQ(report.exit(), Exit::CheckFailed);
  const std::string text = doctor_text(report);
  EXPECT_TRUE(has(text, "GPU 0, sm90: WRONG\n              dq: error 1, allowed 0.1\n")) << text;
  EXPECT_TRUE(has(text, "is WRONG: do not use it"));
  report.checks.clear();  // nothing was run, so nothing was right
  EXPECT_EQ(report.exit(), Exit::CheckFailed);
}

TEST(DoctorReport, AMachineWithoutGpusSaysWhy) {
  DoctorReport report = two_gpus();
  report.machine = {.refusal = "this magi is built without CUDA"};
  report.nccl = {.refusal = "NCCL cannot be opened"};
  const std::string text = doctor_text(report);
  EXPECT_TRUE(has(text, "driver        none\n"));
  EXPECT_TRUE(has(text, "GPUs          none: this magi is built without CUDA\n"));
  EXPECT_TRUE(has(text, "NCCL          none: NCCL cannot be opened\n"));
  EXPECT_FALSE(has(text, "peer access"));
}

TEST(DoctorReport, JsonHoldsTheSame) {
  const auto json = nlohmann::json::parse(doctor_json(two_gpus()));
  EXPECT_EQ(json["gpus"][0]["block_shared_bytes"], 227 << 10);
  EXPECT_EQ(json["gpus"][1]["refusal"], "too old");
  EXPECT_EQ(json["peer_access"], nlohmann::json::parse("[true, false, false, true]"));
  EXPECT_EQ(json["nccl"]["path"], "/usr/lib/libnccl.so.2");
  EXPECT_EQ(json["backends"][1]["served"][0], "GPU 0");
  EXPECT_EQ(json["shared_memory"]["bytes"], 64 << 20);
  EXPECT_EQ(json["unfit"].size(), 1u);
  EXPECT_EQ(json["exit_code"], 3);
}

}  // namespace
}  // namespace magi::cli
