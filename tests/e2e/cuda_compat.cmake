# SPDX-License-Identifier: Apache-2.0
# Which libcuda a program runs on, and `run --cuda-compat` (cuda_compat.py), in roots of their own. Not with the
# sanitizers: a libcuda that has them cannot be asked in a process that has not.
if(NOT GPU_PROFILED_SANITIZE)
  foreach(case data_center not_newer gpu_class jetson missing_libnvrm nixos opengl_driver_holds_compat
          old_compat_in_runpath asked_as_the_user)
    add_test(NAME cuda_compat.${case} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/cuda_compat.py ${case}
      --build ${CMAKE_BINARY_DIR})
    set_tests_properties(cuda_compat.${case} PROPERTIES LABELS "e2e" TIMEOUT 300 SKIP_RETURN_CODE 77)
  endforeach()
endif()
