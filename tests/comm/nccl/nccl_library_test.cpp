// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_library.hpp"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/nccl_ranks.hpp"
#include "comm/ranks.hpp"

// Each in a process of its own: a library once loaded stays.
namespace magi::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void in_process(const std::function<void()>& body) {
  run_processes(1, [&](std::int32_t) { body(); });
}

std::string refusal(const std::string& path) {
  const CommError error = catch_comm_error([&] { comm::NcclLibrary library(path); });
  EXPECT_EQ(error.failure(), CommFailure::System);
  return error.what();
}

TEST(NcclLibrary, TheOneThatIsLoadedAlreadyIsTaken) {
  in_process([] {
    ASSERT_NE(dlopen(fake_nccl().c_str(), RTLD_NOW | RTLD_LOCAL), nullptr);
    EXPECT_EQ(comm::NcclLibrary("").version(), 22907);
  });
}

TEST(NcclLibrary, MissingOneIsNamed) {
  in_process([] {
    EXPECT_THAT(refusal("/no/such/libnccl.so.2"),
                AllOf(HasSubstr("NCCL cannot be opened"), HasSubstr("/no/such/libnccl.so.2"),
                      HasSubstr("allowed: ")));
  });
}

TEST(NcclLibrary, MissingFunctionIsNamed) {
  in_process(
      [] { EXPECT_THAT(refusal(nccl_without_send()), HasSubstr("lacks the function ncclSend")); });
}

TEST(NcclLibrary, VersionsAreWrittenAsNcclDoes) {
  EXPECT_EQ(comm::nccl_version_text(2804), "2.8.4");
  EXPECT_EQ(comm::nccl_version_text(22907), "2.29.7");
  EXPECT_EQ(comm::nccl_version_text(23002), "2.30.2");
}

}  // namespace
}  // namespace magi::testing
