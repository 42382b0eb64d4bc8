# SPDX-License-Identifier: Apache-2.0
# GoogleTest from its sources, for another processor than this machine's, where no package has it.
set(INSTALL_GTEST OFF CACHE INTERNAL "")
add_subdirectory(${MAGI_GOOGLETEST} ${CMAKE_BINARY_DIR}/googletest EXCLUDE_FROM_ALL SYSTEM)
foreach(library gtest gtest_main gmock)
  if(NOT TARGET GTest::${library})
    add_library(GTest::${library} ALIAS ${library})
  endif()
endforeach()
