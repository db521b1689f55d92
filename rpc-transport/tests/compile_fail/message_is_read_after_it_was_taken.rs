use rpc_transport::message::received::Message;

fn take(message: Message) -> (Vec<u8>, usize) {
    let bytes = message.into_vec();
    (bytes, message.len())
}

fn main() {}
