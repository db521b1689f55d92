@0xeab97f9212534286;

# What `src/peers/capnp.rs` serves. `src/echo_capnp.rs` is generated from this file, and committed so that
# building needs no schema compiler: with Debian's package capnproto, and `cargo install capnpc` for the
# plugin, `capnp compile -orust:src --src-prefix=schema schema/echo.capnp` writes it anew.

# All that goes either way.
struct Message {
  data @0 :Data;
  sum @1 :UInt64;
}

interface Echo {
  echo @0 Message -> Message;
  put @1 Message -> Message;
  get @2 Message -> Message;
}
