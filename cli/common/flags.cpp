// SPDX-License-Identifier: Apache-2.0
#include "common/flags.hpp"

#include <CLI/CLI.hpp>
#include <array>
#include <utility>

#include "base/check.hpp"
#include "common/files.hpp"

namespace magi::cli {
namespace {

constexpr Bounds kRows{0, kMaxRows};
constexpr const char* kSources =
    "exactly one of --mask, --cu-seqlens, --documents, --tokens, --tree";
constexpr const char* kRules =
    "at most one of --causal, --window, --block, --prefix, --chunk-causal";

using Parse = std::function<void(const std::string&)>;

void add(CLI::App& app, const std::string& name, const char* type, const std::string& help,
         const Parse& parse) {
  app.add_option_function<std::string>(name, parse, help)->type_name(type);
}

std::vector<PrefixTreeNode> parse_tree(const std::string& text) {
  std::vector<PrefixTreeNode> nodes;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const auto [parent, rows] = parse_pair("--tree[" + std::to_string(nodes.size()) + "]",
                                           text.substr(begin, end - begin), ':', {-1, kMaxRows});
    if (parent >= static_cast<std::int32_t>(nodes.size())) {
      throw invalid(
          "the parent of --tree[" + std::to_string(nodes.size()) + "]", parent,
          nodes.empty() ? "-1, as no node is before it" : "-1, or the index of a node before it");
    }
    nodes.push_back({.parent = parent, .rows = rows});
    begin = end + 1;
  }
  return nodes;
}

/// Names of those of `flags` that are given.
template <std::size_t N>
std::vector<const char*> given(const std::array<std::pair<const char*, bool>, N>& flags) {
  std::vector<const char*> names;
  for (const auto& [name, is_given] : flags) {
    if (is_given) names.push_back(name);
  }
  return names;
}

std::string listed(const std::vector<const char*>& names) {
  std::string text;
  for (const char* name : names) text += (text.empty() ? "" : " and ") + std::string(name);
  return text.empty() ? "nothing" : text;
}

std::vector<const char*> sources(const MaskFlags& flags) {
  return given<5>({{{"--mask", !flags.file.empty()},
                    {"--cu-seqlens", !flags.cu_seqlens.empty()},
                    {"--documents", !flags.documents.empty()},
                    {"--tokens", flags.tokens.has_value()},
                    {"--tree", !flags.tree.empty()}}});
}

std::vector<const char*> rules(const MaskFlags& flags) {
  return given<5>({{{"--causal", flags.is_causal},
                    {"--window", flags.window.has_value()},
                    {"--block", flags.block.has_value()},
                    {"--prefix", !flags.prefix.empty()},
                    {"--chunk-causal", flags.chunk_causal.has_value()}}});
}

void check_combination(const MaskFlags& flags) {
  const auto source = sources(flags);
  const auto rule = rules(flags);
  if (source.size() != 1) throw invalid("the mask", "given by " + listed(source), kSources);
  if (rule.size() > 1) throw invalid("the rule", "given by " + listed(rule), kRules);
  const bool has_documents = flags.file.empty() && flags.tree.empty();
  if (!has_documents && !rule.empty()) {
    throw invalid(rule[0], "given with " + listed(source),
                  "with --cu-seqlens, --documents or --tokens");
  }
  if (flags.num_global && !flags.is_causal && !flags.window) {
    throw invalid("--global", "given alone", "with --causal or --window");
  }
  if (!flags.cu_seqlens_k.empty() &&
      (flags.cu_seqlens.empty() ||
       (!rule.empty() && !flags.is_causal && !flags.window.has_value()))) {
    throw invalid("--cu-seqlens-k", "given with " + listed(rule.empty() ? source : rule),
                  "with --cu-seqlens and either no rule, --causal or --window");
  }
}

/// Prefix sums of the documents of --documents or --tokens.
std::vector<std::int32_t> prefix_sums(const MaskFlags& flags) {
  if (!flags.cu_seqlens.empty()) return flags.cu_seqlens;
  std::vector<std::int32_t> sums = {0};
  if (flags.tokens) return {0, *flags.tokens};
  std::int64_t total = 0;
  for (const std::int32_t length : flags.documents) {
    total += length;
    if (total > kMaxRows) {
      throw invalid("the sum of --documents", total, "0 to " + std::to_string(kMaxRows));
    }
    sums.push_back(static_cast<std::int32_t>(total));
  }
  return sums;
}

void add_rule_flags(CLI::App& app, MaskFlags& flags) {
  app.add_flag("--causal", flags.is_causal, "a row sees keys up to its own");
  add(app, "--window", "L,R", "a row sees L keys before and R after its own (-1: no bound)",
      [&flags](const std::string& text) {
        const auto [left, right] = parse_pair("--window", text, ',', {-1, kMaxRows});
        flags.window = Window{.left = left, .right = right};
      });
  add_int(app, "--global", flags.num_global, kRows,
          "leading keys of each document that all its rows see");
  add_int(app, "--block", flags.block, {1, kMaxRows},
          "block-causal: a row sees keys up to the end of its block of N");
  add(app, "--prefix", "N,...", "prefix-LM: leading keys of each document that all its rows see",
      [&flags](const std::string& text) { flags.prefix = parse_ints("--prefix", text, kRows); });
  add(app, "--chunk-causal", "SIZE,PREVIOUS",
      "a row sees its chunk causally and PREVIOUS chunks before it fully (-1: all)",
      [&flags](const std::string& text) {
        flags.chunk_causal = parse_pair("--chunk-causal", text, ',', {-1, kMaxRows});
      });
}

/// Rows in order, and attention balanced by what travels unless --work says otherwise.
void set_layout(const CLI::App& app, const std::string& name, PlanConfig& config) {
  if (name != "permuted" && name != "contiguous") {
    throw invalid("--layout", shown(name), "permuted or contiguous");
  }
  if (name == "permuted") return;
  if (app.count("--placement") > 0) {
    throw InvalidArgument("--placement is given beside --layout contiguous; allowed: one of them");
  }
  config.placement.algorithm = PlacementAlgorithm::SequentialSelect;
  if (app.count("--work") == 0) config.work = WorkMode::Auto;
}

void add_degree_flag(CLI::App& app, PlanConfig& config) {
  add(app, "--degree", "N|auto", "remote stages; 0: fetch everything first (default auto)",
      [&config](const std::string& text) {
        config.overlap_degree = parse_int_or_auto("--degree", text, {0, 64});
      });
}

void add_stages_flag(CLI::App& app, PlanConfig& config) {
  add(app, "--stages", "MODE", "auto, heads or rows: how stages are cut",
      [&config](const std::string& text) {
        if (text != "auto" && text != "heads" && text != "rows") {
          throw invalid("--stages", shown(text), "auto, heads or rows");
        }
        config.stage_mode = text == "auto"    ? StageMode::Auto
                            : text == "heads" ? StageMode::Heads
                                              : StageMode::Rows;
      });
}

}  // namespace

void add_int(CLI::App& app, const std::string& name, std::int32_t& target, Bounds bounds,
             const std::string& help) {
  add(app, name, "N", help + " (default " + std::to_string(target) + ")",
      [name, &target, bounds](const std::string& text) {
        target = static_cast<std::int32_t>(parse_int(name, text, bounds));
      });
}

void add_int(CLI::App& app, const std::string& name, std::optional<std::int32_t>& target,
             Bounds bounds, const std::string& help) {
  add(app, name, "N", help, [name, &target, bounds](const std::string& text) {
    target = static_cast<std::int32_t>(parse_int(name, text, bounds));
  });
}

void add_path(CLI::App& app, const std::string& name, const char* type, std::string& target,
              const std::string& help) {
  add(app, name, type, help, [name, &target](const std::string& text) {
    if (text.empty()) throw invalid(name, "''", "a path");
    target = text;
  });
}

std::vector<const CLI::Option*> options_of(const CLI::App& app, const std::function<void()>& add) {
  const auto first = static_cast<std::ptrdiff_t>(app.get_options().size());
  add();
  const std::vector<const CLI::Option*> options = app.get_options();
  return {options.begin() + first, options.end()};
}

void refuse_given(const std::vector<const CLI::Option*>& options, const char* reason,
                  const char* allowed) {
  for (const CLI::Option* option : options) {
    if (option->count() > 0) throw invalid(option->get_name(), reason, allowed);
  }
}

void add_mask_flags(CLI::App& app, MaskFlags& flags) {
  app.option_defaults()->group("Mask, one of");
  add_path(app, "--mask", "FILE", flags.file,
           "a mask as JSON, see examples/masks (- for standard input)");
  add(app, "--cu-seqlens", "0,N,...", "packed documents by prefix sums",
      [&flags](const std::string& text) {
        flags.cu_seqlens = parse_ints("--cu-seqlens", text, kRows);
      });
  add(app, "--cu-seqlens-k", "0,N,...", "cross-attention: the documents' keys by prefix sums",
      [&flags](const std::string& text) {
        flags.cu_seqlens_k = parse_ints("--cu-seqlens-k", text, kRows);
      });
  add(app, "--documents", "N,...", "packed documents by length", [&flags](const std::string& text) {
    flags.documents = parse_ints("--documents", text, kRows);
  });
  add_int(app, "--tokens", flags.tokens, {1, kMaxRows}, "one document of N tokens");
  add(app, "--tree", "PARENT:ROWS,...",
      "a prefix tree in packed order; PARENT is an earlier index or -1",
      [&flags](const std::string& text) { flags.tree = parse_tree(text); });
  app.option_defaults()->group("Which keys a row sees, one of (default: all of its document)");
  add_rule_flags(app, flags);
  app.option_defaults()->group("Options");
}

Mask make_mask(const MaskFlags& flags) {
  check_combination(flags);
  if (!flags.file.empty()) return mask_from_json(read_file("--mask", flags.file));
  if (!flags.tree.empty()) return mask_prefix_tree(flags.tree);
  const std::vector<std::int32_t> sums = prefix_sums(flags);
  if (flags.block) return mask_block_causal(sums, *flags.block);
  if (!flags.prefix.empty()) return mask_prefix_lm(sums, flags.prefix);
  if (flags.chunk_causal) {
    return mask_chunk_causal(sums, flags.chunk_causal->first, flags.chunk_causal->second);
  }
  const DocumentRule rule{.is_causal = flags.is_causal,
                          .window = flags.window.value_or(Window{}),
                          .num_global = flags.num_global.value_or(0)};
  return mask_from_cu_seqlens(sums, flags.cu_seqlens_k.empty() ? sums : flags.cu_seqlens_k, rule);
}

PlanConfig default_plan_config() { return {.num_ranks = 4, .num_heads_q = 32, .num_heads_kv = 8}; }

void add_shape_flags(CLI::App& app, PlanConfig& config) {
  app.option_defaults()->group("Shape");
  add_int(app, "--heads-q", config.num_heads_q, {1, 65536}, "query heads");
  add_int(app, "--heads-kv", config.num_heads_kv, {1, 65536}, "key and value heads");
  add(app, "--head-dim", "N", "elements of a head (default 128)",
      [&config](const std::string& text) {
        config.head_dim_qk = config.head_dim_v =
            static_cast<std::int32_t>(parse_int("--head-dim", text, {1, 65536}));
      });
  add(app, "--head-dim-v", "N", "elements of a head of values (default that of --head-dim)",
      [&config](const std::string& text) {
        config.head_dim_v = static_cast<std::int32_t>(parse_int("--head-dim-v", text, {1, 65536}));
      });
  add_int(app, "--element-bytes", config.element_bytes, {1, 8}, "bytes of an element on the wire");
  app.option_defaults()->group("Options");
}

void add_search_flags(CLI::App& app, PlanConfig& config) {
  app.option_defaults()->group("Plan");
  add(app, "--tolerance", "X", "a rank may hold up to (1 + X) times the mean chunk count",
      [&config](const std::string& text) {
        config.placement.token_tolerance = parse_number("--tolerance", text, 0.0, 1000.0);
      });
  app.add_flag("--uneven", config.placement.uneven_shard,
               "no padding: the last chunk may be short");
  add_stages_flag(app, config);
  app.option_defaults()->group("Options");
}

void add_plan_flags(CLI::App& app, PlanConfig& config) {
  config.work = WorkMode::Chosen;
  app.option_defaults()->group("Ranks");
  add_int(app, "--ranks", config.num_ranks, {1, 4096}, "ranks that share the sequence");
  add_int(app, "--devices-per-node", config.devices_per_node, {0, 4096},
          "ranks that share a node; 0: all of them");
  add_shape_flags(app, config);
  app.option_defaults()->group("Plan");
  add_int(app, "--chunk", config.placement.chunk_size, {1, kMaxRows}, "rows of a chunk, at most");
  add(app, "--placement", "NAME", "how chunks go to ranks (default auto)",
      [&config](const std::string& text) {
        config.placement.algorithm = placement_from_name(text);
      });
  add(app, "--work", "MODE",
      "what travels: keys, queries (these too), heads (both, to ranks that share out the heads), "
      "or the fastest: auto (default: keys, or the fastest of a few where a fifth of the step "
      "could "
      "be gained)",
      [&config](const std::string& text) { config.work = work_from_name(text); });
  add_int(app, "--head-shares", config.head_shares, {0, 65536},
          "with --work heads: how many shares; 0: the fastest");
  add(app, "--layout", "NAME",
      "contiguous: each rank keeps a run of the rows, work is moved instead (default permuted)",
      [&app, &config](const std::string& text) { set_layout(app, text, config); });
  add_int(app, "--max-runs", config.max_runs, {1, kMaxRows},
          "recurrent layers: runs of a rank that come after rows of other ranks, at most");
  add(app, "--max-exchange-bytes", "N",
      "refuse plans of which a rank needs more for rows of others; 0: no bound (default 4 GiB, "
      "which refuses none)",
      [&config](const std::string& text) {
        config.max_exchange_bytes = parse_int("--max-exchange-bytes", text, kExchangeBytes);
      });
  add_degree_flag(app, config);
  add_search_flags(app, config);
}

}  // namespace magi::cli
