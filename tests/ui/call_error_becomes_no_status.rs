use rpc_core::{CallError, Status};

pub struct Empty;

fn reserve() -> Result<u8, CallError<Empty>> {
    Err(CallError::User(Empty))
}

fn without_from() -> Result<u8, Status> {
    Ok(reserve()?)
}

fn own_error_by_itself() -> Result<u8, CallError<Empty>> {
    Err(Empty)?
}

fn main() {
    let _ = (without_from(), own_error_by_itself());
}
