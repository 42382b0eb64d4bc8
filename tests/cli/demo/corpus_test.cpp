// SPDX-License-Identifier: Apache-2.0
#include "demo/corpus.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "cli/temporary_folder.hpp"
#include "magi/error.hpp"

namespace magi::cli {
namespace {

using magi::testing::TemporaryFolder;

std::string lines(char letter, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += std::string(1 + i % 37, letter) + '\n';
  return text;
}

TEST(Corpus, DocumentsFillTheSequenceAndKeepTheText) {
  const TemporaryFolder folder;
  const std::string a = lines('a', 400);
  const std::string b = lines('b', 20);
  const Corpus corpus = pack_files({folder.write("a", a), folder.write("b", b)}, 2048);
  EXPECT_EQ(corpus.num_tokens(), 2048);
  EXPECT_EQ(corpus.tokens.size(), 2048u);
  EXPECT_EQ(corpus.sources, (std::vector<std::string>{"a", "b"}));
  EXPECT_GT(corpus.num_documents(), 4);
  std::string seen_a;
  std::string seen_b;
  for (std::size_t d = 0; d + 1 < corpus.cu_seqlens.size(); ++d) {
    const auto begin = static_cast<std::size_t>(corpus.cu_seqlens[d]);
    const auto end = static_cast<std::size_t>(corpus.cu_seqlens[d + 1]);
    ASSERT_LT(begin, end);
    const std::string document = corpus.tokens.substr(begin, end - begin);
    (document.find('b') == std::string::npos ? seen_a : seen_b) += document;
  }
  EXPECT_EQ(seen_a, a.substr(0, seen_a.size()));
  EXPECT_EQ(seen_b, b);
}

TEST(Corpus, LittleTextGivesAShortSequence) {
  const TemporaryFolder folder;
  const Corpus corpus = pack_files({folder.write("a", "x"), folder.write("none", "")}, 8192);
  EXPECT_EQ(corpus.cu_seqlens, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(corpus.sources, std::vector<std::string>{"a"});
}

TEST(Corpus, NoTextIsRefused) {
  const TemporaryFolder folder;
  EXPECT_THROW(pack_files({folder.write("none", "")}, 64), InvalidArgument);
  EXPECT_THROW(pack_files({folder.path("absent")}, 64), InvalidArgument);
  EXPECT_THROW(pack_files({folder.path()}, 64), InvalidArgument);
}

TEST(Corpus, DefaultFilesStartWithTheProjectsOwn) {
  const TemporaryFolder folder;
  folder.write("README.md", "read me");
  std::filesystem::create_directory(folder.path("docs"));
  folder.write("docs/b.md", "b");
  folder.write("docs/a.md", "a");
  folder.write("docs/c.svg", "c");
  const std::vector<std::string> files = default_files(folder.path());
  ASSERT_GE(files.size(), 3u);
  EXPECT_EQ(files[0], folder.path("README.md"));
  EXPECT_EQ(files[1], folder.path("docs/a.md"));
  EXPECT_EQ(files[2], folder.path("docs/b.md"));
  EXPECT_EQ(std::count(files.begin(), files.end(), folder.path("docs/c.svg")), 0);
  EXPECT_THROW(default_files(folder.path("absent")), InvalidArgument);
}

}  // namespace
}  // namespace magi::cli
