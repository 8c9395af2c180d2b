# SPDX-License-Identifier: Apache-2.0
# gpu-profiled doctor on broken and odd set-ups (doctor.py).
foreach(case states profiled files users namespaces environment changes trees host documented_keys)
  add_test(NAME doctor.${case} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/doctor.py ${case}
    --build ${CMAKE_BINARY_DIR})
  set_tests_properties(doctor.${case} PROPERTIES LABELS "e2e" TIMEOUT 300 SKIP_RETURN_CODE 77)
endforeach()
