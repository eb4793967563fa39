//! The programs of docs/cookbook.md. Each file is one of them, to be copied and changed; tests/ runs them without a key and
//! without network.

pub mod dynamodb;
pub mod grpc;
pub mod openai;
pub mod router;
pub mod scraper;
pub mod webhooks;
