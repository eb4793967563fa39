//! The words that providers decide with. Matching is exact, on a code or a type, wherever there is one; phrases of a
//! message are looked at only where nothing else marks the case.

/// The content of the request was refused.
pub(super) const FILTER: [&str; 5] =
    ["content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation", "cyber_policy", "moderation"];
pub(super) const FILTER_PHRASE: &str = "content management policy";

/// No credit, a cap that a person set, a closed account: a person must act.
pub(super) const BILLING: [&str; 14] = [
    "insufficient_quota",
    "credit_balance_exhausted",
    "organization_usage_limit_exceeded",
    "organization_spend_limit_exceeded",
    "project_spend_limit_exceeded",
    "billing_hard_limit_reached",
    "billing_not_active",
    "account_deactivated",
    "access_terminated",
    "billing_error",
    "contract_spend_limit_reached",
    "linked_organization_spend_limit_reached",
    "organization_on_hold",
    "INSUFFICIENT_G1_CREDITS_BALANCE",
];

/// A cap on the month's spending that opens again with the next month.
pub(super) const MONTHLY_CAP: [&str; 1] = ["enforced_spend_limit_reached"];

/// Anthropic's usage limit, an `invalid_request_error` by its codes: nothing but these words marks it.
pub(super) const USAGE_LIMIT_PHRASE: &str = "You have reached your specified API usage limits";

/// A 429 that speaks of the provider's capacity, not of our rate.
pub(super) const CAPACITY: [&str; 3] = ["engine_overloaded_error", "overloaded_error", "server_is_overloaded"];
pub(super) const CAPACITY_PHRASES: [&str; 3] =
    ["service tier capacity exceeded", "no capacity available", "system is experiencing high demand"];

/// A window of hours whose end is known only in words.
pub(super) const LONG_WINDOW: [&str; 1] = ["1308"];

/// Traffic rose too fast: the rate itself must come down.
pub(super) const RAMP: [&str; 2] = ["slow_down", "ramp_limit_exceeded"];

/// Ordinary throttles, so that `x-should-retry: false` beside them does not mean more than it says.
pub(super) const THROTTLE: [&str; 8] = [
    "rate_limit_exceeded",
    "rate_limit_error",
    "rate_limit_reached_error",
    "rate_limited",
    "rate_limit",
    "ratelimited",
    "requests",
    "tokens",
];

/// Periods that are no short window.
pub(super) const LONG_PERIODS: [&str; 11] =
    ["per day", "per week", "per month", "/ day", "/ week", "/ month", "/day", "/month", "daily", "weekly", "monthly"];

/// GitHub's limits, which it answers with 403 as well as 429.
pub(super) const GITHUB_SECONDARY: &str = "secondary rate limit";
pub(super) const GITHUB_PRIMARY: &str = "api rate limit exceeded";

/// Statuses inside the body of a 200, by `base_resp.status_code`.
pub(super) const BASE_RESP: [(u64, u16); 4] = [(1002, 429), (1039, 429), (1041, 429), (1008, 402)];

/// The status that an error would have had, had it not come after the 200 of a stream or inside its body.
pub(super) const LATE_STATUS: [(&str, u16); 23] = [
    ("api_error", 500),
    ("authentication_error", 401),
    ("billing_error", 402),
    ("conflict_error", 409),
    ("context_length_exceeded", 400),
    ("invalid_api_key", 401),
    ("invalid_prompt", 400),
    ("invalid_request_error", 400),
    ("model_not_found", 404),
    ("not_found_error", 404),
    ("overloaded_error", 529),
    ("permission_error", 403),
    ("rate_limit_error", 429),
    ("rate_limit_exceeded", 429),
    ("requests", 429),
    ("request_too_large", 413),
    ("server_error", 500),
    ("server_is_overloaded", 503),
    ("service_unavailable_error", 503),
    ("slow_down", 429),
    ("timeout_error", 504),
    ("tokens", 429),
    ("unsupported_country_region_territory", 403),
];
