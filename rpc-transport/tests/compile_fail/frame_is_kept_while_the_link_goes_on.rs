use rpc_transport::protocol::link::Link;

fn pump(link: &mut Link) {
    let first = link.poll_transmit();
    let second = link.poll_transmit();
    drop((first, second));
}

fn main() {}
