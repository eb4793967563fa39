//! Proves that paceline-core links no std: this staticlib brings its own panic handler and its own allocator, and std,
//! as soon as anything pulls it in, would bring them a second time, which does not compile.
//!
//! It is built, never run.
#![no_std]

extern crate alloc;

use core::alloc::{GlobalAlloc, Layout};
use core::panic::PanicInfo;
use core::time::Duration;

use alloc::vec;
use paceline_core::{Class, Cost, Event, Instant, Limits, Outcome, Pacer, PacerConfig, Quota, Request, NextAction};

/// Drives a pacer through its whole public face, so that its code is linked and not merely named. Returns when the next
/// retry is due in milliseconds, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn paceline_proof(seed: u64) -> u64 {
    let limits = Limits { quotas: vec![Quota::per_minute(60)], burst: Some(1) };
    let config = PacerConfig { limits, ..PacerConfig::default() };
    let Ok(mut pacer) = Pacer::new(config.clone(), seed, Instant::ZERO) else { return 0 };
    let scope = pacer.scope("proof");
    let request = Request::new(scope, Cost::request());
    if !pacer.admit(Instant::ZERO, &request).is_now() || pacer.enqueue(Instant::ZERO, request).is_err() {
        return 0;
    }
    let mut delay_ms = 0;
    while let Some(event) = pacer.poll_event() {
        let Event::Granted { ticket, .. } = event else { continue };
        if let NextAction::Retry { delay, .. } = pacer.complete(Instant::ZERO, ticket, Outcome::new(Class::Transient)) {
            delay_ms = delay.as_millis() as u64;
        }
    }
    let later = Instant::ZERO + Duration::from_secs(1);
    pacer.handle_timeout(later);
    let _ = (pacer.reconfigure(later, config), pacer.snapshot(later), pacer.poll_timeout());
    delay_ms
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {}
}

/// An allocator that has nothing to give: linking needs one, running does not happen.
struct Empty;

// SAFETY: a null pointer is the documented answer of an allocator without memory, so nothing is ever handed out that
// could be freed or aliased.
unsafe impl GlobalAlloc for Empty {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        core::ptr::null_mut()
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static ALLOCATOR: Empty = Empty;
