//! Poolers before PostgreSQL (FAILURES 20). One that lends connections by the transaction gives each statement to another
//! session: a statement prepared in one is not there in the next, or, worse, another client's is there under its name.

use sqlx::postgres::PgConnection;
use sqlx::{Executor as _, Row as _};

use super::engine::Failed;
use crate::store::StoreErrorKind;

/// What a pooler must do about the parameters of a connection.
const PARAMETERS: &str = "a pooler must take extra_float_digits and options, or ignore them";
/// What to do where a prepared statement is not what it was.
pub(super) const STATEMENTS: &str = "if a pooler lends connections by the transaction, add statement-cache-capacity=0 to \
    database.postgres_url";

/// Which of two connections asks for its session, in this order: one session for both, two in turn, two by which was free
/// last, and many, all show themselves.
const ASKS: [usize; 5] = [0, 1, 1, 0, 0];

/// Whether the sessions behind two connections are lent by the transaction.
pub(super) async fn lends_by_transaction(one: &mut PgConnection, other: &mut PgConnection) -> sqlx::Result<bool> {
    let mut seen = Vec::with_capacity(ASKS.len());
    for asks in ASKS {
        let connection = if asks == 0 { &mut *one } else { &mut *other };
        let row = connection.fetch_one(sqlx::raw_sql("SELECT pg_backend_pid()")).await?;
        seen.push((asks, row.try_get::<i32, _>(0)?));
    }
    Ok(is_lent(&seen))
}

/// Whether a connection has seen two sessions, or two connections one.
fn is_lent(seen: &[(usize, i32)]) -> bool {
    seen.iter().any(|(asks, session)| seen.iter().any(|(other, met)| (asks == other) != (session == met)))
}

/// Whether the URL says that no prepared statements are to be kept.
pub(super) fn keeps_no_statements(url: &str) -> bool {
    let (_, parameters) = url.split_once('?').unwrap_or_default();
    parameters.split('&').any(|parameter| parameter == "statement-cache-capacity=0")
}

/// Why the first connection could not be made: waiting does not teach a pooler the parameters of a connection.
pub(super) fn refused(error: &sqlx::Error) -> Failed {
    match error {
        sqlx::Error::Database(database) if database.code().as_deref() == Some("08P01") => {
            let message = format!("database.postgres_url: {}; {PARAMETERS}", database.message());
            Failed::new(StoreErrorKind::Schema, message)
        }
        _ => Failed::acquire(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the asks see where sessions are lent as `lend` says: the number of the ask, and the sessions that are free.
    fn lent(sessions: i32, lend: impl Fn(i32) -> i32) -> bool {
        let turns = ASKS.iter().zip(0..);
        is_lent(&turns.map(|(asks, turn)| (*asks, lend(turn) % sessions)).collect::<Vec<_>>())
    }

    #[test]
    fn a_pooler_that_lends_by_the_transaction_shows_itself_20() {
        assert!(lent(1, |_| 0), "one session for all");
        for sessions in 2..10 {
            assert!(lent(sessions, |turn| turn), "{sessions} in turn");
            assert!(lent(sessions, |_| sessions - 1), "whichever was free last");
        }
        let own: Vec<_> = ASKS.iter().map(|asks| (*asks, i32::try_from(*asks).unwrap())).collect();
        assert!(!is_lent(&own), "each connection has a session of its own");
    }

    #[test]
    fn a_url_may_say_that_no_statements_are_kept_20() {
        assert!(keeps_no_statements("postgres://h/d?sslmode=prefer&statement-cache-capacity=0"));
        for url in
            ["postgres://h/d", "postgres://h/d?statement-cache-capacity=9", "postgres://h/statement-cache-capacity=0"]
        {
            assert!(!keeps_no_statements(url), "{url}");
        }
    }
}
