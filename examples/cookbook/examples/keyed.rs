//! A limit for each tenant.

use paceline::{ConfigError, KeyedLimiter, Quota};

fn main() -> Result<(), ConfigError> {
    let tenants = KeyedLimiter::<String>::new(Quota::per_second(5).burst(10))?;
    for call in 0..100 {
        let tenant = ["ada", "bob"][call % 2];
        if tenants.try_acquire(tenant).is_ok() {
            println!("{tenant} is served");
        }
    }
    Ok(())
}
