/* SPDX-License-Identifier: Apache-2.0 */
int some_function(void) { return 1; }
