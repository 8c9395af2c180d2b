# SPDX-License-Identifier: Apache-2.0
# How targets are made: one library per folder, warnings, sanitizers, tests.

add_library(gpuprof_options INTERFACE)
target_include_directories(gpuprof_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(gpuprof_options INTERFACE
  -Wall -Wextra -Wshadow $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
  # At -O3 GCC 12 sees overlapping copies in `"text" + std::string` that are none (its bug 105651).
  $<$<AND:$<CONFIG:Release>,$<COMPILE_LANG_AND_ID:CXX,GNU>>:-Wno-restrict>
  $<$<BOOL:${GPU_PROFILED_WERROR}>:-Werror>)
# What a test's timeout, which only a hang should meet, is multiplied by.
set(GPU_PROFILED_TIMEOUT_SCALE 1)
if(GPU_PROFILED_SANITIZE)
  set(GPU_PROFILED_TIMEOUT_SCALE 4)
  target_compile_options(gpuprof_options INTERFACE -fsanitize=${GPU_PROFILED_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(gpuprof_options INTERFACE -fsanitize=${GPU_PROFILED_SANITIZE})
  # Processes of any user may have a finding.
  set(GPU_PROFILED_SANITIZER_REPORTS ${PROJECT_BINARY_DIR}/sanitizer-reports)
  file(MAKE_DIRECTORY ${GPU_PROFILED_SANITIZER_REPORTS})
  file(CHMOD ${GPU_PROFILED_SANITIZER_REPORTS} PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_WRITE GROUP_EXECUTE WORLD_READ WORLD_WRITE WORLD_EXECUTE)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/sanitizer_options.c.in ${PROJECT_BINARY_DIR}/sanitizer_options.c @ONLY)
  target_sources(gpuprof_options INTERFACE
    $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:${PROJECT_BINARY_DIR}/sanitizer_options.c>)
endif()

# gpuprof_library(<folder> SOURCES ... PUBLIC ... PRIVATE ...): static library gpuprof_<folder>, used
# as gpuprof::<folder>.
function(gpuprof_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(gpuprof_${name} STATIC ${ARG_SOURCES})
  add_library(gpuprof::${name} ALIAS gpuprof_${name})
  target_link_libraries(gpuprof_${name} PUBLIC gpuprof_options ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
endfunction()

# gpuprof_test(<name> LABELS unit SOURCES ... LIBS ... [TIMEOUT s]): one GoogleTest binary, one ctest
# entry per TEST.
function(gpuprof_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "LABELS;SOURCES;LIBS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * ${GPU_PROFILED_TIMEOUT_SCALE}")
  add_executable(${name} ${ARG_SOURCES})
  # A sanitizer's checks in the many EXPECT_s of a test cost GCC five times the time where it optimises.
  if(GPU_PROFILED_SANITIZE)
    target_compile_options(${name} PRIVATE -O0)
  endif()
  if(CMAKE_CROSSCOMPILING)
    target_compile_definitions(${name} PRIVATE GPUPROF_EMULATED)
  endif()
  target_link_libraries(${name} PRIVATE gpuprof_options ${ARG_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)
  include(GoogleTest)
  gtest_discover_tests(${name} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT ${ARG_TIMEOUT})
  # Not among those: CMake 3.25 takes a second label for the next property, and loses what follows.
  set(labels ${CMAKE_CURRENT_BINARY_DIR}/${name}_labels.cmake)
  file(CONFIGURE OUTPUT ${labels} @ONLY CONTENT
"if(@name@_TESTS)
  set_tests_properties(\${@name@_TESTS} PROPERTIES LABELS \"@ARG_LABELS@\")
endif()
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${labels})
endfunction()
