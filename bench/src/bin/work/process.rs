//! The resources that this process uses, as Linux reports them.

use std::time::Duration;

use crate::Outcome;

/// Resident memory in KiB: at present, or at most so far with `peak`.
pub(crate) fn memory_kib(peak: bool) -> Outcome<u64> {
    let name = if peak { "VmHWM:" } else { "VmRSS:" };
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such line in /proc/self/status")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// The processor's time so far, of all threads.
pub(crate) fn processor() -> Outcome<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks =
        fields.get(11).ok_or("too short")?.parse::<u64>()? + fields.get(12).ok_or("too short")?.parse::<u64>()?;
    // A tick is a hundredth of a second in what Linux reports to processes, whatever it counts inside.
    Ok(Duration::from_millis(ticks * 10))
}
