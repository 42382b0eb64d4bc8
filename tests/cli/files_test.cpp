// SPDX-License-Identifier: Apache-2.0
#include "files.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "cli/temporary_folder.hpp"
#include "magi/error.hpp"

namespace magi::cli {
namespace {

using magi::testing::TemporaryFolder;

TEST(Files, ContentSurvivesARoundTrip) {
  const TemporaryFolder folder;
  const std::string content("a\0b\n\xff", 5);
  write_file("--out", folder.path("x"), content);
  EXPECT_EQ(read_file("--in", folder.path("x")), content);
  write_file("--out", folder.path("x"), "");
  EXPECT_EQ(read_file("--in", folder.path("x")), "");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"x"});
}

TEST(Files, WhatCannotBeReadIsRefusedAtOnce) {
  const TemporaryFolder folder;
  EXPECT_THROW(read_file("--in", folder.path("absent")), InvalidArgument);
  EXPECT_THROW(read_file("--in", folder.path()), InvalidArgument);
  ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
  EXPECT_THROW(read_file("--in", folder.path("pipe")), InvalidArgument);
}

TEST(Files, AFailedWriteLeavesNothing) {
  const TemporaryFolder folder;
  EXPECT_THROW(write_file("--out", folder.path("no/such/file"), "x"), InvalidArgument);
  std::filesystem::create_directory(folder.path("taken"));
  EXPECT_THROW(write_file("--out", folder.path("taken"), "x"), InvalidArgument);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"taken"});
}

TEST(Files, DevicesAreWrittenAndStayDevices) {
  EXPECT_THROW(write_file("--out", "/dev/full", "x"), EnvironmentUnfit);
  write_file("--out", "/dev/null", "x");
  struct stat status {};
  ASSERT_EQ(::stat("/dev/null", &status), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
}

TEST(Files, FoldersAreMadeWithThoseAbove) {
  const TemporaryFolder folder;
  make_folder("--out", folder.path("a/b/c"));
  make_folder("--out", folder.path("a/b/c"));
  EXPECT_TRUE(std::filesystem::is_directory(folder.path("a/b/c")));
  folder.write("file", "");
  EXPECT_THROW(make_folder("--out", folder.path("file")), InvalidArgument);
  EXPECT_THROW(make_folder("--out", folder.path("file/below")), InvalidArgument);
}

}  // namespace
}  // namespace magi::cli
