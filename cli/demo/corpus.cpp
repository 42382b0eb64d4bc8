// SPDX-License-Identifier: Apache-2.0
#include "demo/corpus.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "base/check.hpp"
#include "common/files.hpp"
#include "common/values.hpp"

namespace magi::cli {
namespace {

namespace fs = std::filesystem;

/// Most tokens of the pieces, in turn, as parts of the sequence: packed training data mixes few
/// long documents with many short ones.
constexpr std::array<std::int32_t, 7> kPieceDivisors = {6, 32, 12, 64, 16, 128, 24};

/// The length of the next piece of `text`: at most `most`, cut behind the last line end of its
/// second half if there is one.
std::size_t piece_length(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text.size();
  const std::size_t line_end = text.rfind('\n', most - 1);
  return line_end == std::string_view::npos || line_end < most / 2 ? most : line_end + 1;
}

std::vector<std::string> files_in(const fs::path& folder, const std::string& extension) {
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (!entry.is_regular_file(error) || entry.is_symlink(error)) continue;
    if (extension.empty() || entry.path().extension() == extension) {
      found.push_back(entry.path().string());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

Corpus pack_files(const std::vector<std::string>& files, std::int32_t num_tokens) {
  std::vector<std::string> texts;
  for (const std::string& file : files) texts.push_back(read_file("FILE", file));
  std::vector<std::size_t> used(texts.size(), 0);
  const auto wanted = static_cast<std::size_t>(num_tokens);
  Corpus corpus;
  std::size_t turn = 0;
  bool is_any_left = true;
  while (is_any_left && corpus.tokens.size() < wanted) {
    is_any_left = false;
    for (std::size_t f = 0; f < texts.size() && corpus.tokens.size() < wanted; ++f) {
      const std::string_view rest = std::string_view(texts[f]).substr(used[f]);
      if (rest.empty()) continue;
      is_any_left = true;
      const auto divisor = static_cast<std::size_t>(kPieceDivisors[turn++ % kPieceDivisors.size()]);
      const std::size_t most = std::max<std::size_t>(wanted / divisor, 1);
      const std::size_t length = std::min(piece_length(rest, most), wanted - corpus.tokens.size());
      if (used[f] == 0) corpus.sources.push_back(fs::path(files[f]).filename().string());
      used[f] += length;
      corpus.tokens.append(rest.substr(0, length));
      corpus.cu_seqlens.push_back(static_cast<std::int32_t>(corpus.tokens.size()));
    }
  }
  if (corpus.tokens.empty()) throw invalid("the text", "empty", "files with at least one byte");
  return corpus;
}

std::vector<std::string> default_files(const std::string& docs_folder) {
  std::vector<std::string> files;
  if (!docs_folder.empty()) {
    const fs::path folder = docs_folder;
    std::error_code error;
    if (!fs::is_directory(folder, error)) {
      throw invalid("--docs", shown(docs_folder), "a folder that exists");
    }
    if (fs::is_regular_file(folder / "README.md", error)) {
      files.push_back((folder / "README.md").string());
    }
    for (std::string& file : files_in(folder / "docs", ".md")) files.push_back(std::move(file));
  }
  for (std::string& file : files_in("/usr/share/common-licenses", "")) {
    files.push_back(std::move(file));
  }
  if (files.empty()) {
    throw invalid("FILES", "not given and no text was found under /usr/share/common-licenses",
                  "one or more text files");
  }
  return files;
}

}  // namespace magi::cli
