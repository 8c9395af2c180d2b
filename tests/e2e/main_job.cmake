# SPDX-License-Identifier: Apache-2.0
# The main job against ground truth (main_job.py), one ctest entry per case and fallback mode.
find_package(Python3 REQUIRED COMPONENTS Interpreter)

function(gpuprof_main_job case mode seconds)
  math(EXPR timeout "${seconds} * ${GPU_PROFILED_TIMEOUT_SCALE}")
  string(REPLACE "," "+" suffix "${mode}")
  set(name "main_job.${case}")
  if(mode)
    set(name "${name}.${suffix}")
  endif()
  add_test(NAME ${name} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/main_job.py ${case}
    --build ${CMAKE_BINARY_DIR} --mode "${mode}")
  # Alone: it fills both rings and both cores of a small machine.
  set_tests_properties(${name} PROPERTIES LABELS "e2e" TIMEOUT ${timeout} SKIP_RETURN_CODE 77 RUN_SERIAL ON)
endfunction()

foreach(mode "" no_uprobe_multi no_sleepable no_nop5 no_find_vma
        no_uprobe_multi,no_sleepable,no_nop5,no_find_vma)
  gpuprof_main_job(ground_truth "${mode}" 180)
endforeach()
gpuprof_main_job(every_launch "" 180)
gpuprof_main_job(sampling "" 180)
gpuprof_main_job(rare_kernels "" 180)
gpuprof_main_job(late_attach "" 180)
gpuprof_main_job(daemon_killed "" 120)
gpuprof_main_job(neighbour "" 120)
gpuprof_main_job(short_runs "" 240)
# That the cases of this folder test what they were told to (products.py).
math(EXPR timeout "120 * ${GPU_PROFILED_TIMEOUT_SCALE}")
add_test(NAME products.named COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/products.py named
  --build ${CMAKE_BINARY_DIR})
set_tests_properties(products.named PROPERTIES LABELS "e2e" TIMEOUT ${timeout} SKIP_RETURN_CODE 77 RUN_SERIAL ON)
