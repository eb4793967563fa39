//! The same with `governor`.

use governor::{Quota, RateLimiter};
use std::num::NonZeroU32;

fn main() {
    let [five, ten] = [5, 10].map(|n| NonZeroU32::new(n).expect("not zero"));
    let tenants = RateLimiter::keyed(Quota::per_second(five).allow_burst(ten));
    for call in 0..100 {
        let tenant = ["ada", "bob"][call % 2];
        if tenants.check_key(&tenant).is_ok() {
            println!("{tenant} is served");
        }
    }
}
