/* SPDX-License-Identifier: Apache-2.0 */
/* An injection library, as the driver takes it. */
int InitializeInjection(void) { return 1; }
