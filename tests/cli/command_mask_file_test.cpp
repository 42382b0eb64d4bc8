// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/run_magi.hpp"
#include "cli/temporary_folder.hpp"
#include "magi/mask_builders.hpp"
#include "magi/mask_runs.hpp"
#include "magi/plan.hpp"

namespace magi::testing {
namespace {

TEST(CommandMaskFiles, ExamplesArePlannedAndDrawn) {
  for (const auto& entry : std::filesystem::directory_iterator(MAGI_EXAMPLE_MASKS)) {
    if (entry.path().extension() != ".json") continue;
    SCOPED_TRACE(entry.path().filename());
    const std::string path = entry.path().string();
    const Outcome planned = run_magi("plan --ranks 2 --json --mask " + path);
    ASSERT_EQ(planned.code, 0) << planned.err;
    const Plan plan = plan_from_json(planned.out);
    const TemporaryFolder folder;
    std::filesystem::copy_file(std::filesystem::path(MAGI_MASK_DATA) / entry.path().filename(),
                               folder.path("wanted.json"));
    EXPECT_EQ(runs_of(plan.mask), runs_of(mask_from_json(folder.read("wanted.json"))));
    const std::string pictures = folder.path("pictures");
    const Outcome shown = run_magi("show --mask-only " + path + " --out " + pictures);
    EXPECT_EQ(shown.code, 0) << shown.err;
    EXPECT_EQ(shown.out, pictures + "/mask.svg\n");
  }
}

TEST(CommandMaskFiles, BadOnesAreRefusedByKey) {
  const Outcome outcome = run_magi("show - --mask-only", "",
                                   R"({"form": "tree", "parents": [-1, 7], "lengths": [1, 1]})");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("parents[1] is 7; allowed: -1, or the index of a node before it\n"),
            std::string::npos)
      << outcome.err;
  EXPECT_EQ(run_magi("plan --mask -", "", R"({"form": "forest"})").code, 2);
  for (const char* text : {"{}", "[]", "", R"({"x": 1})"}) {
    const std::string error = run_magi("show - --text", "", text).err;
    EXPECT_NE(error.find("FILE is neither a mask nor a plan; allowed: "), std::string::npos)
        << error;
  }
}

}  // namespace
}  // namespace magi::testing
