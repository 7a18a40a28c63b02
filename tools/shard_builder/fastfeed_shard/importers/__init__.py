"""Data sets of other formats as rows: Parquet, Hugging Face's Arrow folders, MDS, TFRecord."""
