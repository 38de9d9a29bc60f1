//! Masks that come back stand for what they were made from (BEHAVIOURS 86).

use serde_json::{Map, Value};

use super::super::redact::{self, MASK};

/// A mask that stands for nothing.
pub(super) fn unknown(at: &str) -> String {
    format!("{at}: {MASK} stands for a stored value, and there is none here; send the value itself")
}

/// `sent` with what is masked in it taken from `stored`, which was shown as `shown`; `at` names the key in errors.
pub(super) fn restored(sent: &Value, shown: &Value, stored: &Value, at: &str) -> Result<Value, String> {
    if sent == shown {
        return Ok(stored.clone());
    }
    match sent {
        Value::Object(members) => {
            let empty = Map::new();
            let (shown, stored) = (shown.as_object().unwrap_or(&empty), stored.as_object().unwrap_or(&empty));
            let member = |(key, value): (&String, &Value)| {
                let (shown, stored) = (shown.get(key).unwrap_or(&Value::Null), stored.get(key).unwrap_or(&Value::Null));
                restored(value, shown, stored, &format!("{at}.{key}")).map(|value| (key.clone(), value))
            };
            members.iter().map(member).collect::<Result<Map<_, _>, _>>().map(Value::Object)
        }
        Value::Array(items) => {
            let none = Vec::new();
            let (shown, stored) = (shown.as_array().unwrap_or(&none), stored.as_array().unwrap_or(&none));
            items.iter().enumerate().map(|(index, _)| item(items, index, shown, stored, at)).collect()
        }
        Value::String(text) if text.contains(MASK) => {
            let whole = stored.as_str().and_then(|stored| url(text, stored)).filter(|text| !text.contains(MASK));
            whole.map(Value::String).ok_or_else(|| unknown(at))
        }
        _ => Ok(sent.clone()),
    }
}

/// One item of a list, which may have been reordered or shortened: a mask stands for the item that looked the same. What is
/// nothing but a mask looks like any other, and stands for the one that came after the same item.
fn item(items: &[Value], index: usize, shown: &[Value], stored: &[Value], at: &str) -> Result<Value, String> {
    let sent = &items[index];
    let before = |list: &[Value], index: usize| index.checked_sub(1).and_then(|index| list.get(index).cloned());
    let fits =
        |other: &usize| shown[*other] == *sent && (*sent != *MASK || before(shown, *other) == before(items, index));
    let same = [index].into_iter().filter(|index| *index < shown.len()).chain(0..shown.len()).find(fits);
    if let Some(same) = same {
        return Ok(stored[same].clone());
    }
    let none = Value::Null;
    // A mask in another place than before must not pick up what happens to stand there now.
    let (shown, stored) = if sent.is_string() {
        (&none, &none)
    } else {
        (shown.get(index).unwrap_or(&none), stored.get(index).unwrap_or(&none))
    };
    restored(sent, shown, stored, &format!("{at}[{index}]"))
}

/// A URL whose masked parts are those of the stored one: all before the parameters, or the user alone; and each parameter.
fn url(sent: &str, stored: &str) -> Option<String> {
    let mut shown = stored.to_owned();
    redact::mask_url(&mut shown);
    let head = |url: &str| url.split('?').next().unwrap_or_default().to_owned();
    let sent = match sent.strip_prefix(&head(&shown)) {
        Some(rest) if rest.is_empty() || rest.starts_with('?') => format!("{}{rest}", head(stored)),
        _ => sent.to_owned(),
    };
    let (scheme, rest) = sent.split_once("://")?;
    let (_, old) = stored.split_once("://")?;
    let authority = &old[..old.find(['/', '?', '#']).unwrap_or(old.len())];
    let rest = match rest.strip_prefix(&format!("{MASK}@")) {
        Some(rest) => format!("{}@{rest}", authority.rsplit_once('@')?.0),
        None => rest.to_owned(),
    };
    let Some((path, query)) = rest.split_once('?') else { return Some(format!("{scheme}://{rest}")) };
    let values: Vec<(&str, &str)> = old
        .split_once('?')
        .map(|(_, query)| query.split('#').next().unwrap_or_default())
        .into_iter()
        .flat_map(|query| query.split('&'))
        .filter_map(|pair| pair.split_once('='))
        .collect();
    let (query, fragment) = query.split_once('#').map_or((query, None), |(query, fragment)| (query, Some(fragment)));
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some((name, MASK)) => values
            .iter()
            .find(|(known, _)| *known == name)
            .map_or_else(|| pair.to_owned(), |(_, value)| format!("{name}={value}")),
        _ => pair.to_owned(),
    });
    let query = pairs.collect::<Vec<_>>().join("&");
    let fragment = fragment.map(|fragment| format!("#{fragment}")).unwrap_or_default();
    Some(format!("{scheme}://{path}?{query}{fragment}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_masked_url_gets_back_only_what_it_had_86() {
        let stored = "https://u:p@h.example/mcp?api_key=k&x=1#f";
        let url = |sent| url(sent, stored).unwrap_or_default();
        assert_eq!(url("https://***@h.example/mcp?api_key=***&x=2#g"), "https://u:p@h.example/mcp?api_key=k&x=2#g");
        assert_eq!(url("https://***@other.example/"), "https://u:p@other.example/");
        assert_eq!(url("https://h.example/mcp?token=***"), "https://h.example/mcp?token=***", "it never had one");
        assert_eq!(super::url("https://***@h/", "https://h/"), None);
        let in_path = "https://h/s/4f9c1de0a7b24c6e9d13/mcp?x=1";
        assert_eq!(super::url("https://h/s/***/mcp?x=2", in_path).unwrap(), "https://h/s/4f9c1de0a7b24c6e9d13/mcp?x=2");
        assert_eq!(super::url("https://h/other/***/mcp", in_path).unwrap(), "https://h/other/***/mcp", "left as it is");
    }
}
