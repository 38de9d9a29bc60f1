//! What a submit says: whether it can be taken, and when it says the same as another.

use sha2::{Digest as _, Sha256};

use crate::service::{ServiceError, Submit};
use crate::task::Json;
use crate::task::json::hash_canonical;
use crate::task::limits::CALLER_ID_MAX_CHARS;

/// Refuses a request that cannot be stored or sent; names what is wrong.
pub(super) fn validate(submit: &Submit) -> Result<(), ServiceError> {
    let texts = [
        ("user", Some(&submit.user_id)),
        ("thread", Some(&submit.thread_id)),
        ("run_id", submit.run_id.as_ref()),
        ("tool_call_id", submit.tool_call_id.as_ref()),
        ("Idempotency-Key", submit.idempotency_key.as_ref()),
    ];
    for (name, text) in texts {
        let Some(text) = text else { continue };
        let chars = text.chars().count();
        if chars == 0 || chars > CALLER_ID_MAX_CHARS || text.chars().any(char::is_control) {
            let message = format!("{name} must have 1 to {CALLER_ID_MAX_CHARS} characters and no control characters");
            return Err(ServiceError::Invalid(message));
        }
    }
    if !submit.arguments.get().trim_start().starts_with('{') {
        return Err(ServiceError::Invalid("arguments must be a JSON object".to_owned()));
    }
    Ok(())
}

/// What "the same body" means for a repeated key (137, 155).
pub(super) fn hash(submit: &Submit) -> Result<String, ServiceError> {
    let arguments =
        Json::parse(submit.arguments.get()).map_err(|error| ServiceError::Invalid(format!("arguments: {error}")))?;
    let mut hasher = Sha256::new();
    for part in [
        submit.server.as_str(),
        submit.task.as_str(),
        submit.run_id.as_deref().unwrap_or_default(),
        submit.tool_call_id.as_deref().unwrap_or_default(),
    ] {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hash_canonical(&arguments, &mut hasher);
    Ok(crate::task::hex(&hasher.finalize()))
}
