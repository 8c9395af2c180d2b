# SPDX-License-Identifier: Apache-2.0
# PC sampling against ground truth (pc_sampling.py), one ctest entry per case.
math(EXPR timeout "180 * ${GPU_PROFILED_TIMEOUT_SCALE}")
foreach(case continuous documented_keys late_attach views saved_cubins short_lived_modules short_lived_names full_buffer refused refused_start serialized
        graph_at_start graph_mid_run collective cycles)
  add_test(NAME pc_sampling.${case} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/pc_sampling.py ${case}
    --build ${CMAKE_BINARY_DIR})
  set_tests_properties(pc_sampling.${case} PROPERTIES LABELS "e2e" TIMEOUT ${timeout} SKIP_RETURN_CODE 77 RUN_SERIAL ON)
endforeach()
# One process samples a GPU (pc_gpus.py).
foreach(case one_gpu one_gpu_serialized two_gpus own_threads own_threads_serialized children)
  add_test(NAME pc_gpus.${case} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/pc_gpus.py ${case}
    --build ${CMAKE_BINARY_DIR})
  set_tests_properties(pc_gpus.${case} PROPERTIES LABELS "e2e" TIMEOUT ${timeout} SKIP_RETURN_CODE 77 RUN_SERIAL ON)
endforeach()
# The daemon's memory (many_targets.py).
math(EXPR timeout "300 * ${GPU_PROFILED_TIMEOUT_SCALE}")
add_test(NAME many_targets.memory COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/many_targets.py memory
  --build ${CMAKE_BINARY_DIR})
set_tests_properties(many_targets.memory PROPERTIES LABELS "e2e" TIMEOUT ${timeout} SKIP_RETURN_CODE 77 RUN_SERIAL ON)
# Sessions recorded on a GPU (recorded.py).
math(EXPR timeout "120 * ${GPU_PROFILED_TIMEOUT_SCALE}")
foreach(case inlined graph graph_serialized triton torch_step late_attach serialized)
  add_test(NAME recorded.${case} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/recorded.py ${case}
    --build ${CMAKE_BINARY_DIR})
  set_tests_properties(recorded.${case} PROPERTIES LABELS "e2e" TIMEOUT ${timeout} SKIP_RETURN_CODE 77 RUN_SERIAL ON)
endforeach()
