# SPDX-License-Identifier: Apache-2.0
# `cpack` in a build folder that was configured with -DCMAKE_INSTALL_PREFIX=/usr makes Debian packages.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME magi)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "the authors of magi")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_STRIP_FILES ON)

# magi_package(COMPONENT NAME SECTION SUMMARY [DEPENDS])
macro(magi_package component name section summary)
  list(APPEND CPACK_COMPONENTS_ALL ${component})
  string(TOUPPER ${component} key)
  set(CPACK_DEBIAN_${key}_PACKAGE_NAME ${name})
  set(CPACK_DEBIAN_${key}_PACKAGE_SECTION ${section})
  set(CPACK_COMPONENT_${key}_DESCRIPTION "${summary}")
  set(CPACK_DEBIAN_${key}_PACKAGE_DEPENDS "${ARGN}")
endmacro()

set(CPACK_COMPONENTS_ALL "")
magi_package(runtime libmagi1 libs "Exact attention over ranks for any mask: the shared library")
magi_package(development libmagi-dev libdevel
             "Exact attention over ranks for any mask: headers and static libraries"
             "libmagi1 (= ${PROJECT_VERSION})")
if(MAGI_BUILD_COMMAND)
  magi_package(command magi science "Exact attention over ranks for any mask: the magi command")
endif()
if(TARGET magi_mpi)
  magi_package(mpi libmagi-mpi1 libs "Exact attention over ranks for any mask: ranks of MPI programs"
               "libmagi1 (= ${PROJECT_VERSION})")
endif()
include(CPack)
