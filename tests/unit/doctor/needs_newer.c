/* SPDX-License-Identifier: Apache-2.0 */
int from_the_future(void);
int InitializeInjection(void) { return from_the_future(); }
