/* SPDX-License-Identifier: Apache-2.0 */
/* Likewise of libdl.so.2, which a glibc from 2.34 on still has, empty, for this. */
void dlopen(void);
void dlsym(void);
void dlerror(void);
void dladdr(void);
void dlopen(void) {}
void dlsym(void) {}
void dlerror(void) {}
void dladdr(void) {}
