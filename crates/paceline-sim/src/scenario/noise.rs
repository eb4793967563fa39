//! Providers that turn calls away by chance, over limits of several kinds and over none: scenarios named
//! `noise-STATUS-SHARE-UNDER`, such as `noise-503-0.02-b20`, and `first-STATUS-COUNT`, `job-STATUS-SHARE`, `burst-503`.

use super::draw::Draw;

/// What may stand under the dice, and how many items last about five minutes.
const UNDER: &[(&str, &str)] = &[
    // No limit but 64 workers: 1,280 calls a second of 50 ms.
    (
        "n50",
        "items = 250_000\nservice = { p50 = \"40ms\", p99 = \"60ms\", cap = \"100ms\" }\nnet = \"10ms\"\nrefuse = \"10ms\"\nworkers = [{ at = 0, count = 64 }]\n",
    ),
    // No limit but 512 workers: 1,000 calls a second of 500 ms.
    ("n500", "items = 200_000\nservice = { p50 = \"450ms\", p99 = \"600ms\", cap = \"1s\" }\n"),
    ("b20", "items = 6_000\nservice = \"llm\"\n[[limit]]\nshape = \"bucket\"\nlimit = 20\nper = 1\nburst = 20\n"),
    ("w60", "items = 3_000\nservice = \"llm\"\n[[limit]]\nshape = \"fixed\"\nlimit = 60\nper = 6\nphase = 0\n"),
    ("c8", "items = 2_500\nservice = \"llm\"\nconcurrency = 8\n"),
    (
        "tpm",
        "items = 6_000\nservice = \"llm\"\ncost = { p50 = 400, p99 = 2_000 }\n[[limit]]\nshape = \"bucket\"\ncounts = \"tokens\"\n\
         limit = 12_000\nper = 1\nburst = 60_000\n",
    ),
];

/// A job of some seconds: nothing limits it, and it is over in about five seconds.
const JOB: &str =
    "items = 1_000\nservice = { p50 = \"40ms\", p99 = \"60ms\", cap = \"100ms\" }\nnet = \"10ms\"\nrefuse = \"10ms\"\n";

/// The scenario of that name, as a file; none where the name is of another kind.
pub(super) fn text(name: &str) -> Option<String> {
    let parts: Vec<&str> = name.split('-').collect();
    let (about, job, chance) = match parts[..] {
        ["noise", status, share, under] => {
            let (_, job) = UNDER.iter().find(|(known, _)| *known == under)?;
            ("calls turned away by chance", *job, format!("status = {status}\nshare = {share}\n"))
        }
        ["noise", status, share, under, "told"] => {
            let (_, job) = UNDER.iter().find(|(known, _)| *known == under)?;
            let chance = format!("status = {status}\nshare = {share}\nwait = \"3s\"\n");
            ("the same, and told to wait three seconds", *job, chance)
        }
        ["burst", status, under] => {
            let (_, job) = UNDER.iter().find(|(known, _)| *known == under)?;
            let chance = format!("status = {status}\nshare = 0.6\nfrom = \"60s\"\nuntil = \"65s\"\n");
            ("five seconds in which 60 % are turned away", *job, chance)
        }
        ["job", status, share] => {
            ("a thousand calls, some by chance in vain", JOB, format!("status = {status}\nshare = {share}\n"))
        }
        ["first", status, count] => {
            let job = JOB.strip_prefix("items = 1_000\n").expect("the items come first");
            let job = format!("items = 100\n{job}");
            return Some(file(
                name,
                "the first calls are turned away, then none",
                &job,
                &format!("status = {status}\nfirst = {count}\n"),
            ));
        }
        _ => return None,
    };
    Some(file(name, about, job, &chance))
}

fn file(name: &str, about: &str, job: &str, chance: &str) -> String {
    format!("name = \"{name}\"\nabout = \"{about}\"\n{job}\n[[chance]]\n{chance}")
}

/// What chance does to a random provider: two of three lack capacity now and then, the others throttle without a reason.
pub(super) fn drawn(draw: &mut Draw) -> String {
    let (status, most) = draw.one_of(&[(503, 0.1), (503, 0.1), (429, 0.02)]);
    format!("\n[[chance]]\nstatus = {status}\nshare = {:.4}\n", draw.between(0.002, most))
}
