// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/values.hpp"
#include "magi/mask_builders.hpp"
#include "magi/plan.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

// Flags that several subcommands share.
namespace magi::cli {

/// Registers `--name N`; the target keeps its value when the flag is absent.
void add_int(CLI::App& app, const std::string& name, std::int32_t& target, Bounds bounds,
             const std::string& help);
void add_int(CLI::App& app, const std::string& name, std::optional<std::int32_t>& target,
             Bounds bounds, const std::string& help);

/// Registers a flag or positional argument that takes a path, which is not empty.
void add_path(CLI::App& app, const std::string& name, const char* type, std::string& target,
              const std::string& help);

/// The options that `add` registers.
std::vector<const CLI::Option*> options_of(const CLI::App& app, const std::function<void()>& add);
/// Throws InvalidArgument naming the first of `options` that is given, as it would have no effect.
void refuse_given(const std::vector<const CLI::Option*>& options, const char* reason,
                  const char* allowed);

/// The values of the mask flags: one source, and for packed documents one rule.
struct MaskFlags {
  std::string file;
  std::vector<std::int32_t> cu_seqlens;
  std::vector<std::int32_t> cu_seqlens_k;
  std::vector<std::int32_t> documents;
  std::optional<std::int32_t> tokens;
  std::vector<PrefixTreeNode> tree;
  bool is_causal = false;
  std::optional<Window> window;
  std::optional<std::int32_t> num_global;
  std::optional<std::int32_t> block;
  std::vector<std::int32_t> prefix;
  std::optional<std::pair<std::int32_t, std::int32_t>> chunk_causal;  ///< size, earlier chunks
};
void add_mask_flags(CLI::App& app, MaskFlags& flags);
/// Throws InvalidArgument unless exactly one source and at most one rule are given.
Mask make_mask(const MaskFlags& flags);

/// Flags of heads, head dim and element size.
void add_shape_flags(CLI::App& app, PlanConfig& config);
/// Flags of how plans are searched and cut into stages.
void add_search_flags(CLI::App& app, PlanConfig& config);
/// Those, and flags of every other field of a plan's configuration that a user chooses.
void add_plan_flags(CLI::App& app, PlanConfig& config);
/// The configuration that flags change: four ranks, 32:8 heads of 128.
PlanConfig default_plan_config();

}  // namespace magi::cli
