// SPDX-License-Identifier: Apache-2.0
class Caller {
  static native void launch(int depth);

  static int nested(int depth, boolean isLast) {
    int sum = depth;
    if (depth > 0) return nested(depth - 1, isLast) + sum;
    if (isLast) launch(4);
    return sum;
  }

  static void onThread() {
    for (int i = 0; i < 3; ++i) nested(i, true);
  }

  public static void main(String[] args) throws Exception {
    System.loadLibrary("launch");
    launch(1); // interpreted
    Runnable viaLambda = () -> nested(6, true);
    viaLambda.run();
    for (int i = 0; i < 200_000; ++i) nested(8, false); // now it is compiled
    for (int i = 0; i < 3; ++i) nested(8, true);
    Thread thread = new Thread(Caller::onThread);
    thread.start();
    thread.join();
  }
}
