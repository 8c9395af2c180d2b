# SPDX-License-Identifier: Apache-2.0
# gpu-profiled --all and --cgroup (node.py), one ctest entry per case and fallback mode, in namespaces of their own.
math(EXPR timeout "180 * ${GPU_PROFILED_TIMEOUT_SCALE}")
function(gpuprof_node case mode)
  string(REPLACE "," "+" suffix "${mode}")
  set(name "node.${case}")
  if(mode)
    set(name "${name}.${suffix}")
  endif()
  add_test(NAME ${name} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/node.py ${case}
    --build ${CMAKE_BINARY_DIR} --mode "${mode}")
  set_tests_properties(${name} PROPERTIES LABELS "e2e" TIMEOUT ${timeout} SKIP_RETURN_CODE 77 RUN_SERIAL ON)
endfunction()

foreach(case before_and_after nothing_yet windows files exclude exclude_cgroup cgroup_v2 cgroup_v1 cgroup_wrong one_table cost)
  gpuprof_node(${case} "")
endforeach()
foreach(case before_and_after files exclude cgroup_v2)
  gpuprof_node(${case} no_uprobe_multi,no_sleepable,no_nop5,no_find_vma)
endforeach()
