// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "demo/check.hpp"
#include "demo/corpus.hpp"
#include "demo/scenes.hpp"

namespace magi::cli {

/// Everything that the demonstration tells.
struct DemoReport {
  const Corpus& corpus;
  const std::vector<Scene>& scenes;
  std::vector<SceneCheck> checks;                  ///< of each scene
  std::vector<std::vector<std::string>> pictures;  ///< paths, of each scene
  std::string launch;                              ///< how the ranks ran
  DType type = DType::Float32;                     ///< of what attention read
  std::string device;                              ///< that each rank computed on
  std::string transport;                           ///< name of the group

  bool holds() const;
};

std::string report_text(const DemoReport& report);
std::string report_json(const DemoReport& report);

}  // namespace magi::cli
