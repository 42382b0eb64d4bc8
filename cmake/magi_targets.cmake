# SPDX-License-Identifier: Apache-2.0
# How targets are made: one static library per layer, which links only the layers below it.

add_library(magi_flags INTERFACE)
target_compile_options(magi_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion $<$<BOOL:${MAGI_WERROR}>:-Werror> -Wno-missing-field-initializers>)
# GCC 12 reports overlapping copies in plain `literal + string` (GCC bug 105651).
target_compile_options(magi_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)
# Clang's -Wconversion takes in signs, GCC's does not; both compilers judge by the same rule.
target_compile_options(magi_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-sign-conversion>)
if(MAGI_SANITIZE)
  target_compile_options(magi_flags INTERFACE -fsanitize=${MAGI_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all)
  target_link_options(magi_flags INTERFACE -fsanitize=${MAGI_SANITIZE})
endif()

if(MAGI_FUZZ)
  # Every layer reports its coverage to the fuzzer; only the targets of tests/fuzz link its main.
  target_compile_options(magi_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-fsanitize=fuzzer-no-link>)
endif()

# magi_layer(NAME SOURCES a.cpp b.cpp USES lower_layer ... PRIVATE_USES library ... HEADERS library ...)
# HEADERS are libraries of headers that the sources alone include: programs that link need none of them.
# A layer sees include/ and, of src/, whatever it includes by path from src/; tools/lint checks that path against the layer table.
function(magi_layer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES;PRIVATE_USES;HEADERS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                            $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>)
  target_link_libraries(${name} PUBLIC ${ARG_USES}
                        PRIVATE $<BUILD_INTERFACE:magi_flags> ${ARG_PRIVATE_USES})
  foreach(library ${ARG_HEADERS})
    target_link_libraries(${name} PRIVATE $<BUILD_INTERFACE:${library}>)
  endforeach()
endfunction()

# magi_same_numbers(TARGET ...)
# Their floating point gives the same bits on every processor: GCC else fuses multiplications and additions where
# the processor can, as 64-bit Arm does, which x86-64 without options does not.
function(magi_same_numbers)
  foreach(target ${ARGN})
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
  endforeach()
endfunction()

# magi_test(NAME SOURCES a_test.cpp ... USES layer ... LABELS cpu)
# One gtest executable and one ctest entry.
function(magi_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS cpu)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${ARG_USES} GTest::gtest GTest::gtest_main magi_flags)
  add_test(NAME ${name} COMMAND ${name})
  set(limit_s 300)
  if(CMAKE_CROSSCOMPILING_EMULATOR)
    set(limit_s 3000)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${limit_s})
endfunction()
