// SPDX-License-Identifier: Apache-2.0
#include "base/text_stream.hpp"

#include <gtest/gtest.h>

#include <new>
#include <ostream>
#include <sstream>
#include <streambuf>

namespace magi {
namespace {

/// Memory ends at the first character.
class FullBuffer : public std::streambuf {
  int_type overflow(int_type /*character*/) override { throw std::bad_alloc(); }
};

TEST(TextStream, GivesTheTextWrittenToIt) {
  std::ostringstream text = text_stream();
  text << "rows " << 3;
  EXPECT_EQ(text.str(), "rows 3");
}

TEST(TextStream, SaysThatItCannotGrow) {
  FullBuffer full;
  std::ostringstream text = text_stream();
  static_cast<std::ostream&>(text).rdbuf(&full);
  EXPECT_THROW(text << 'a', std::bad_alloc);
  text.clear();
  EXPECT_THROW(text << 12345, std::bad_alloc);
}

}  // namespace
}  // namespace magi
