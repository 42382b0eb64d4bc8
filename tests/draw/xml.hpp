// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace magi::testing {

/// Reads one well-formed XML element of the subset that the pictures use: elements, double-quoted
/// attributes, the named entities.
class XmlReader {
 public:
  explicit XmlReader(std::string_view text) : text_(text) {}

  /// The first fault, or "".
  std::string fault() {
    std::string found;
    while (found.empty() && at_ < text_.size()) {
      found = text_[at_] == '<' ? read_tag() : read_character();
    }
    if (!found.empty()) return found + " at " + std::to_string(at_);
    return open_.empty() && has_root_ ? "" : "unclosed element";
  }

 private:
  std::string read_character() {
    if (open_.empty() && text_[at_] != '\n') return "text outside the root";
    if (text_[at_] == '&') {
      const auto entity = text_.substr(at_, text_.find(';', at_) + 1 - at_);
      const bool is_known =
          entity == "&amp;" || entity == "&lt;" || entity == "&gt;" || entity == "&quot;";
      if (!is_known) return "unknown entity";
    }
    ++at_;
    return "";
  }

  std::string read_tag() {
    ++at_;
    const bool is_end = at_ < text_.size() && text_[at_] == '/';
    if (is_end) ++at_;
    const std::string name = read_name();
    if (name.empty()) return "no name";
    if (is_end) {
      if (open_.empty() || open_.back() != name) return "</" + name + "> closes nothing";
      open_.pop_back();
    } else {
      if (open_.empty() && has_root_) return "a second root";
      has_root_ = true;
      open_.push_back(name);
      if (const std::string fault = read_attributes(); !fault.empty()) return fault;
    }
    return read_tag_end();
  }

  std::string read_attributes() {
    std::vector<std::string> seen;
    while (at_ < text_.size() && text_[at_] == ' ') {
      ++at_;
      const std::string name = read_name();
      if (std::find(seen.begin(), seen.end(), name) != seen.end()) return name + " twice";
      seen.push_back(name);
      if (text_.substr(at_, 2) != "=\"") return name + " without a quoted value";
      at_ = text_.find('"', at_ + 2);
      if (at_ == std::string_view::npos) return "an open quote";
      ++at_;
    }
    return "";
  }

  std::string read_tag_end() {
    if (text_.substr(at_, 2) == "/>") {
      open_.pop_back();
      at_ += 2;
      return "";
    }
    if (at_ >= text_.size() || text_[at_] != '>') return "a tag without end";
    ++at_;
    return "";
  }

  std::string read_name() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
                                  text_[at_] == '-' || text_[at_] == ':')) {
      ++at_;
    }
    return std::string(text_.substr(begin, at_ - begin));
  }

  std::string_view text_;
  std::size_t at_ = 0;
  bool has_root_ = false;
  std::vector<std::string> open_;
};

inline std::string xml_fault(std::string_view text) { return XmlReader(text).fault(); }

}  // namespace magi::testing
