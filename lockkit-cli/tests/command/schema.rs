//! As much of JSON Schema as the schemas in `docs/` use.

use std::fs;
use std::path::Path;

use serde_json::Value;

/// Parses `text`, and checks it against a schema of `docs/`.
pub(crate) fn conforming(text: &str, schema: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(schema);
    let schema = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let value = serde_json::from_str(text).unwrap();
    if let Err(problem) = check(&schema, &schema, &value) {
        panic!("{problem}: {text}");
    }
    value
}

fn check(root: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("{value} is not as {what} of {schema} has it"));
    for (keyword, how) in schema.as_object().unwrap() {
        match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" => (),
            "$ref" => {
                let target = how.as_str().unwrap().strip_prefix('#').unwrap();
                check(root, root.pointer(target).unwrap(), value)?;
            }
            "type" if !types(how).any(|name| is(value, name)) => return wrong("type"),
            "const" if value != how => return wrong("const"),
            "enum" if !how.as_array().unwrap().contains(value) => return wrong("enum"),
            "minimum" if value.as_i64().is_some_and(|n| n < how.as_i64().unwrap()) => {
                return wrong("minimum");
            }
            "pattern" if value.as_str().is_some_and(|text| !matches(how, text)) => {
                return wrong("pattern");
            }
            "type" | "const" | "enum" | "minimum" | "pattern" => (),
            "anyOf" => {
                let mut ways = how.as_array().unwrap().iter();
                if !ways.any(|way| check(root, way, value).is_ok()) {
                    return wrong("anyOf");
                }
            }
            "required" => {
                let mut names = how.as_array().unwrap().iter().map(|name| name.as_str().unwrap());
                if value.is_object() && !names.all(|name| value.get(name).is_some()) {
                    return wrong("required");
                }
            }
            "properties" => {
                for (name, field) in value.as_object().into_iter().flatten() {
                    // Others may be added, says the schema; that they are described, says this.
                    let Some(described) = how.get(name) else {
                        return Err(format!("`{name}` is not in the schema"));
                    };
                    check(root, described, field)?;
                }
            }
            "items" => {
                for item in value.as_array().into_iter().flatten() {
                    check(root, how, item)?;
                }
            }
            unknown => panic!("the schema uses `{unknown}`, which this test does not know"),
        }
    }
    Ok(())
}

fn types(how: &Value) -> impl Iterator<Item = &str> {
    let several = how.as_array().into_iter().flatten();
    several.chain(how.is_string().then_some(how)).map(|name| name.as_str().unwrap())
}

fn is(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        "null" => value.is_null(),
        unknown => panic!("unknown type `{unknown}`"),
    }
}

/// The patterns that there are, each by its own rule.
fn matches(pattern: &Value, text: &str) -> bool {
    match pattern.as_str().unwrap() {
        "^[0-9a-f]{32}$" => {
            text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        }
        "^[1-9][0-9]{0,18}$" => {
            text.len() <= 19
                && !text.starts_with('0')
                && !text.is_empty()
                && text.bytes().all(|byte| byte.is_ascii_digit())
        }
        unknown => panic!("unknown pattern `{unknown}`"),
    }
}

#[test]
fn what_is_not_as_described_is_found() {
    let schema = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let status = include_str!("../../../docs/status.schema.json");
    let status = schema(status);
    let lock = |holder: &str| {
        let text = format!(
            r#"{{"schema": 1, "driver": "x", "namespace": "y",
                "locks": [{{"name": "z", "holder": {holder}, "waiters": [], "listeners": null}}]}}"#
        );
        check(&status, &status, &schema(&text))
    };
    let holder = |owner: &str, token: &str, more: &str| {
        format!(
            r#"{{"owner": "{owner}", "label": null, "token": {token}, "held_for_ms": 1,
                "free_in_ms": null{more}}}"#
        )
    };
    let owner = "0".repeat(32);
    lock("null").unwrap();
    lock(&holder(&owner, r#""12""#, "")).unwrap();
    for wrong in [
        "3".into(),
        "{}".into(),
        holder("0", "null", ""),
        holder(&owner, "12", ""),
        holder(&owner, r#""012""#, ""),
        holder(&owner, "null", r#", "more": 1"#),
        holder(&owner, "null", "").replace(": 1", ": -1"),
    ] {
        lock(&wrong).unwrap_err();
    }
}
