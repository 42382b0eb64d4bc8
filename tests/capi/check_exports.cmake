# SPDX-License-Identifier: Apache-2.0
# Fails unless LIBRARY exports exactly the names in EXPORTS and needs nothing of Python, torch or
# MPI. A new function is added to EXPORTS by hand: that is the moment to think about the ABI.
execute_process(COMMAND ${NM} -D --defined-only ${LIBRARY} OUTPUT_VARIABLE defined
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${NM} -D --undefined-only ${LIBRARY} OUTPUT_VARIABLE needed
                COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]+" lines "${defined}")
set(names "")
foreach(line IN LISTS lines)
  if(line MATCHES " A ")
    continue()  # the name of the symbol version
  endif()
  string(REGEX REPLACE "^.* ([^ @]+)(@.*)?$" "\\1" name "${line}")
  list(APPEND names ${name})
endforeach()
list(SORT names)
file(STRINGS ${EXPORTS} expected)
list(SORT expected)
if(NOT names)
  message(FATAL_ERROR "${LIBRARY} exports nothing")
endif()
set(missing ${expected})
list(REMOVE_ITEM missing ${names})
set(surplus ${names})
list(REMOVE_ITEM surplus ${expected})
if(missing OR surplus)
  message(FATAL_ERROR "exports differ from ${EXPORTS}: missing '${missing}', surplus '${surplus}'")
endif()
if(needed MATCHES " (_?Py[A-Z_][A-Za-z_]*|MPI_[A-Za-z_]+|_ZN[A-Z]*(3c10|2at|5torch)[A-Za-z0-9_]*)")
  message(FATAL_ERROR "${LIBRARY} needs ${CMAKE_MATCH_1}")
endif()
