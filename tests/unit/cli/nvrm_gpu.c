/* SPDX-License-Identifier: Apache-2.0 */
/* Only to be needed, and then to be missing. */
int NvRmGpuLibOpen(void);
int NvRmGpuLibOpen(void) { return 0; }
