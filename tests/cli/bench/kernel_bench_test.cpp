// SPDX-License-Identifier: Apache-2.0
#include "bench/kernel_bench.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "cli/run_magi.hpp"

namespace magi::cli {
namespace {

KernelBenchReport small_report() {
  KernelBenchReport report{.gpu = "a GPU"};
  report.rows.push_back({.mask = "full",
                         .rows = 2048,
                         .num_slices = 1,
                         .area = 4194304,
                         .seconds = 2e-4,
                         .flops_per_second = 6.5e14,
                         .gemm_flops_per_second = 8e14,
                         .gemm_share = 0.875,
                         .packed_heads = 8,
                         .sm_clock_mhz = 1700,
                         .power_watts = 650.4});
  report.rows.push_back({.mask = "window",
                         .pass = KernelPass::Backward,
                         .rows = 1024,
                         .num_slices = 1,
                         .seconds = 1e-5});
  return report;
}

TEST(KernelBenchReport, TableShowsWhatIsMissingAsADash) {
  const std::string table = to_table({}, small_report());
  EXPECT_NE(table.find("heads 64:8, head dim 128, a GPU"), std::string::npos) << table;
  EXPECT_NE(table.find("full    forward   2,048"), std::string::npos) << table;
  EXPECT_NE(table.find("87.5 %"), std::string::npos) << table;
  EXPECT_NE(table.find("1700    650"), std::string::npos) << table;
  EXPECT_EQ(table.substr(table.size() - 2), "-\n") << table;
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 4);
}

void expect_one_line(const std::string& arguments, int code, const std::string& part) {
  const testing::Outcome outcome = testing::run_magi(arguments);
  EXPECT_EQ(outcome.code, code) << outcome.err;
  EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_EQ(outcome.out, "");
}

TEST(BenchCommand, WrongCallsGiveOneSentence) {
  expect_one_line("bench", 2, "subcommand");
  expect_one_line("bench kernel --masks full,round", 2, "--masks is 'round'; allowed: full, ");
  expect_one_line("bench kernel --lengths 3k", 2, "--lengths is '3k'; allowed: powers of two");
  expect_one_line("bench kernel --lengths=", 2, "--lengths");
  expect_one_line("bench kernel --heads 8:3", 2, "--heads is '8:3'");
  expect_one_line("bench kernel --head-dim 12", 2, "--head-dim is 12; allowed: multiples of 8");
  expect_one_line("bench kernel --cublas ''", 2, "--cublas is ''; allowed: a path");
  expect_one_line("bench kernel --head-dim-v 260", 2, "--head-dim-v");
}

TEST(BenchCommand, WithoutAFitDeviceTheCodeIsThree) {
  expect_one_line("bench kernel --device 1000", 3, "magi: ");
}

}  // namespace
}  // namespace magi::cli
