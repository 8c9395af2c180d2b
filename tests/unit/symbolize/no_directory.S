// SPDX-License-Identifier: Apache-2.0
// A function whose unit names no directory, while its line program defines a file in it (DWARF 4).
        .text
        .globl  no_directory
        .type   no_directory, @function
no_directory:
.Lstart:
        nop
        ret
.Lend:
        .size   no_directory, .Lend - .Lstart

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

        .section .debug_info, "", @progbits
        .long   .Linfo_end - .Linfo
.Linfo:
        .short  4
        .long   .debug_abbrev
        .byte   8
        .uleb128 1
        .long   .debug_line
        .quad   .Lstart
        .long   .Lend - .Lstart
.Linfo_end:

        .section .debug_line, "", @progbits
        .long   .Lline_end - .Lline
.Lline:
        .short  4
        .long   .Lprogram - .Lheader
.Lheader:
        .byte   1, 1, 1, -5, 14, 13 // instruction bytes, operations, is_stmt, line base, range, opcodes
        .byte   0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1
        .byte   0 // no directories
        .byte   0 // no files
.Lprogram:
        .byte   0 // DW_LNE_define_file
        .uleb128 6
        .byte   3
        .asciz  "a"
        .uleb128 0 // in the unit's directory
        .uleb128 0
        .uleb128 0
        .byte   0 // DW_LNE_set_address
        .uleb128 9
        .byte   2
        .quad   .Lstart
        .byte   1 // DW_LNS_copy
        .byte   2 // DW_LNS_advance_pc
        .uleb128 .Lend - .Lstart
        .byte   0 // DW_LNE_end_sequence
        .uleb128 1
        .byte   1
.Lline_end:

        .section .note.GNU-stack, "", @progbits
