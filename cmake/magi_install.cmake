# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts into a prefix: libmagi with its headers, the static layers behind the
# C++ headers, the command, and what CMake and pkg-config need to find them. Every path is found from
# that of the file that names it, so a prefix may be moved.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/magi)
set(layers_folder ${CMAKE_INSTALL_LIBDIR}/magi)  # of archives that only find_package and pkg-config name

# magi_closure(OUT target ...): the targets of this project that link these, users before used.
function(magi_closure out)
  set(found ${ARGN})
  set(open ${ARGN})
  while(open)
    list(POP_FRONT open target)
    get_target_property(kind ${target} TYPE)
    if(kind STREQUAL INTERFACE_LIBRARY)
      get_target_property(used ${target} INTERFACE_LINK_LIBRARIES)
    else()
      get_target_property(used ${target} LINK_LIBRARIES)
    endif()
    foreach(library ${used})
      if(TARGET ${library} AND library MATCHES "^magi_")
        list(REMOVE_ITEM found ${library})  # to behind its last user
        list(APPEND found ${library})
        list(APPEND open ${library})
      endif()
    endforeach()
  endwhile()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

set_target_properties(magi_shared PROPERTIES EXPORT_NAME magi)
set_target_properties(magi_cxx PROPERTIES EXPORT_NAME cxx)
magi_closure(layers magi_cxx)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/magi DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT development)
install(TARGETS magi_shared EXPORT magi_c_targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS ${layers} EXPORT magi_cxx_targets
        ARCHIVE DESTINATION ${layers_folder} COMPONENT development
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
foreach(language c cxx)
  install(EXPORT magi_${language}_targets NAMESPACE magi:: DESTINATION ${config_folder}
          COMPONENT development)
endforeach()
if(TARGET magi_mpi)
  set_target_properties(magi_mpi PROPERTIES EXPORT_NAME mpi)
  install(TARGETS magi_mpi EXPORT magi_mpi_targets
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT mpi NAMELINK_COMPONENT mpi
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT magi_mpi_targets NAMESPACE magi:: DESTINATION ${config_folder} COMPONENT mpi)
endif()
if(MAGI_BUILD_COMMAND)
  set_target_properties(magi PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS magi RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT command)
endif()

configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/magi-config.cmake.in ${PROJECT_BINARY_DIR}/magi-config.cmake
  INSTALL_DESTINATION ${config_folder} NO_SET_AND_CHECK_MACRO)
# Before 1.0 every minor version may change the C++ interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/magi-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/magi-config.cmake ${PROJECT_BINARY_DIR}/magi-config-version.cmake
        DESTINATION ${config_folder} COMPONENT development)

# pkg-config: magi is the C ABI; magi-cxx the static layers, in the order that a linker wants.
file(RELATIVE_PATH prefix_from_pc /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
set(layer_flags "")
foreach(layer ${layers})
  get_target_property(kind ${layer} TYPE)
  if(NOT kind STREQUAL INTERFACE_LIBRARY)
    string(APPEND layer_flags " -l${layer}")
  endif()
endforeach()
set(system_flags "${OpenMP_CXX_FLAGS} -pthread -ldl")
if(MAGI_HAS_CUDA)
  set(system_flags "${CUDA_cudart_static_LIBRARY} -lrt ${system_flags}")
endif()
foreach(name magi magi-cxx)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
          COMPONENT development)
endforeach()
