// SPDX-License-Identifier: Apache-2.0
// Functions of two or three bytes whose units name no directory.
        .macro  function name, bytes
        .text
        .globl  \name
        .type   \name, @function
\name:
.L\name\()_start:
        .fill   \bytes - 1, 1, 0x90
        ret
.L\name\()_end:
        .size   \name, \bytes
        .endm

        // The unit's header in .debug_info, after its length and version.
        .macro  unit_die name
        .uleb128 1
        .long   .L\name\()_line
        .quad   .L\name\()_start
        .long   .L\name\()_end - .L\name\()_start
        .endm

        .macro  unit4 name
        .section .debug_info, "", @progbits
        .long   .L\name\()_info_end - .L\name\()_info
.L\name\()_info:
        .short  4
        .long   .debug_abbrev
        .byte   8
        unit_die \name
.L\name\()_info_end:
        .endm

        .macro  unit5 name
        .section .debug_info, "", @progbits
        .long   .L\name\()_info_end - .L\name\()_info
.L\name\()_info:
        .short  5
        .byte   1, 8 // DW_UT_compile, bytes of an address
        .long   .debug_abbrev
        unit_die \name
.L\name\()_info_end:
        .endm

        // The header of a line program up to its tables.
        .macro  line_start name, version
        .section .debug_line, "", @progbits
.L\name\()_line:
        .long   .L\name\()_line_end - .L\name\()_line_version
.L\name\()_line_version:
        .short  \version
        .if     \version >= 5
        .byte   8, 0 // bytes of an address, of a segment's selector
        .endif
        .long   .L\name\()_program - .L\name\()_header
.L\name\()_header:
        .byte   1, 1, 1, -5, 14, 13 // instruction bytes, operations, is_stmt, line base, range, opcodes
        .byte   0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1
        .endm

        .macro  set_address name
        .byte   0, 9, 2 // DW_LNE_set_address
        .quad   .L\name\()_start
        .endm

        // One byte of code at `line` of the file numbered `file`; lines before it add up to `before`.
        .macro  row file, line, before
        .byte   4, \file // DW_LNS_set_file
        .byte   3 // DW_LNS_advance_line
        .sleb128 \line - \before
        .byte   1 // DW_LNS_copy
        .byte   2, 1 // DW_LNS_advance_pc
        .endm

        .macro  line_finish name
        .byte   0, 1, 1 // DW_LNE_end_sequence
.L\name\()_line_end:
        .endm

        .section .debug_abbrev, "", @progbits
        .uleb128 1
        .uleb128 0x11 // DW_TAG_compile_unit, no children
        .byte   0
        .uleb128 0x10 // DW_AT_stmt_list, DW_FORM_sec_offset
        .uleb128 0x17
        .uleb128 0x11 // DW_AT_low_pc, DW_FORM_addr
        .uleb128 0x01
        .uleb128 0x12 // DW_AT_high_pc, DW_FORM_data4
        .uleb128 0x06
        .uleb128 0
        .uleb128 0
        .uleb128 0

        // DWARF 4, and the line program defines its file.
        function defines_file, 2
        unit4   defines_file
        line_start defines_file, 4
        .byte   0 // no directories
        .byte   0 // no files
.Ldefines_file_program:
        .byte   0, 6, 3 // DW_LNE_define_file
        .asciz  "a"
        .byte   0, 0, 0 // in the unit's directory, no time, no size
        set_address defines_file
        row     1, 7, 1
        row     1, 7, 7
        line_finish defines_file

        // DWARF 4, and the files are in the table.
        function table4, 3
        unit4   table4
        line_start table4, 4
        .asciz  "/include"
        .byte   0
        .asciz  "relative.c"
        .byte   0, 0, 0
        .asciz  "/absolute/file.c"
        .byte   0, 0, 0
        .asciz  "included.h"
        .byte   1, 0, 0
        .byte   0
.Ltable4_program:
        set_address table4
        row     1, 3, 1
        row     2, 500, 3
        row     3, 9, 500
        line_finish table4

        // DWARF 5, whose line program has a directory of its own.
        function table5, 2
        unit5   table5
        line_start table5, 5
        .byte   1, 1, 8 // DW_LNCT_path, DW_FORM_string
        .byte   1
        .asciz  "/recorded"
        .byte   2, 1, 8, 2, 11 // and DW_LNCT_directory_index, DW_FORM_data1
        .byte   2
        .asciz  "first.c"
        .byte   0
        .asciz  "second.c"
        .byte   0
.Ltable5_program:
        set_address table5
        row     0, 11, 1
        row     1, 12, 11
        line_finish table5

        .section .note.GNU-stack, "", @progbits
