# Two targets; everything else is `cargo xtask`.

.PHONY: demo test

define tools
	@command -v cargo >/dev/null || { echo "cargo is missing. Get Rust from https://rustup.rs," \
	    "then run make again."; exit 1; }
	@command -v cc >/dev/null || { echo "cc is missing: cargo links with it." \
	    "On Debian: apt-get install gcc. Then run make again."; exit 1; }
endef

# Build, then about two minutes of measuring; no root needed.
demo:
	$(tools)
	cargo build --release --locked --package megapipe-cli
	target/release/megapipe demo

# Everything that must pass before a change lands. What its tests want and the machine lacks is
# installed first, or named where that takes root.
test:
	$(tools)
	@cargo xtask setup
	@cargo xtask ci
