//! The simulator replaces functions of the C library, some of which are looked up at run time: its
//! symbols have to be exported.

fn main() {
    println!("cargo:rustc-link-arg-bin=simulate=-rdynamic");
    println!("cargo:rerun-if-changed=build.rs");
}
