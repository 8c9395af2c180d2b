/* SPDX-License-Identifier: Apache-2.0 */
/* A libcupti without cuptiActivityFlushAll and what follows it in the shim's list. */
#define STUB(name) \
  int name(void);  \
  int name(void) { return 0; }
STUB(cuptiGetVersion)
STUB(cuptiSubscribe)
STUB(cuptiUnsubscribe)
STUB(cuptiEnableCallback)
STUB(cuptiActivityRegisterCallbacks)
STUB(cuptiActivityEnable)
STUB(cuptiActivityDisable)
