// SPDX-License-Identifier: Apache-2.0
use std::collections::BTreeMap;

#[link(name = "launch")]
extern "C" {
    fn launch();
    fn launch_nested(depth: i32) -> i32;
    fn launch_through(callback: extern "C" fn(i32), value: i32) -> i32;
}

extern "C" fn callback(value: i32) {
    if value > 0 {
        unsafe { launch_through(callback, value - 1) };
    }
}

struct OnDrop(i32);

impl Drop for OnDrop {
    fn drop(&mut self) {
        unsafe { launch_nested(self.0) };
    }
}

fn work(depth: i32) -> i32 {
    let words: BTreeMap<i32, String> = (0..4).map(|n| (n, n.to_string())).collect();
    words.values().map(|w| w.parse::<i32>().unwrap()).fold(0, |sum, n| {
        unsafe { launch_nested(n) };
        sum + n
    }) + if depth > 0 { work(depth - 1) } else { 0 }
}

fn main() {
    unsafe { launch() };
    work(3);
    callback(3);
    let thread = std::thread::Builder::new().name("worker".into());
    thread.spawn(|| work(1)).unwrap().join().unwrap();
    std::panic::set_hook(Box::new(|_| unsafe { launch() }));
    let caught = std::panic::catch_unwind(|| {
        let _dropped = OnDrop(2);
        panic!("caught");
    });
    assert!(caught.is_err());
}
