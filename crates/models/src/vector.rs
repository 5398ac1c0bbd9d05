//! Normalizes vectors.

/// Scales a vector to length 1. `None` if it is zero or not finite.
pub(crate) fn unit(mut vector: Vec<f32>) -> Option<Vec<f32>> {
    // Squares of large numbers do not fit in an `f32`.
    let length = vector
        .iter()
        .map(|value| f64::from(*value).powi(2))
        .sum::<f64>()
        .sqrt();
    if !length.is_finite() || length == 0.0 {
        return None;
    }
    for value in &mut vector {
        // The result is between -1 and 1.
        #[allow(clippy::cast_possible_truncation)]
        let shortened = (f64::from(*value) / length) as f32;
        *value = shortened;
    }
    Some(vector)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vector_is_normalized_or_rejected() {
        assert_eq!(unit(vec![3.0, -4.0]), Some(vec![0.6, -0.8]));
        assert_eq!(unit(vec![f32::MAX, 0.0]), Some(vec![1.0, 0.0]));
        assert_eq!(unit(vec![0.0, f32::MIN_POSITIVE]), Some(vec![0.0, 1.0]));
        for bad in [
            vec![],
            vec![0.0, 0.0],
            vec![1.0, f32::NAN],
            vec![f32::INFINITY, 1.0],
        ] {
            assert_eq!(unit(bad.clone()), None, "{bad:?}");
        }
    }
}
