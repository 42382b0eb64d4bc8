// SPDX-License-Identifier: Apache-2.0
#include "doctor/ranks_environment.hpp"

#include <gtest/gtest.h>

#include <map>

namespace magi::cli {
namespace {

using Variables = std::map<std::string, std::string>;

RanksEnvironment read(const Variables& variables, std::int32_t num_gpus = 0,
                      std::int32_t num_cores = 64) {
  return read_ranks_environment(
      [&](const char* name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      },
      num_gpus, num_cores);
}

/// Their only finding; what they say in all where there is not one.
std::string finding(const Variables& variables, std::int32_t num_gpus = 0) {
  const RanksEnvironment found = read(variables, num_gpus);
  if (found.findings.size() == 1) return found.findings[0];
  std::string all = std::to_string(found.findings.size()) + " findings";
  for (const std::string& one : found.findings) all += "; " + one;
  return all;
}

const Variables kTorchrun{{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "host0"},
                          {"MASTER_PORT", "29500"}};
const Variables kMpirun{{"OMPI_COMM_WORLD_RANK", "3"},
                        {"OMPI_COMM_WORLD_SIZE", "4"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
const Variables kSlurm{
    {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "2"}};

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

TEST(RanksEnvironment, LaunchersAreKnownByTheirVariables) {
  const RanksEnvironment none = read({});
  EXPECT_EQ(none.launcher, "");
  EXPECT_EQ(none.num_ranks, 1);
  EXPECT_TRUE(none.variables.empty() && none.findings.empty() && none.notes.empty());
  const RanksEnvironment torchrun = read(kTorchrun, 4);
  EXPECT_EQ(torchrun.launcher, "torchrun");
  EXPECT_EQ(torchrun.rank, 5);
  EXPECT_EQ(torchrun.num_ranks, 8);
  EXPECT_EQ(torchrun.variables.size(), 6u);
  EXPECT_EQ(torchrun.variables[0], (std::pair<std::string, std::string>("RANK", "5")));
  EXPECT_TRUE(torchrun.findings.empty() && torchrun.notes.empty());
  EXPECT_EQ(read(kMpirun).launcher, "mpirun");
  EXPECT_TRUE(read(kMpirun).findings.empty());
}

TEST(RanksEnvironment, WhatIsNoNumberIsNamed) {
  EXPECT_EQ(finding(with(kTorchrun, {{"LOCAL_RANK", "one"}})),
            "LOCAL_RANK is 'one'; allowed: an integer from 0");
  EXPECT_EQ(finding(with(kMpirun, {{"OMPI_COMM_WORLD_SIZE", "0"}})),
            "OMPI_COMM_WORLD_SIZE is '0'; allowed: an integer from 1");
  EXPECT_EQ(finding({{"OMP_NUM_THREADS", "4 "}}),
            "OMP_NUM_THREADS is '4 '; allowed: an integer from 1");
}

TEST(RanksEnvironment, RanksOutsideOfTheirGroupAreNamed) {
  EXPECT_EQ(finding({{"RANK", "3"}}),
            "WORLD_SIZE is not set, but RANK is; allowed: both or neither");
  EXPECT_EQ(finding({{"WORLD_SIZE", "3"}}),
            "RANK is not set, but WORLD_SIZE is; allowed: both or neither");
  EXPECT_EQ(finding(with(kTorchrun, {{"RANK", "8"}})),
            "RANK is 8; allowed: 0 to 7, as WORLD_SIZE is 8");
  EXPECT_EQ(finding(with(kTorchrun, {{"LOCAL_RANK", "4"}})),
            "LOCAL_RANK is 4; allowed: 0 to 3, as LOCAL_WORLD_SIZE is 4");
  EXPECT_EQ(finding(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}})),
            "LOCAL_WORLD_SIZE is 9; allowed: at most 8, as WORLD_SIZE");
}

TEST(RanksEnvironment, LaunchersThatDisagreeAreNamed) {
  EXPECT_EQ(
      finding(with(
          kMpirun,
          {{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "4"}})),
      "RANK is 2 and OMPI_COMM_WORLD_RANK is 3; allowed: the same, of 4 ranks");
  EXPECT_EQ(finding(with(kMpirun, kTorchrun)),
            "WORLD_SIZE is 8 and OMPI_COMM_WORLD_SIZE is 4; allowed: the same");
  // A torchrun on each of slurm's nodes: other ranks, of another number.
  EXPECT_EQ(finding(with(kSlurm, kTorchrun)), "0 findings");
  EXPECT_EQ(finding(with(kSlurm, kMpirun)),
            "OMPI_COMM_WORLD_RANK is 3 and SLURM_PROCID is 2; allowed: the same, of 4 ranks");
}

TEST(RanksEnvironment, TasksThatWouldRunAloneAreNamed) {
  EXPECT_EQ(finding(kSlurm),
            "RANK is not set, and SLURM_NTASKS is 4, so that every process runs alone; allowed: "
            "RANK and WORLD_SIZE, from SLURM_PROCID and SLURM_NTASKS");
  Variables script = kSlurm;  // of sbatch, whose tasks srun starts
  script.erase("SLURM_STEP_ID");
  EXPECT_EQ(finding(script), "0 findings");
  EXPECT_EQ(finding({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}).substr(0, 33),
            "RANK is not set, and PMI_SIZE is ");
}

TEST(RanksEnvironment, RanksOfSeveralMachinesNeedAPlaceToMeet) {
  Variables variables = kTorchrun;
  variables.erase("MASTER_ADDR");
  EXPECT_EQ(finding(variables),
            "MASTER_ADDR is not set; allowed: the host of rank 0 and a port there, as not all 8 "
            "ranks are said to be on this machine");
  EXPECT_EQ(finding(with(kTorchrun, {{"MASTER_PORT", "65536"}})),
            "MASTER_PORT is 65536; allowed: 1 to 65535");
  EXPECT_EQ(finding(with(kTorchrun, {{"MASTER_PORT", "http"}})),
            "MASTER_PORT is 'http'; allowed: an integer from 1");
}

TEST(RanksEnvironment, RanksWithoutAGpuAreNamed) {
  EXPECT_EQ(finding(with(kTorchrun, {{"LOCAL_RANK", "3"}}), 2),
            "LOCAL_RANK is 3; allowed: 0 to 1, as this process sees 2 GPUs");
  // Each may have been given one of its own.
  const RanksEnvironment one = read(with(kTorchrun, {{"LOCAL_RANK", "3"}}), 1);
  EXPECT_TRUE(one.findings.empty());
  ASSERT_EQ(one.notes.size(), 1u);
  EXPECT_EQ(one.notes[0],
            "4 ranks of this machine see 1 GPU each: either one of its own, or they share");
}

TEST(RanksEnvironment, WhatMaySurpriseIsNoted) {
  const RanksEnvironment threads = read(with(kMpirun, {{"OMP_NUM_THREADS", "4"}}), 0, 8);
  ASSERT_EQ(threads.notes.size(), 1u);
  EXPECT_EQ(threads.notes[0],
            "OMP_NUM_THREADS is 4 in each of 4 ranks, more threads than the 8 cores");
  EXPECT_TRUE(read(with(kMpirun, {{"OMP_NUM_THREADS", "2"}}), 0, 8).notes.empty());
  const RanksEnvironment hidden = read({{"CUDA_VISIBLE_DEVICES", ""}});
  ASSERT_EQ(hidden.notes.size(), 1u);
  EXPECT_EQ(hidden.notes[0], "CUDA_VISIBLE_DEVICES is '' and no GPU is seen");
}

}  // namespace
}  // namespace magi::cli
