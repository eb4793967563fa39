//! Ten threads that call one API, at most 19 times a second.

use paceline::{ByHead, Limiter, Quota};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("usage: threads URL")?;
    let limiter = Limiter::new(Quota::per_second(19).burst(19))?;
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let calls = || {
        for _ in 0..5 {
            match limiter.blocking().run(|| agent.get(&url).call()).read_by(ByHead).call() {
                Ok(answer) => println!("{}", answer.status()),
                Err(error) => eprintln!("{error}"),
            }
        }
    };
    std::thread::scope(|scope| (0..10).for_each(|_| drop(scope.spawn(calls))));
    Ok(())
}
