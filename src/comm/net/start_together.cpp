// SPDX-License-Identifier: Apache-2.0
#include "comm/net/start_together.hpp"

#include <algorithm>
#include <exception>

#include "base/check.hpp"

namespace magi::comm {
namespace {

constexpr std::byte kGiven{1};
constexpr std::byte kTrouble{2};

std::vector<std::byte> tagged(std::byte tag, std::span<const std::byte> bytes) {
  std::vector<std::byte> message(1 + bytes.size(), tag);
  std::copy(bytes.begin(), bytes.end(), message.begin() + 1);
  return message;
}

std::vector<std::byte> message_of(const std::function<std::vector<std::byte>()>& give,
                                  std::exception_ptr& own_error) {
  try {
    return tagged(kGiven, give());
  } catch (const std::exception& error) {
    own_error = std::current_exception();
    const std::string text = error.what();
    return tagged(kTrouble, std::as_bytes(std::span(text)));
  }
}

}  // namespace

std::vector<std::vector<std::byte>> start_together(
    const Bootstrap& bootstrap, std::int32_t num_ranks,
    const std::function<std::vector<std::byte>()>& give) {
  if (!bootstrap) throw invalid("bootstrap", "empty", "a function");
  std::exception_ptr own_error;
  auto all = bootstrap(message_of(give, own_error));
  if (own_error) std::rethrow_exception(own_error);
  if (all.size() != static_cast<std::size_t>(num_ranks)) {
    throw CommError("the bootstrap gave the bytes of " + std::to_string(all.size()) +
                        " ranks; expected " + std::to_string(num_ranks),
                    CommFailure::System);
  }
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::vector<std::byte>& message = all[rank];
    const std::string name = "rank " + std::to_string(rank);
    if (message.empty() || (message[0] != kGiven && message[0] != kTrouble)) {
      throw CommError("the bootstrap gave for " + name + " what no rank sent", CommFailure::System);
    }
    const bool is_given = message[0] == kGiven;
    message.erase(message.begin());
    if (is_given) continue;
    const std::string text(reinterpret_cast<const char*>(message.data()), message.size());
    throw CommError(name + " cannot join the group: " + text, CommFailure::System);
  }
  return all;
}

}  // namespace magi::comm
