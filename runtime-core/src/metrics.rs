//! Metrics whose help texts are the doc comments of their fields, so that there is one text and it cannot be left out.
//!
//! Each component declares its own beside itself, with [`families!`](crate::families).

use prometheus::core::Collector;
use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
};

/// A family of metrics, as the macro builds it.
pub trait Family: Collector + Clone + 'static {
    /// An unregistered one; `labels` and buckets count only where it has such.
    ///
    /// # Errors
    ///
    /// Where a name, a label or a bucket cannot be used.
    fn build(opts: HistogramOpts, labels: &[&str]) -> prometheus::Result<Self>;

    /// Shows it in `registry`.
    ///
    /// # Errors
    ///
    /// Where one of this name is there already.
    fn add_to(&self, registry: &Registry) -> prometheus::Result<()> {
        registry.register(Box::new(self.clone()))
    }
}

macro_rules! family {
    ($($family:ident: |$opts:ident, $labels:ident| $build:expr;)+) => {$(
        impl Family for $family {
            fn build($opts: HistogramOpts, $labels: &[&str]) -> prometheus::Result<Self> {
                $build
            }
        }
    )+};
}

family! {
    Gauge: |opts, _labels| Self::with_opts(opts.common_opts);
    IntGauge: |opts, _labels| Self::with_opts(opts.common_opts);
    IntGaugeVec: |opts, labels| Self::new(opts.common_opts, labels);
    IntCounter: |opts, _labels| Self::with_opts(opts.common_opts);
    IntCounterVec: |opts, labels| Self::new(opts.common_opts, labels);
    Histogram: |opts, _labels| Self::with_opts(opts);
    HistogramVec: |opts, labels| Self::new(opts, labels);
}

/// Declares a struct of metrics: `/// Help text.` above each `field: Family = "name_without_prefix" ["label"] in BUCKETS;`.
///
/// It gets `build()`, which makes them, and `add_to(&registry)`, which shows them.
#[macro_export]
macro_rules! families {
    (
        $(#[$about:meta])*
        $visibility:vis struct $name:ident {
            $(
                $(#[doc = $help:literal])+
                $field_visibility:vis $field:ident: $family:ident = $metric:literal
                    $([$($label:literal),+])? $(in $buckets:expr)?;
            )+
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone)]
        $visibility struct $name {
            $($(#[doc = $help])+ $field_visibility $field: ::prometheus::$family,)+
        }

        impl $name {
            /// Metrics that nobody sees yet.
            fn build() -> ::prometheus::Result<Self> {
                Ok(Self {
                    $($field: {
                        let help = concat!($($help),+).trim();
                        let opts = ::prometheus::HistogramOpts::new(concat!("mcp_taskd_", $metric), help);
                        $(let opts = opts.buckets($buckets.to_vec());)?
                        $crate::metrics::Family::build(opts, &[$($($label),+)?])?
                    },)+
                })
            }

            /// Shows them in `registry`.
            fn add_to(&self, registry: &::prometheus::Registry) -> ::prometheus::Result<()> {
                $($crate::metrics::Family::add_to(&self.$field, registry)?;)+
                Ok(())
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    families! {
        /// Two of them.
        struct Metrics {
            /// What is told
            /// on two lines.
            calls: IntCounterVec = "calls_total" ["server"];
            /// How long.
            took: Histogram = "took_seconds" in [0.5, 1.0];
        }
    }

    #[test]
    fn the_help_text_is_the_doc_comment() {
        let registry = Registry::new();
        let metrics = Metrics::build().unwrap();
        metrics.add_to(&registry).unwrap();
        metrics.calls.with_label_values(&["s"]).inc();
        metrics.took.observe(0.7);
        let families = registry.gather();
        let told: Vec<_> = families.iter().map(|family| (family.name(), family.help())).collect();
        assert_eq!(
            told,
            [("mcp_taskd_calls_total", "What is told on two lines."), ("mcp_taskd_took_seconds", "How long.")]
        );
        assert_eq!(families[1].get_metric()[0].get_histogram().get_bucket().len(), 2);
        assert!(metrics.add_to(&registry).is_err(), "twice");
    }
}
