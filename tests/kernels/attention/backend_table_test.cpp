// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kernels/attention/supplied_backend.hpp"
#include "kernels/attention/supplied_table.hpp"
#include "magi/error.hpp"
#include "support/refusal.hpp"

namespace magi::test {
namespace {

std::string refusal_of(const std::string& name, std::int32_t device) {
  return testing::refusal_of([&] { find_backend(name, device); });
}

TEST(BackendTable, HostMemoryIsServedByTheCpuBackend) {
  EXPECT_EQ(find_backend("", kCpuDevice)->name(), "cpu");
  EXPECT_EQ(find_backend("cpu", kCpuDevice), find_backend("", kCpuDevice));
  EXPECT_EQ(backend_names().front(), "cpu");
}

TEST(BackendTable, NamesThatAreNotThereAreRefused) {
  EXPECT_EQ(refusal_of("gpu", kCpuDevice).substr(0, 27), "backend is gpu; allowed: cp");
  EXPECT_EQ(refusal_of("cpu", 0), "q.device is 0; allowed: devices that the backend cpu serves");
  EXPECT_EQ(refusal_of("", -7).substr(0, 14), "q.device is -7");
  EXPECT_EQ(refusal_of("", 4096).substr(0, 27), "q.device is 4096; allowed: ") << "no GPU here";
}

TEST(BackendTable, OthersAreAddedAndTakenOut) {
  TableLog log;
  const auto add = [&](const char* name) {
    add_backend(name, [&] { return make_supplied_backend(table_over_cpu(log, name)); });
  };
  add("mine");
  EXPECT_EQ(backend_names().back(), "mine");
  const auto found = find_backend("mine", kCpuDevice);
  EXPECT_EQ(found->limits().dim_qk.max, 64);
  EXPECT_EQ(find_backend("", kCpuDevice)->name(), "cpu") << "none is named";
  for (const char* name : {"mine", "cpu", ""}) EXPECT_THROW(add(name), InvalidArgument) << name;
  remove_backend("mine");
  EXPECT_EQ(log.num_destroys, 0) << "someone still has it";
  EXPECT_THROW(find_backend("mine", kCpuDevice), InvalidArgument);
  EXPECT_THROW(remove_backend("mine"), InvalidArgument);
  EXPECT_THROW(remove_backend("cpu"), InvalidArgument);
}

}  // namespace
}  // namespace magi::test
