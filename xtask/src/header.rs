//! `cargo xtask header`: the C header, made from `crates/capi` by cbindgen and committed, so that a
//! C programmer needs no Rust to read it and a review sees every change of the ABI.

use std::fs;
use std::path::Path;

use crate::error::ToolError;

/// Configuration of cbindgen and path of the header, both below `crates/capi`.
const CONFIG: &str = "cbindgen.toml";
const HEADER: &str = "include/megapipe.h";

/// Writes the header; always `true`.
pub(crate) fn write(root: &Path) -> Result<bool, ToolError> {
    let crate_root = root.join("crates/capi");
    let path = crate_root.join(HEADER);
    let folder = path.parent().unwrap_or(&crate_root);
    fs::create_dir_all(folder).map_err(ToolError::file(folder))?;
    let text = generate(&crate_root)?;
    fs::write(&path, text).map_err(ToolError::file(&path))?;
    println!("wrote {}", path.display());
    Ok(true)
}

/// Whether the committed header matches the sources; prints the first difference.
pub(crate) fn check(root: &Path) -> Result<bool, ToolError> {
    let drift = drift(root)?;
    if let Some(text) = &drift {
        println!("{text}");
    }
    Ok(drift.is_none())
}

/// The first difference between the committed header and the sources, as text.
pub(crate) fn drift(root: &Path) -> Result<Option<String>, ToolError> {
    let crate_root = root.join("crates/capi");
    let path = crate_root.join(HEADER);
    let committed = fs::read_to_string(&path).map_err(ToolError::file(&path))?;
    Ok(difference(&committed, &generate(&crate_root)?))
}

fn generate(crate_root: &Path) -> Result<String, ToolError> {
    let config = cbindgen::Config::from_file(crate_root.join(CONFIG)).map_err(ToolError::Header)?;
    let bindings = cbindgen::Builder::new()
        .with_crate(crate_root)
        .with_config(config)
        .generate()
        .map_err(|error| ToolError::Header(error.to_string()))?;
    let mut bytes = Vec::new();
    bindings.write(&mut bytes);
    String::from_utf8(bytes).map_err(|error| ToolError::Header(error.to_string()))
}

fn difference(committed: &str, generated: &str) -> Option<String> {
    if committed == generated {
        return None;
    }
    let pairs = committed.lines().zip(generated.lines());
    let same = pairs.take_while(|(left, right)| left == right).count();
    let line = |text: &str| text.lines().nth(same).unwrap_or("(end of file)").to_owned();
    Some(format!(
        "crates/capi/{HEADER}:{number}: differs from the sources; run `cargo xtask header`\n  \
         committed: {committed}\n  sources:   {generated}",
        number = same + 1,
        committed = line(committed),
        generated = line(generated),
    ))
}

#[cfg(test)]
mod tests;
