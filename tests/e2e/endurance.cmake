# SPDX-License-Identifier: Apache-2.0
# Many cycles, faults and hostile processes, one ctest entry per case. GPU_PROFILED_CYCLES=1000 runs the
# full counts of endurance.py.
function(gpuprof_endurance script)
  math(EXPR timeout "240 * ${GPU_PROFILED_TIMEOUT_SCALE}")
  foreach(case IN LISTS ARGN)
    set(name "${script}.${case}")
    add_test(NAME ${name} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/${script}.py ${case}
      --build ${CMAKE_BINARY_DIR})
    set_tests_properties(${name} PROPERTIES LABELS "e2e" TIMEOUT ${timeout} SKIP_RETURN_CODE 77 RUN_SERIAL ON)
  endforeach()
endfunction()

gpuprof_endurance(endurance attach_cycles control_cycles run_exits attach_exits forks)
gpuprof_endurance(endurance_faults hung_flush hung_flush_attached cancelled_thread wrap_armed wrap_idle clock_step
  broken_times dropped_records daemon_stopped daemon_stopped_to_the_end control_sealed control_overwritten status_overwritten)
gpuprof_endurance(other_clients idle before between during yield yield_busy yield_quiet yield_unasked yield_run)
gpuprof_endurance(kill_points attach run)
gpuprof_endurance(endurance_hostile forged bad_calls bad_records flood)
gpuprof_endurance(privileges file_capabilities capability_missing under_fire)
# The manifests of docker/, whose containers are started as they say. Not with a sanitizer's runtime, which asks
# for more than these give.
if(NOT GPU_PROFILED_SANITIZE)
  gpuprof_endurance(pod sidecar daemonset compose older_kernel)
endif()

# The full counts, where somebody asks for what is slow (scripts/check --quick leaves them out).
option(GPU_PROFILED_FULL_ENDURANCE "Tests of 1000 cycles: about an hour" OFF)
if(GPU_PROFILED_FULL_ENDURANCE)
  foreach(case attach_cycles control_cycles run_exits attach_exits forks)
    set(cycles 1000)
    if(case STREQUAL forks)
      set(cycles 100)
    endif()
    add_test(NAME endurance_full.${case} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/endurance.py
      ${case} --build ${CMAKE_BINARY_DIR} --cycles ${cycles})
    set_tests_properties(endurance_full.${case} PROPERTIES LABELS "e2e;slow" TIMEOUT 7200 SKIP_RETURN_CODE 77
      RUN_SERIAL ON)
  endforeach()
endif()
