//! The same with `governor`.

use governor::clock::{Clock as _, DefaultClock};
use governor::{Quota, RateLimiter};
use std::error::Error;
use std::num::NonZeroU32;

fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("usage: threads_governor URL")?;
    let limiter = RateLimiter::direct(Quota::per_second(NonZeroU32::new(19).ok_or("zero")?));
    let calls = || {
        for _ in 0..5 {
            while let Err(wait) = limiter.check() {
                std::thread::sleep(wait.wait_time_from(DefaultClock::default().now()));
            }
            match ureq::get(&url).call() {
                Ok(answer) => println!("{}", answer.status()),
                Err(error) => eprintln!("{error}"),
            }
        }
    };
    std::thread::scope(|scope| (0..10).for_each(|_| drop(scope.spawn(calls))));
    Ok(())
}
