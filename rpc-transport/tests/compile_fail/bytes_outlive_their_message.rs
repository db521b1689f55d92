use rpc_transport::message::received::Message;


fn main() {
    let bytes;
    {
        let message = Message::copied(b"header and body");
        bytes = &message[7..];
    }
    assert_eq!(bytes, b"and body");
}
