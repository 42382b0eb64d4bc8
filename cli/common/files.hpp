// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace magi::cli {

/// The machine refuses what a correct call needs (no space, no permission, no process): exit
/// code 3.
class EnvironmentUnfit : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The bytes, at most 1 GiB, of a regular file, of a pipe that someone writes, or of standard input
/// for "-". Throws InvalidArgument naming `flag`.
std::string read_file(std::string_view flag, const std::string& path);

/// Writes beside the target and renames: the file is either whole or not there, and keeps the owner
/// and mode of the one before. A device, or a pipe that someone reads, is written as it is. Throws
/// InvalidArgument naming `flag` when the folder is not there, EnvironmentUnfit when writing fails.
void write_file(std::string_view flag, const std::string& path, std::string_view content);

/// Makes the folder and those above it, as write_file's errors go.
void make_folder(std::string_view flag, const std::string& path);

}  // namespace magi::cli
