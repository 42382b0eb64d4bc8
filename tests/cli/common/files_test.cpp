// SPDX-License-Identifier: Apache-2.0
#include "common/files.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

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
  EXPECT_THROW(read_file("--in", "/dev/zero"), InvalidArgument);
  ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
  EXPECT_THROW(read_file("--in", folder.path("pipe")), InvalidArgument);
}

TEST(Files, PipesAreReadToTheirEndHoweverSlowlyTheyAreWritten) {
  const TemporaryFolder folder;
  const std::string path = folder.path("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const std::string half(100'000, 'x');
  std::thread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::ofstream pipe(path);
    std::this_thread::sleep_for(std::chrono::milliseconds(1300));
    pipe << half << std::flush;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    pipe << half;
  });
  EXPECT_EQ(read_file("--in", path), half + half);
  writer.join();
}

TEST(Files, APipeIsWrittenOnlyIfSomeoneReads) {
  const TemporaryFolder folder;
  const std::string path = folder.path("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THROW(write_file("--out", path, "x"), InvalidArgument);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  write_file("--out", path, "content");
  char got[16] = {};
  EXPECT_EQ(::read(reader, got, sizeof got), 7);
  EXPECT_STREQ(got, "content");
  ::close(reader);
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_TRUE(S_ISFIFO(status.st_mode));
}

TEST(Files, AFileKeepsItsModeAndOwner) {
  const TemporaryFolder folder;
  const std::string path = folder.write("secret", "old");
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
  }
  struct stat before {
  }, after{};
  ASSERT_EQ(::stat(path.c_str(), &before), 0);
  write_file("--out", path, "new");
  ASSERT_EQ(::stat(path.c_str(), &after), 0);
  EXPECT_EQ(folder.read("secret"), "new");
  EXPECT_EQ(after.st_mode & 07777, 0600u);
  EXPECT_EQ(after.st_uid, before.st_uid);
  EXPECT_EQ(after.st_gid, before.st_gid);
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
