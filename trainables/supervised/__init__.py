"""The project's own training, of classifiers and of segmentation."""
