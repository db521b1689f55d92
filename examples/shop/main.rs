//! `cargo run --release --example shop`

#[tokio::main]
async fn main() -> std::process::ExitCode {
    shop::main().await
}
