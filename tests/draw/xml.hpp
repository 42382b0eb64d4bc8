// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace magi::testing {

/// Why `text` is not one well-formed XML element of the subset that the pictures use (elements,
/// double-quoted attributes, the named entities), or "" if it is.
inline std::string xml_fault(std::string_view text) {
  std::vector<std::string> open;
  std::size_t at = 0;
  bool had_root = false;
  const auto name_at = [&](std::size_t& from) {
    const std::size_t begin = from;
    while (from < text.size() && (std::isalnum(static_cast<unsigned char>(text[from])) != 0 ||
                                  text[from] == '-' || text[from] == ':')) {
      ++from;
    }
    return std::string(text.substr(begin, from - begin));
  };
  while (at < text.size()) {
    if (text[at] == '&') {
      const auto entity = text.substr(at, text.find(';', at) + 1 - at);
      if (entity != "&amp;" && entity != "&lt;" && entity != "&gt;" && entity != "&quot;") {
        return "entity at " + std::to_string(at);
      }
    }
    if (text[at] != '<') {
      if (open.empty() && text[at] != '\n') return "text outside the root";
      ++at;
      continue;
    }
    ++at;
    const bool is_end = at < text.size() && text[at] == '/';
    if (is_end) ++at;
    const std::string name = name_at(at);
    if (name.empty()) return "no name at " + std::to_string(at);
    if (is_end) {
      if (open.empty() || open.back() != name) return "</" + name + "> closes nothing";
      open.pop_back();
    } else {
      if (open.empty() && had_root) return "two roots";
      had_root = true;
      open.push_back(name);
    }
    std::vector<std::string> seen;
    while (at < text.size() && text[at] == ' ') {
      ++at;
      const std::string attribute = name_at(at);
      for (const std::string& other : seen) {
        if (other == attribute) return "attribute " + attribute + " twice in " + name;
      }
      seen.push_back(attribute);
      if (text.substr(at, 2) != "=\"") return "attribute " + attribute + " of " + name;
      at = text.find('"', at + 2);
      if (at == std::string_view::npos) return "open quote in " + name;
      ++at;
    }
    if (text.substr(at, 2) == "/>") {
      open.pop_back();
      at += 2;
    } else if (at < text.size() && text[at] == '>') {
      ++at;
    } else {
      return "tag " + name + " does not end at " + std::to_string(at);
    }
  }
  return open.empty() && had_root ? "" : "unclosed element";
}

}  // namespace magi::testing
