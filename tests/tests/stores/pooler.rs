//! What a pooler needs that lends connections by the transaction (FAILURES 20). Every behaviour of the suite runs behind one too.

use mcp_taskd_core::store::StoreErrorKind;
use mcp_taskd_core::store::sql::SqlStore;
use mcp_taskd_tests::pooler::Pooler;
use mcp_taskd_tests::postgres;

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_refuses_the_parameters_of_a_connection_is_a_configuration_error_20() {
    let Some(strict) = Pooler::start("application_name") else { return };
    let database = postgres::database().await;
    let error = SqlStore::connect_postgres(&strict.url(database.name()), 1).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Schema, "{error}");
    for part in ["database.postgres_url", "extra_float_digits", "options", "ignore"] {
        assert!(error.message.contains(part), "{part} is not in {error}");
    }
}
