// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace magi::cli {

/// Real text as one packed sequence: a token is a byte, documents follow each other.
struct Corpus {
  std::string tokens;
  std::vector<std::int32_t> cu_seqlens = {0};  ///< [documents + 1]
  std::vector<std::string> sources;            ///< file names that gave text, each once

  std::int32_t num_tokens() const { return cu_seqlens.back(); }
  std::int32_t num_documents() const { return static_cast<std::int32_t>(cu_seqlens.size()) - 1; }
};

/// Takes pieces of the files in turn, cut at line ends, of lengths that vary as documents' do,
/// until there are `num_tokens` or the text is used up. Throws InvalidArgument for a file that
/// cannot be read, or when there is no text at all.
Corpus pack_files(const std::vector<std::string>& files, std::int32_t num_tokens);

/// Texts that are there without asking: those under `docs_folder` (README.md and docs/*.md; "" for
/// none), then the licence texts that Debian installs.
std::vector<std::string> default_files(const std::string& docs_folder);

}  // namespace magi::cli
