/* SPDX-License-Identifier: Apache-2.0 */
/* Two libcuptis of one soname: the newer one has functions that the older one lacks. */
int cuptiSubscribe(void);
int cuptiSubscribe(void) { return 0; }
#ifdef NEWER
int cuptiNewer(void), cuptiNewest(void);
int cuptiNewer(void) { return 0; }
int cuptiNewest(void) { return 0; }
#endif
